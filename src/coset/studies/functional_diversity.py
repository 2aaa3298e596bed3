"""Functional diversity: are independently trained networks different functions?"""

from coset.studies.settings import DIGITS, LAURENT, OPTUNETS, PERCEPTRONS
from coset.studies.study import (
    Cell,
    Claim,
    Control,
    Exhibit,
    Panel,
    Parameters,
    Series,
    Study,
    TableExhibit,
)

_FIGURE = "poster, figure 'functional diversity' (CIFAR-100, ResNet-18, 499,500 pairs)"

_DIGITS = DIGITS | {"held_out": [8, 9]}
"""8 and 9 are the outliers."""

_SETS: tuple[tuple[str, Parameters], ...] = (
    ("Fashion-MNIST", {"outliers": "fashion_mnist"}),
    ("KMNIST", {"outliers": "kmnist"}),
    ("notMNIST", {"outliers": "notmnist"}),
    ("classes held out", {"held_out": _DIGITS["held_out"]}),
)
"""Unknown data; at each scale some of them."""

_CAUSE: Parameters = PERCEPTRONS | {
    "outliers": "fashion_mnist",
    "members": 100,
    "cause": "trained to the end",
}
"""Are OptuNets alike or unlike because many of them have only begun to learn?"""

STUDY = Study(
    name="functional-diversity",
    title="Functional diversity: no two networks are the same function",
    question=(
        "Every pair of independently trained networks is compared by the mutual information of "
        "its two predictions, on test data and on data of another kind. If training collapsed to "
        "one function, some pairs would agree everywhere; if diversity on known data foretold "
        "diversity on unknown data, the two would be correlated."
    ),
    source=LAURENT,
    revision=1,
    compute="coset.studies.cells.functional_diversity:compute",
    cells={
        "tiny": (Cell("pairs", {**_DIGITS, "members": 6, "epochs": 6}, 1.0),),
        "demo": (Cell("pairs", {**_DIGITS, "members": 40, "epochs": 20}, 5.0),),
        "small": (
            *(
                Cell(name, {**OPTUNETS, "test": 1000, "outliers": name, "members": 128}, 12.0)
                for name in ("fashion_mnist", "kmnist", "notmnist")
            ),
            Cell("cause", _CAUSE, 20.0),
        ),
        "paper": (
            Cell(
                "pairs",
                {
                    "data": "cifar100",
                    "outliers": "svhn",
                    "network": "resnet18",
                    "zoo": "checkpoints/cifar100-resnet18",
                    "members": 1000,
                },
                40 * 3600.0,
            ),
        ),
    },
    seeds={"tiny": (0, 1, 2), "demo": (0, 1, 2), "small": (0, 1, 2), "paper": (0,)},
    shrunk=(
        "OptuNets on MNIST against Fashion-MNIST, KMNIST and notMNIST stand for ResNet-18 on "
        "CIFAR-100 against SVHN; "
        "128 networks a seed (8,128 pairs), 1,000 pictures of each set."
    ),
    learnt=(
        "No pair is functionally equal, and pairs differ more on pictures of another kind than on "
        "test pictures, as published. Not reproduced: that diversity of OptuNets varies more on "
        "unknown data than on test data; its coefficient of variation is 0.8 of that on test "
        "data (the poster: 8 times). Cause looked for: networks that have learnt little. A zoo "
        "of 1,500 steps is right on six pictures of ten, and its pairs differ on test data by how "
        "far they have come. Perceptrons trained to the end vary 1.9 times as much on unknown "
        "data (95 % interval 1.5 to 2.2), as claimed."
    ),
    claims=(
        Claim(
            "no collapse",
            "No pair of networks is functionally equal: the least diverse pair has most of the "
            "mean diversity.",
            LAURENT,
            _FIGURE,
            "least_over_mean",
            published=0.947,
            side="above",
            bound=0.1,
        ),
        Claim(
            "more diverse on unknown data",
            "Pairs differ more on data of another kind than on test data.",
            LAURENT,
            _FIGURE,
            "outlier_over_inlier",
            published=2.11,
            side="above",
            bound=1.0,
        ),
        Claim(
            "homogeneous on known data",
            "Diversity varies far less between pairs on test data than on unknown data: the ratio "
            "of the coefficients of variation is above one.",
            LAURENT,
            _FIGURE,
            "variation_ratio",
            published=8.0,
            side="above",
            bound=1.0,
        ),
        Claim(
            "weak correlation",
            "Diversity on known data does not foretell diversity on unknown data.",
            LAURENT,
            _FIGURE,
            "pearson",
            side="below",
            bound=0.5,
        ),
        Claim(
            "size of the diversity on known data",
            "The mean mutual information of a pair on test data is 0.1075 nats.",
            LAURENT,
            _FIGURE,
            "inlier_mean",
            kind="size",
            published=0.1075,
            tolerance=0.011,
            scales=("paper",),
        ),
        Claim(
            "size of the diversity on unknown data",
            "The mean mutual information of a pair on SVHN is 0.227 nats.",
            LAURENT,
            _FIGURE,
            "outlier_mean",
            kind="size",
            published=0.227,
            tolerance=0.023,
            scales=("paper",),
        ),
    ),
    controls=(
        Control(
            "identical members",
            "a network and its copy have no diversity",
            "control_identical",
            1e-7,
        ),
        Control(
            "planted symmetry copy",
            "a network moved by a random symmetry has no diversity to itself",
            "control_moved",
            1e-6,
        ),
    ),
    exhibits=(
        TableExhibit(
            "numbers",
            "all pairs, against",
            "Mutual information of a pair in nats, and its coefficient of variation over pairs. "
            "The error of the correlation is a bootstrap over networks, as pairs share them. The "
            "last row looks for the cause where a claim failed: perceptrons that were trained to "
            "the end, while many OptuNets have only begun to learn.",
            (
                *((label, "", where) for label, where in _SETS),
                ("Fashion-MNIST, perceptrons", "", {"cause": _CAUSE["cause"]}),
            ),
            (
                ("test data", "inlier_mean"),
                ("unknown data", "outlier_mean"),
                ("variation, test", "inlier_variation"),
                ("variation, unknown", "outlier_variation"),
                ("Pearson", "pearson"),
                ("its error", "pearson_standard_error"),
                ("Spearman", "spearman"),
                ("least over mean", "least_over_mean"),
                ("accuracy", "accuracy"),
                ("identical pair", "control_identical"),
            ),
            _FIGURE,
            (
                (
                    "published: SVHN",
                    "0.1075",
                    "0.227",
                    "0.013",
                    "0.105",
                    "weak",
                    "–",
                    "–",
                    "0.947",
                    "–",
                    "–",
                ),
            ),
        ),
        Exhibit(
            "pairs",
            "Diversity of all pairs",
            "Left: mutual information of each pair of networks on test data and on unknown data; "
            "none is near zero. Right: the joint density of the same pairs, unknown data being "
            "Fashion-MNIST or held-out classes: if one foretold the other, they would lie on a "
            "line.",
            (
                Panel(
                    "histogram",
                    (
                        Series("test data", "pairs_inlier"),
                        *(Series(label, "pairs_outlier", cells=where) for label, where in _SETS),
                    ),
                    x="mutual information of a pair (nats)",
                    y="share of pairs",
                ),
                Panel(
                    "density",
                    tuple(
                        Series("", "pairs_inlier", "pairs_outlier", where)
                        for _, where in (_SETS[0], _SETS[-1])
                    ),
                    x="on test data (nats)",
                    y="on unknown data (nats)",
                ),
            ),
            _FIGURE,
        ),
    ),
)
