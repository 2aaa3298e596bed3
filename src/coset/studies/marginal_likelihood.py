"""Marginal likelihood: where the evidence of a linearised network must be taken."""

from typing import Any

from coset.studies.settings import ANTORAN, DIGITS
from coset.studies.study import (
    Cell,
    Claim,
    Control,
    Exhibit,
    ExplorerExhibit,
    Panel,
    Series,
    Study,
    TableExhibit,
)

_TOY = "slides 13–17 (one-dimensional toy, 1-50-50-1 with batch norm)"
_DIVERGENCE = "figure 5"
_SCALE = "proposition 3"
_NO_MODE = "section on normalised networks"
_DEPTH = "Occam's razor"
_HESSIAN = "slides, where to evaluate the Hessian"

_ARCHITECTURES = "slides, table 1 (six architectures of some 46,000 weights)"
_RESIDUAL = "slides, table 2 (ResNet-50 on CIFAR-10)"

PRECISIONS = (100.0, 10.0, 5.0, 1.0, 0.1)
"""Fixed prior precisions of the slides."""


def _cells(
    base: dict[str, Any],
    checks: list[int],
    depths: list[int],
    seconds: tuple[float, ...],
    classifier: dict[str, Any],
    less: dict[str, Any] | None = None,
) -> tuple[Cell, ...]:
    """The grid; the cells of scales and depths, which fit many times, on ``less``."""
    fewer = base if less is None else less
    return (
        Cell("toy", {**base, "part": "toy", "precisions": list(PRECISIONS)}, seconds[0]),
        Cell("training", {**base, "part": "training", "checks": checks}, seconds[1]),
        Cell(
            "scale", {**fewer, "part": "scale", "factors": [0.1, 0.3, 1.0, 3.0, 10.0]}, seconds[2]
        ),
        Cell("depth", {**fewer, "part": "depth", "depths": depths}, seconds[3]),
        Cell("hessian", {**classifier, "part": "hessian"}, seconds[4]),
    )


def _toy(points: int, width: int, epochs: int) -> dict[str, Any]:
    return {"points": points, "width": width, "epochs": epochs, "noise": 0.2}


_MNIST: dict[str, Any] = {
    "data": "mnist",
    "train": 1000,
    "test": 1000,
    "side": 14,
    "network": "mlp",
    "hidden": [48],
    "optimiser": "adam",
    "rate": 0.01,
    "batch": 64,
    "decay": 1e-4,
    "epochs": 30,
}

_NETWORKS: dict[str, dict[str, Any]] = {
    "transformer": {"points": 24, "widths": [32]},
    "cnn": {"widths": [12, 24, 48]},
    "resnet": {"depths": [1, 1], "widths": [12, 24]},
    "preresnet": {"depths": [1, 1], "widths": [12, 24]},
    "fixup": {"depths": [1, 1], "widths": [12, 24]},
    "unet": {"widths": [8, 16], "train": 60, "test": 60},
}
"""The architectures of table 1, by the name of their cells."""

_TITLES = {
    "transformer": "transformer",
    "cnn": "CNN",
    "resnet": "ResNet",
    "preresnet": "Pre-ResNet",
    "fixup": "FixUp",
    "unet": "U-Net",
}

_TRAINING: dict[str, Any] = {
    "optimiser": "adam",
    "rate": 0.005,
    "schedule": "cosine",
    "batch": 50,
    "decay": 1e-5,
    "epochs": 30,
}


def _architectures(base: dict[str, Any], names: dict[str, dict[str, Any]]) -> tuple[Cell, ...]:
    """A cell of table 1 for each architecture."""
    seconds = {"cnn": 6.0, "unet": 20.0}
    return tuple(
        Cell(
            f"architecture {name}",
            {**_TRAINING, **base, **own, "part": "architectures", "network": name},
            seconds.get(name, 16.0),
        )
        for name, own in names.items()
    )


def _residual(
    base: dict[str, Any], depths: list[int], widths: list[int], networks: tuple[str, ...]
) -> tuple[Cell, ...]:
    """A cell of table 2 for each residual network."""
    own = {"part": "residual", "depths": depths, "widths": widths}
    return tuple(
        Cell(f"residual {name}", {**_TRAINING, **base, **own, "network": name}, 25.0)
        for name in networks
    )


_TINY: dict[str, Any] = {"data": "digits", "train": 40, "test": 40, "epochs": 2}
_CLOUDS: dict[str, dict[str, Any]] = {
    "transformer": {"points": 6, "widths": [4]},
    "cnn": {"widths": [3]},
    "unet": {"widths": [2], "train": 10, "test": 10},
}

STUDY = Study(
    name="marginal-likelihood",
    title="Marginal likelihood: the evidence must be taken at the mode of the linearised model",
    question=(
        "The Laplace evidence chooses the prior precision without validation data. Taken at the "
        "network's own weights θ~ it assumes a mode that is none; taken at the mode θ* of the "
        "linearised model it is exact. How do the choices differ, does the difference vanish with "
        "training, what do scales that a normalisation divides out do to it, and which depth does "
        "the evidence choose?"
    ),
    source=ANTORAN,
    revision=1,
    compute="coset.studies.cells.marginal_likelihood:compute",
    cells={
        "tiny": _cells(
            _toy(24, 8, 60),
            [0, 20, 60],
            [1, 3],
            (1.5, 1.5, 1.0, 1.0, 3.0),
            DIGITS | {"train": 120, "hidden": [6], "epochs": 10},
        )
        + _architectures(_TINY, _CLOUDS)
        + _residual(_TINY, [1], [3], ("fixup",)),
        "demo": _cells(
            _toy(60, 30, 600),
            [0, 50, 100, 200, 400, 800],
            [1, 5, 20],
            (4.0, 6.0, 14.0, 17.0, 5.0),
            DIGITS | {"train": 300, "hidden": [16], "epochs": 30},
        ),
        "small": _cells(
            _toy(100, 50, 1500),
            [0, 50, 100, 200, 400, 800, 1600],
            [1, 5, 20],
            (15.0, 25.0, 14.0, 17.0, 8.0),
            _MNIST,
            _toy(60, 30, 600),
        )
        + _architectures({"data": "mnist", "train": 400, "test": 1000, "side": 14}, _NETWORKS)
        + _residual(
            {"data": "cifar10", "train": 250, "test": 500, "side": 16},
            [2, 2, 2],
            [8, 16, 32],
            ("resnet", "fixup"),
        ),
        "paper": _cells(
            _toy(200, 50, 5000),
            list(range(0, 5001, 50)),
            [1, 5, 20],
            (600.0, 3600.0, 600.0, 600.0, 36000.0),
            {"data": "mnist", "network": "resnet", "epochs": 90},
        )
        + _architectures({"data": "mnist"}, _NETWORKS)
        + _residual({"data": "cifar10"}, [3, 4, 6, 3], [64, 128, 256, 512], ("resnet", "fixup")),
    },
    seeds={"tiny": (0, 1, 2), "demo": (0,), "small": (0, 1, 2), "paper": (0,)},
    shrunk=(
        "100 points of a Matérn curve (the paper's toy set is not public); for scales and depths "
        "60 points, 30 units in place of 50 and 600 epochs; for the Hessian a "
        "perceptron on 1,000 MNIST pictures of 14×14 pixels in place of a residual network. "
        "Table 1: networks of 6,000 to 26,000 weights on 400 MNIST pictures of 14×14 pixels, "
        "clouds of 24 points drawn from their ink, and, for the U-Net, 60 pictures with noise of "
        "0.5 to take off; Kronecker factors in place of the exact curvature, one precision a "
        "layer for several. Table 2: a ResNet of 44,000 weights (14 layers) in place of ResNet-50, "
        "on 250 CIFAR-10 pictures of 16×16 pixels. Larger ones did not fit the few minutes of one "
        "core that were there."
    ),
    claims=(
        Claim(
            "θ~ chooses too small a precision",
            "The evidence at the network's weights chooses a smaller prior precision than at the "
            "mode of the linearised model (decades between them).",
            ANTORAN,
            _TOY,
            "decades_between",
            bound=0.0,
            cells={"part": "toy"},
        ),
        Claim(
            "θ~ gives too wide error bars",
            "Its error bars are wider: ratio of mean standard deviations.",
            ANTORAN,
            _TOY,
            "width_ratio",
            bound=1.0,
            cells={"part": "toy"},
        ),
        Claim(
            "the difference does not vanish with training",
            "The divergence between the two predictions at the end of training is a large part of "
            "its largest value.",
            ANTORAN,
            _DIVERGENCE,
            "divergence_left",
            bound=0.25,
            cells={"part": "training"},
        ),
        Claim(
            "one precision depends on an arbitrary scale",
            "With one prior precision, predictive standard deviations change with the scale k of "
            "weights in front of a normalisation (largest over smallest).",
            ANTORAN,
            _SCALE,
            "single_ratio",
            published=1.44,
            bound=1.02,
            cells={"part": "scale"},
        ),
        Claim(
            "a precision for each scale does not",
            "With a precision of its own for each normalised group they do not change.",
            ANTORAN,
            _SCALE,
            "multiple_ratio",
            kind="size",
            published=1.0,
            tolerance=0.01,
            cells={"part": "scale"},
        ),
        Claim(
            "a normalised network has no mode",
            "Shrinking normalised weights lowers the loss of the network without end, while that "
            "of the linearised model has a minimum: decades of k over which the first still falls.",
            ANTORAN,
            _NO_MODE,
            "network_still_falls",
            bound=0.5,
            cells={"part": "scale"},
        ),
        Claim(
            "the linearised model has one",
            "The loss of the linearised model rises on both sides of its minimum.",
            ANTORAN,
            _NO_MODE,
            "linear_has_minimum",
            bound=0.5,
            cells={"part": "scale"},
        ),
        Claim(
            "sampled weights predict worse",
            "Sampling weights predicts worse than the linearised model (log loss, difference).",
            ANTORAN,
            "sampled against linearised predictions",
            "sampled_minus_linearised",
            bound=0.0,
            cells={"part": "toy"},
        ),
        Claim(
            "the deepest network is not chosen",
            "The evidence prefers a shallower network over the one with the most layers (nats).",
            ANTORAN,
            _DEPTH,
            "evidence_of_best_over_deepest",
            bound=0.0,
            cells={"part": "depth"},
        ),
        Claim(
            "classes: the mean at θ* helps",
            "For a classifier, too, evidence at θ* in place of θ~ lowers the test log loss, the "
            "output Hessian being taken at θ~ both times.",
            ANTORAN,
            _HESSIAN,
            "gained_by_mean",
            bound=0.0,
            cells={"part": "hessian"},
        ),
        Claim(
            "classes: most of the gain is the mean's",
            "Moving the Hessian to θ* as well gains less than moving the mean did (difference of "
            "the two gains in log loss).",
            ANTORAN,
            _HESSIAN,
            "mean_over_hessian",
            bound=0.0,
            cells={"part": "hessian"},
        ),
        *(
            Claim(
                f"table 1: {title}, one precision",
                "The test log loss with one precision is lower where the evidence is taken at θ* "
                "than at θ~ (difference).",
                ANTORAN,
                _ARCHITECTURES,
                "gained_single",
                bound=0.0,
                cells={"part": "architectures", "network": name},
            )
            for name, title in _TITLES.items()
            if name != "unet"
        ),
        *(
            Claim(
                f"table 1: {_TITLES[name]}, several precisions",
                "The same with several precisions.",
                ANTORAN,
                _ARCHITECTURES,
                "gained_multiple",
                bound=0.0,
                cells={"part": "architectures", "network": name},
            )
            for name in ("resnet", "unet")
        ),
        Claim(
            "table 1: ten times for a CNN",
            "The log loss of a CNN is ten times lower at θ* (decades between). Only networks that "
            "generalise as well as those of the paper can show it.",
            ANTORAN,
            _ARCHITECTURES,
            "decades_single",
            kind="size",
            published=1.0,
            tolerance=0.3,
            cells={"part": "architectures", "network": "cnn"},
            scales=("paper",),
        ),
        *(
            Claim(
                f"table 2: {_TITLES[name]}, {better} below {worse}",
                f"With one precision the test log loss of evidence at {better} is lower than that "
                f"at {worse} (difference).",
                ANTORAN,
                _RESIDUAL,
                quantity,
                bound=0.0,
                cells={"part": "residual", "network": name},
            )
            for name in ("resnet", "fixup")
            for better, worse, quantity in (
                ("θ* simple", "θ* full", "simple_below_full_single"),
                ("θ* full", "θ~", "full_below_weights_single"),
            )
        ),
        Claim(
            "table 2: FixUp gains from several precisions",
            "At θ* of the simple model several precisions give FixUp a lower log loss than one.",
            ANTORAN,
            _RESIDUAL,
            "multiple_below_single",
            bound=0.0,
            cells={"part": "residual", "network": "fixup"},
        ),
    ),
    controls=(
        Control(
            "exact evidence",
            "for a Gaussian likelihood the evidence at θ* is that of the equivalent Gaussian "
            "process (relative difference)",
            "control_evidence",
            1e-6,
        ),
        Control(
            "rescaled copies",
            "rescaling weights in front of a normalisation leaves the outputs as they are",
            "control_rescaled",
            1e-4,
        ),
        Control(
            "classes kept",
            "the linearised prediction names the class that the network names (share that differs)",
            "control_classes",
            0.005,
        ),
    ),
    exhibits=(
        Exhibit(
            "bands",
            "One network, two choices of the prior precision",
            "A network's fit to points with a gap, and two standard deviations of the linearised "
            "prediction, noise included. Left: the prior precision of the largest evidence at the "
            "mode θ* of the linearised model. Right: at the network's own weights θ~. Of the first "
            "seed; predictions outside the window are cut off.",
            tuple(
                Panel(
                    "lines",
                    (
                        Series("prediction", "places", "mean", band=f"band_{name}"),
                        Series("data", "seen_x", "seen_y", dots=True),
                    ),
                    f"precision chosen at {label}",
                    "x",
                    "y",
                    first=True,
                    limits=(-8.0, 8.0),
                )
                for name, label in (("tangent", "θ*"), ("network", "θ~"))
            ),
            _TOY,
        ),
        ExplorerExhibit(
            "precision",
            "evidence",
            "Move the prior precision, and watch the error bars and the evidence",
            "The same network and data, of the first seed. Left: the linearised prediction with "
            "two standard deviations, noise left out. Right: the evidence of each precision, at "
            "the mode θ* of the linearised model and at the network's own weights θ~; each has "
            "its own maximum.",
            (
                *("grid", "evidence_tangent", "evidence_network", "chosen_tangent"),
                *("chosen_network", "places", "mean", "seen_x", "seen_y"),
                *("std_tangent", "std_network", *(f"std_{value:g}" for value in PRECISIONS)),
            ),
            {"part": "toy"},
            _TOY,
        ),
        Exhibit(
            "toy",
            "The choice of the evidence, at θ~ and at θ*",
            "Left: the evidence against the prior precision, taken at the two points; each has "
            "its own maximum. Middle: one standard deviation of the prediction for both choices; "
            "θ~ gives wider bars. Right: standard deviations for fixed precisions. Of the first "
            "seed, as each has its own data.",
            (
                Panel(
                    "lines",
                    (
                        Series("at θ*", "grid", "evidence_tangent"),
                        Series("at θ~", "grid", "evidence_network"),
                    ),
                    x="prior precision",
                    y="log evidence",
                    log="x",
                    first=True,
                    limits=(-600.0, 50.0),
                ),
                Panel(
                    "lines",
                    (
                        Series("chosen at θ*", "places", "std_tangent"),
                        Series("chosen at θ~", "places", "std_network"),
                    ),
                    x="x",
                    y="standard deviation",
                    first=True,
                ),
                Panel(
                    "lines",
                    tuple(
                        Series(f"precision {value:g}", "places", f"std_{value:g}")
                        for value in PRECISIONS
                    ),
                    x="x",
                    y="standard deviation",
                    log="y",
                    first=True,
                ),
            ),
            _TOY,
        ),
        Exhibit(
            "training",
            "Through training",
            "Left: the divergence between the predictions of the two choices (Wasserstein, mean "
            "over inputs) does not vanish. Right: the precisions chosen.",
            (
                Panel(
                    "lines",
                    (Series("", "checks", "divergence"),),
                    x="epoch",
                    y="divergence",
                ),
                Panel(
                    "lines",
                    (
                        Series("at θ*", "checks", "chosen_tangent"),
                        Series("at θ~", "checks", "chosen_network"),
                    ),
                    x="epoch",
                    y="precision chosen",
                    log="y",
                ),
            ),
            _DIVERGENCE,
        ),
        Exhibit(
            "scale",
            "Scales that a normalisation divides out",
            "Left: mean predictive standard deviation against the arbitrary scale k; with one "
            "precision it depends on k, with one for each normalised group it does not. Right: "
            "the loss with its penalty along k, above its least value: the network's falls "
            "without end, the linearised model's has a minimum. Of the first seed.",
            (
                Panel(
                    "lines",
                    (
                        Series("one precision", "factors", "std_single"),
                        Series("one for each group", "factors", "std_multiple"),
                    ),
                    x="scale k",
                    y="mean standard deviation",
                    log="x",
                    first=True,
                ),
                Panel(
                    "lines",
                    (
                        Series("network", "shrinkings", "loss_network"),
                        Series("linearised", "shrinkings", "loss_linear"),
                    ),
                    x="scale k",
                    y="loss and penalty, above the least",
                    log="xy",
                    first=True,
                ),
            ),
            f"{_SCALE}; {_NO_MODE}",
        ),
        Exhibit(
            "depth",
            "Which depth does the evidence choose?",
            "Left: log evidence by the number of hidden layers. Right: the log loss on test points "
            "of the same networks, which the evidence has not seen: what it ranks last should lose "
            "most.",
            (
                Panel(
                    "bars",
                    (Series("", "layers", "evidence"),),
                    x="hidden layers",
                    y="log evidence",
                ),
                Panel(
                    "bars",
                    (Series("", "layers", "losses"),),
                    x="hidden layers",
                    y="test log loss",
                ),
            ),
            _DEPTH,
        ),
        Exhibit(
            "prior",
            "The prior of the linearised model",
            "Left: draws of functions from the prior of the linearised model of the shallowest "
            "network, at the precision that the evidence chose; of the first seed. Right: its "
            "kernel, the mean over the seeds.",
            (
                Panel(
                    "lines",
                    tuple(Series("", "places", f"prior_{k}") for k in range(5)),
                    x="x",
                    y="draws from the prior",
                    first=True,
                ),
                Panel("heat", (Series("kernel", "kernel_x", "kernel"),), x="x", y="x′"),
            ),
            "prior draws and kernel",
        ),
        TableExhibit(
            "sampled",
            "test log loss",
            "One posterior, two ways to predict. The posterior of the linearised model belongs to "
            "the linearised model: sampled weights in the network itself leave its data.",
            (("toy curve", "", {"part": "toy"}),),
            (
                ("linearised", "loss_linearised"),
                ("sampled weights", "loss_sampled"),
                ("difference", "sampled_minus_linearised"),
            ),
            "sampled against linearised predictions",
        ),
        Exhibit(
            "hessian",
            "Where the evidence of a classifier is taken",
            "Test log loss of a perceptron's linearised predictions, for the mean of the evidence "
            "and its output Hessian H at the network's weights θ~ or at the mode θ* of the "
            "linearised model; one precision, Kronecker factors.",
            (Panel("bars", (Series("", "points", "loss_points"),), y="test log loss"),),
            _HESSIAN,
        ),
        TableExhibit(
            "architectures",
            "architecture",
            "Test log loss of linearised predictions, by where the evidence is taken and by how "
            "many precisions it chooses; of the U-Net for each pixel. The network alone does not "
            "depend on either.",
            tuple(
                (title, "", {"part": "architectures", "network": name})
                for name, title in _TITLES.items()
            ),
            (
                ("θ*, one", "loss_mode_single"),
                ("θ*, several", "loss_mode_multiple"),
                ("θ~, one", "loss_weights_single"),
                ("θ~, several", "loss_weights_multiple"),
                ("network alone", "loss_network"),
            ),
            _ARCHITECTURES,
            (
                (
                    "published: transformer",
                    *("0.162 ± 0.042", "0.162 ± 0.042", "0.310 ± 0.060"),
                    "0.162 ± 0.042",
                    "–",
                ),
                (
                    "published: CNN",
                    *("0.025 ± 0.000", "0.025 ± 0.000", "0.253 ± 0.001"),
                    "0.205 ± 0.002",
                    "–",
                ),
                (
                    "published: ResNet",
                    *("0.017 ± 0.000", "0.016 ± 0.001", "0.252 ± 0.006"),
                    "0.236 ± 0.005",
                    "–",
                ),
                (
                    "published: Pre-ResNet",
                    *("0.017 ± 0.000", "0.016 ± 0.000", "0.220 ± 0.004"),
                    "0.239 ± 0.004",
                    "–",
                ),
                (
                    "published: FixUp",
                    *("0.055 ± 0.006", "0.061 ± 0.005", "0.153 ± 0.021"),
                    "0.200 ± 0.018",
                    "–",
                ),
                ("published: U-Net", "–", "-2.240 ± 0.027", "–", "-1.703 ± 0.023", "–"),
            ),
        ),
        TableExhibit(
            "residual",
            "residual network",
            "Test log loss on CIFAR-10, by the tangent model whose mode θ* the evidence is taken "
            "at: the simple one, J θ, or the full one, f + J (θ − θ~). The published numbers are "
            "another function of the loss, probably its decimal logarithm: orders compare, sizes "
            "do not.",
            tuple(
                (_TITLES[name], "", {"part": "residual", "network": name})
                for name in ("resnet", "fixup")
            ),
            (
                ("θ* simple, one", "loss_simple_single"),
                ("θ* simple, several", "loss_simple_multiple"),
                ("θ* full, one", "loss_full_single"),
                ("θ* full, several", "loss_full_multiple"),
                ("θ~, one", "loss_weights_single"),
                ("θ~, several", "loss_weights_multiple"),
                ("network alone", "loss_network"),
            ),
            _RESIDUAL,
            (
                (
                    "published: ResNet",
                    *("-0.773 ± 0.004", "-0.778 ± 0.003", "-0.645 ± 0.005", "-0.639 ± 0.009"),
                    *("-0.269 ± 0.004", "-0.271 ± 0.004", "–"),
                ),
                (
                    "published: FixUp",
                    *("-0.744 ± 0.000", "-0.801 ± 0.000", "-0.563 ± 0.002", "-0.641 ± 0.001"),
                    *("-0.387 ± 0.000", "-0.437 ± 0.000", "–"),
                ),
            ),
        ),
    ),
)
