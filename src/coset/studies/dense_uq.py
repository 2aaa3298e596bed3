"""Dense tasks: which error bars of segmented pictures and of depths hold, pixel by pixel?"""

from typing import Any

from coset.studies.settings import OVADIA
from coset.studies.study import Cell, Claim, Control, Exhibit, Panel, Series, Study, TableExhibit

DAXBERGER = "Daxberger et al. 2021"
LAKSHMINARAYANAN = "Lakshminarayanan, Pritzel, Blundell 2017"
_QUESTION = "our own question, no number published"

_LABELS = {
    "map": "one network",
    "temperature": "one network, temperature or variance scaled",
    "dropout": "dropout",
    "swag": "SWAG",
    "ensemble": "ensemble",
    "last_layer": "Laplace, last layer",
    "kfac": "Laplace, KFAC",
    "modes": "Laplace, last layer, several modes",
}

_ALL = ["temperature", "dropout", "swag", "kfac", "modes"]

_BASE: dict[str, Any] = {
    "size": 32,
    "train": 24,
    "held": 20,
    "test": 20,
    "widths": [8, 16, 32],
    "epochs": 40,
    "batch": 8,
    "members": 5,
    "modes": 3,
    "dropout": 0.1,
    "collected": 10,
    "severities": [0, 2, 5],
    "methods": _ALL,
}

_TINY: dict[str, Any] = _BASE | {
    "size": 16,
    "train": 20,
    "held": 19,
    "test": 6,
    "widths": [4, 6],
    "epochs": 4,
    "members": 2,
    "modes": 2,
    "collected": 2,
    "severities": [0, 5],
}

_CAMVID: dict[str, Any] = _BASE | {
    "data": "camvid",
    "task": "camvid",
    "shrink": 4,
    "test": 40,
}
"""Without KFAC of all layers: 13,200 outputs a picture take minutes of a core."""


def _cell(base: dict[str, Any], task: str, seconds: float, **more: Any) -> Cell:
    return Cell(task, {**base, "task": task, **more}, seconds)


def _claim(name: str, says: str, source: str, where: str, quantity: str, task: str) -> Claim:
    titles = {"segmentation": "scenes", "depth": "depths", "camvid": "CamVid"}
    return Claim(
        f"{name}, {titles[task]}",
        says,
        source,
        where,
        quantity,
        side="above" if quantity.endswith("gain") else "below",
        cells={"task": task},
        scales=("small",),
    )


def _claims() -> tuple[Claim, ...]:
    """What the literature and our own issue expect of losses on the same pictures."""
    tasks = ("segmentation", "depth", "camvid")
    everywhere = [
        _claim(name, says, source, where, quantity, task)
        for name, says, source, where, quantity in (
            (
                "an ensemble predicts better",
                "An ensemble of 5 has a lower log-loss than one network.",
                LAKSHMINARAYANAN,
                "section 3, figures 2 to 4",
                "ensemble_minus_map",
            ),
            (
                "an ensemble predicts better under shift",
                "At severity 5 of fog and noise an ensemble has a lower log-loss than one network.",
                OVADIA,
                "section 4, figure 2",
                "ensemble_shifted",
            ),
            (
                "the last layer's Laplace helps",
                "Laplace of the last layer has a lower log-loss than the network it is made of.",
                DAXBERGER,
                "section 4.2, table 1",
                "last_layer_minus_map",
            ),
            (
                "modes help",
                "Laplace around several modes has a lower log-loss than around one.",
                DAXBERGER,
                "section 4.3, mixtures of Laplace approximations",
                "modes_minus_last_layer",
            ),
        )
        for task in tasks
    ]
    two = [
        _claim(name, says, source, where, quantity, task)
        for name, says, source, where, quantity in (
            (
                "Laplace helps",
                "Laplace with KFAC of all layers has a lower log-loss than the network.",
                DAXBERGER,
                "section 4.2, table 1",
                "kfac_minus_map",
            ),
            (
                "Laplace does what scaling does",
                "Laplace with KFAC has a lower log-loss than a temperature, or scaled variances, "
                "found on held-out pictures.",
                _QUESTION,
                "",
                "kfac_minus_temperature",
            ),
        )
        for task in tasks[:2]
    ]
    unseen = _claim(
        "an ensemble sees what is foreign",
        "An ensemble tells pixels of an object of no class better than one network.",
        OVADIA,
        "section 4, figure 3",
        "ensemble_auroc_gain",
        "segmentation",
    )
    return (*everywhere, *two, unseen)


def _table(task: str, title: str, columns: tuple[tuple[str, str], ...], caption: str) -> Any:
    rows = tuple((label, name, {"task": task}) for name, label in _LABELS.items())
    return TableExhibit(task, title, caption, rows, columns)


_OF_LABELS = (
    ("log-loss", "{row}_nll"),
    ("Brier", "{row}_brier"),
    ("accuracy", "{row}_accuracy"),
    ("mean IoU", "{row}_miou"),
    ("calibration error", "{row}_ece"),
    ("95 % sets hold", "{row}_sets"),
    ("classes in a set", "{row}_set_size"),
)

_OF_DEPTHS = (
    ("log-loss", "{row}_nll"),
    ("CRPS", "{row}_crps"),
    ("RMSE of log-depth", "{row}_rmse"),
    ("90 % intervals hold", "{row}_coverage"),
    ("95 % conformal intervals hold", "{row}_sets"),
    ("sparsification area", "{row}_sparsification"),
    ("unseen object, AUROC", "{row}_auroc"),
    ("variance behind glass over the true one", "{row}_glass"),
)


def _shift(task: str, title: str, y: str) -> Exhibit:
    def panel(kind: str, name: str) -> Panel:
        series = tuple(
            Series(label, "severities", f"{method}_{kind}", {"task": task})
            for method, label in _LABELS.items()
        )
        return Panel("lines", series, name, "severity", y)

    return Exhibit(
        f"{task}-shift",
        title,
        "The log-loss of the same test pictures, clean and corrupted.",
        (panel("fog", "fog"), panel("gaussian_noise", "noise")),
    )


STUDY = Study(
    name="dense-uq",
    title="Dense tasks: error bars by pixel",
    question=(
        "A small U-Net segments pictures, or estimates depth with a variance at every pixel. Which "
        "of eight ways to its error bars predicts best, keeps doing so in fog and noise, tells "
        "pixels of an object it has never seen, and covers what it says? Scenes are ray-cast with "
        "exact labels and depths; CamVid is real."
    ),
    source=OVADIA,
    revision=1,
    compute="coset.studies.cells.dense_uq:compute",
    cells={
        "tiny": (
            _cell(_TINY, "segmentation", 8.0),
            _cell(_TINY, "depth", 8.0),
        ),
        "demo": (
            _cell(
                _BASE,
                "segmentation",
                28.0,
                train=100,
                batch=16,
                epochs=20,
                members=3,
                severities=[0, 5],
                methods=[],
            ),
        ),
        "small": (
            _cell(_BASE, "segmentation", 60.0),
            _cell(_BASE, "depth", 45.0),
            Cell("camvid", _CAMVID | {"methods": [m for m in _ALL if m != "kfac"]}, 45.0),
        ),
        "paper": (
            _cell(
                _CAMVID | {"widths": [64, 128, 256, 512], "epochs": 200},
                "camvid",
                200 * 3600.0,
                shrink=1,
                train=367,
                held=101,
                test=233,
            ),
        ),
    },
    seeds={"tiny": (0, 1, 2), "demo": (0, 1, 2), "small": (0, 1, 2), "paper": (0,)},
    shrunk=(
        "A U-Net of three levels (8, 16, 32 channels) on 24 scenes of 32 × 32 pixels, or on 24 "
        "frames of CamVid at 30 × 40 (blocks of 4 × 4 averaged, labels at their centres); 20 test "
        "scenes, 40 test frames; 40 epochs; severities 0, 2 and 5. The papers use ResNets on 32 × "
        "32 photographs and whole pictures; none of them looks at pixels. KFAC of all layers is "
        "left out for CamVid: 13,200 outputs a picture took more than the budget."
    ),
    claims=_claims(),
    controls=(
        Control(
            "three copies of one network",
            "an ensemble of copies predicts as the one (largest difference)",
            "control_copies",
            1e-5,
        ),
        Control(
            "targets drawn from the predictions",
            "a network is calibrated for targets drawn from its own predictions (calibration "
            "error of labels; coverage of 90 % intervals minus 0.9 of depths)",
            "control_own",
            0.05,
        ),
        Control(
            "temperature for such targets",
            "is one (less one)",
            "control_temperature",
            0.1,
        ),
        Control(
            "an object that is anywhere",
            "scores tell nothing of a shuffled mask (AUROC less one half, in standard errors)",
            "control_anywhere",
            4.5,
        ),
    ),
    exhibits=(
        _table(
            "segmentation",
            "Segmentation of ray-cast scenes",
            (*_OF_LABELS, ("unseen object, AUROC", "{row}_auroc")),
            "20 test scenes; the unseen object is a cone. Sets and temperature are from 20 "
            "held-out scenes.",
        ),
        _table(
            "depth",
            "Depth of ray-cast scenes",
            _OF_DEPTHS,
            "Log-depths with a mean and a variance a pixel. Behind a pane of glass the true "
            "distribution is known: two depths, each with probability one half.",
        ),
        _table(
            "camvid",
            "CamVid at 30 × 40",
            _OF_LABELS,
            "40 test frames, 11 classes; void pixels have no say.",
        ),
        _shift("segmentation", "Segmentation in fog and noise", "log-loss"),
        _shift("depth", "Depth in fog and noise", "log-loss of log-depth"),
        _shift("camvid", "CamVid in fog and noise", "log-loss"),
    ),
)
