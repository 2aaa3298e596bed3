"""Re-basin and barriers: is the permutation that separates two networks stable under training?"""

from typing import Any

from coset.studies.settings import DIGITS, XIAO
from coset.studies.study import (
    Cell,
    Claim,
    Control,
    Exhibit,
    ExplorerExhibit,
    Panel,
    Series,
    Study,
)

_COUNTS = "poster, figure 3, left (784-512-10 perceptron on MNIST)"
_PATHS = "poster, figures 2 and 3, right"

_MOMENTUM: dict[str, Any] = {"optimiser": "sgd", "momentum": 0.9}
_SMALL: dict[str, Any] = {
    "data": "mnist",
    "train": 4000,
    "test": 1000,
    "side": 14,
    "network": "mlp",
    "hidden": [64],
    "batch": 64,
    "rate": 0.01,
    "decay": 0.0,
    **_MOMENTUM,
}


def _cells(
    base: dict[str, Any], counts: list[int], epochs: int, checks: list[int], seconds: float
) -> tuple[Cell, ...]:
    known = base | _MOMENTUM | {"decay": 0.0, "rate": 0.01}
    return (
        Cell(
            "transpositions",
            {**known, "part": "transpositions", "counts": counts, "epochs": epochs},
            seconds,
        ),
        Cell("paths", {**known, "part": "paths", "checks": checks, "points": 11}, seconds),
    )


def _pairs(base: dict[str, Any]) -> Cell:
    """Four small networks of two hidden layers: two permutations to look at for each pair."""
    small = {"hidden": [16, 16], "members": 4, "points": 21, "epochs": 20, "rate": 0.01}
    return Cell("pairs", base | _MOMENTUM | small | {"part": "pairs", "decay": 0.0}, 4.0)


_LOSSES = (0.3, 1.0)
"""What the colours of losses tell apart: an untrained network, of 2.3, is as yellow as one of 1."""

STUDY = Study(
    name="rebasin-barriers",
    title="Re-basin: training keeps the permutation between networks, and undoing it levels paths",
    question=(
        "A network and a copy with k transposed units are trained on the same data in other "
        "orders. Does matching find k transpositions afterwards, and does the loss barrier between "
        "the two grow with k? Along the line between independent networks, does the barrier "
        "vanish once one of them is re-based?"
    ),
    source=XIAO,
    revision=1,
    compute="coset.studies.cells.rebasin_barriers:compute",
    cells={
        "tiny": (
            *_cells(DIGITS | {"hidden": [32]}, [1, 16, 31], 4, [0, 1, 3], 2.0),
            _pairs(DIGITS),
        ),
        "demo": (
            *_cells(
                DIGITS | {"hidden": [64]},
                [1, 4, 8, 16, 24, 32, 40, 48, 56, 63],
                20,
                [0, 1, 2, 4, 8, 16, 24],
                3.0,
            ),
            _pairs(DIGITS),
        ),
        "small": (
            *_cells(
                _SMALL, [1, 4, 8, 16, 24, 32, 40, 48, 56, 63], 20, [0, 1, 2, 3, 5, 8, 12, 20], 7.0
            ),
            _pairs(_SMALL),
        ),
        "paper": _cells(
            {"data": "mnist", "network": "mlp", "hidden": [512], "batch": 64},
            list(range(1, 512, 10)),
            50,
            list(range(51)),
            20 * 3600.0,
        ),
    },
    seeds={
        "tiny": (0, 1, 2),
        "demo": (0, 1, 2),
        "small": (0, 1, 2, 3, 4),
        "paper": (0, 1, 2, 3, 4),
    },
    shrunk=(
        "MNIST at 14×14 pixels, 4,000 pictures, 64 hidden units in place of 512, ten values of k "
        "in place of fifty, 20 epochs in place of 50 at ten times the learning rate."
    ),
    learnt=(
        "Matching finds every planted permutation after training, in all five repetitions, and "
        "undoing it removes the barrier. Between networks that share nothing but the data, "
        "re-basin leaves a tenth of the barrier. Training moves the weights of transposed copies "
        "apart, never their order."
    ),
    claims=(
        Claim(
            "transpositions survive training",
            "After training, matching finds the planted number of transpositions: the mean "
            "difference is a small share of the units.",
            XIAO,
            _COUNTS,
            "difference_trained",
            side="below",
            bound=0.1,
            cells={"part": "transpositions"},
        ),
        Claim(
            "barriers grow with transpositions",
            "The midpoint barrier after training correlates with k.",
            XIAO,
            _COUNTS,
            "barrier_correlation",
            bound=0.5,
            cells={"part": "transpositions"},
        ),
        Claim(
            "undoing the permutation removes the barrier",
            "With the planted permutation undone the barrier is a small share of that without, at "
            "the largest k.",
            XIAO,
            _COUNTS,
            "barrier_undone_over_largest",
            side="below",
            bound=0.2,
            cells={"part": "transpositions"},
        ),
        Claim(
            "re-basin lowers barriers",
            "Between independently trained networks the barrier falls when one is re-based.",
            XIAO,
            _PATHS,
            "barrier_saved",
            bound=0.0,
            cells={"part": "paths"},
        ),
        Claim(
            "re-basin removes most of the barrier",
            "What is left of the barrier after re-basin is less than half.",
            XIAO,
            _PATHS,
            "barrier_left",
            side="below",
            bound=0.5,
            cells={"part": "paths"},
        ),
        Claim(
            "transpositions rise along the path",
            "Between independent networks the number of transpositions to the first rises along "
            "the path.",
            XIAO,
            _PATHS,
            "transpositions_rise",
            bound=0.8,
            cells={"part": "paths"},
        ),
    ),
    controls=(
        Control(
            "planted permutations are found",
            "before training, matching finds each planted number of transpositions exactly",
            "control_found",
            0.0,
        ),
        Control(
            "a scrambled copy",
            "a network matched to its own scrambled copy lies no distance apart (relative)",
            "control_scrambled",
            1e-8,
        ),
    ),
    exhibits=(
        Exhibit(
            "transpositions",
            "Transpositions, distance and barrier against the planted k",
            "Left: transpositions found after training lie on the diagonal. Middle: the distance "
            "in weights. Right: the barrier at the midpoint grows with k; with the permutation "
            "undone it stays flat. Bands: one standard deviation over the seeds.",
            (
                Panel(
                    "lines",
                    (
                        Series("after training", "counts", "found_trained"),
                        Series("permutation undone", "counts", "found_undone"),
                    ),
                    x="planted transpositions k",
                    y="transpositions found",
                    diagonal=True,
                ),
                Panel(
                    "lines",
                    (
                        Series("before training", "counts", "distance_start"),
                        Series("after training", "counts", "distance_trained"),
                        Series("permutation undone", "counts", "distance_undone"),
                    ),
                    x="planted transpositions k",
                    y="distance of the weights",
                ),
                Panel(
                    "lines",
                    (
                        Series("after training", "counts", "barrier_trained"),
                        Series("permutation undone", "counts", "barrier_undone"),
                    ),
                    x="planted transpositions k",
                    y="barrier at the midpoint (loss)",
                ),
            ),
            "figure 3",
        ),
        Exhibit(
            "paths",
            "Test loss between two independent networks, over training",
            "Each row is one epoch, each column a point between the two networks; losses above 1 "
            "are as yellow as 1. Left: between the two a barrier stays as both learn. "
            "Right: re-based, it is nearly gone.",
            (
                Panel(
                    "heat",
                    (Series("test loss", "map_plain_x", "map_plain"),),
                    "as trained",
                    "λ",
                    "epoch",
                    limits=_LOSSES,
                ),
                Panel(
                    "heat",
                    (Series("test loss", "map_rebased_x", "map_rebased"),),
                    "re-based",
                    "λ",
                    "epoch",
                    limits=_LOSSES,
                ),
            ),
            "figure 2",
        ),
        Exhibit(
            "along",
            "Along the path at the end of training",
            "Left: the number of transpositions to the first network rises to that of unrelated "
            "networks; re-based it stays near zero. Right: the test loss.",
            (
                Panel(
                    "lines",
                    (
                        Series("as trained", "points", "along_plain"),
                        Series("re-based", "points", "along_rebased"),
                    ),
                    x="λ",
                    y="transpositions to the first network",
                ),
                Panel(
                    "lines",
                    (
                        Series("as trained", "points", "loss_plain"),
                        Series("re-based", "points", "loss_rebased"),
                    ),
                    x="λ",
                    y="test loss",
                ),
            ),
            "figure 3, right",
        ),
        ExplorerExhibit(
            "pick",
            "pair",
            "Pick two networks: the path between them, and their permutation layer by layer",
            "Networks trained alone, from the first seed. The path: loss on the straight line "
            "from one network to the other. Move the second network by the permutation of one "
            "layer, or of both: either alone may help little. The squares: how units of one "
            "network correlate with those of the other on test pictures; re-based, units that do "
            "the same stand in the same place, on the diagonal.",
            (
                *("networks", "accuracies", "factors", "pairs", "points", "losses", "errors"),
                *("permutations", "alike"),
            ),
            {"part": "pairs"},
        ),
    ),
)
