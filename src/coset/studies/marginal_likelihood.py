"""Marginal likelihood: where the evidence of a linearised network must be taken."""

from typing import Any

from coset.studies.settings import ANTORAN, DIGITS
from coset.studies.study import (
    Cell,
    Claim,
    Control,
    Exhibit,
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
        ),
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
        ),
        "paper": _cells(
            _toy(200, 50, 5000),
            list(range(0, 5001, 50)),
            [1, 5, 20],
            (600.0, 3600.0, 600.0, 600.0, 36000.0),
            {"data": "mnist", "network": "resnet", "epochs": 90},
        ),
    },
    seeds={"tiny": (0, 1, 2), "demo": (0,), "small": (0, 1, 2), "paper": (0,)},
    shrunk=(
        "100 points of a Matérn curve (the paper's toy set is not public); for scales and depths "
        "60 points, 30 units in place of 50 and 600 epochs; for the Hessian a "
        "perceptron on 1,000 MNIST pictures of 14×14 pixels in place of a residual network."
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
    ),
)
