"""Order in training: do units change places while a network learns?"""

from coset.studies.settings import DESCENT, LAURENT
from coset.studies.study import Cell, Claim, Control, Exhibit, Panel, Series, Study

_SECTION = "section 5.2, as its reviews tell (no number published)"


def _cell(checks: list[int], members: int, seconds: float) -> Cell:
    return Cell("order", {**DESCENT, "checks": checks, "members": members}, seconds)


STUDY = Study(
    name="order-in-training",
    title="Order of units: training changes places early and settles",
    question=(
        "The canonical order sorts the units of each layer. How often does a unit's place change "
        "from one check of training to the next, how many swaps lead from the first order to the "
        "present one, and when is the last order reached?"
    ),
    source=LAURENT,
    revision=1,
    compute="coset.studies.cells.order_in_training:compute",
    cells={
        "tiny": (_cell([0, 1, 2, 4], 4, 1.0),),
        "demo": (_cell([0, 1, 2, 3, 5, 8, 12, 18, 26, 36], 16, 5.0),),
        "small": (_cell([0, 1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 130], 32, 22.0),),
        "paper": (
            Cell(
                "order",
                {
                    "data": "cifar10",
                    "network": "resnet20",
                    "members": 50,
                    "checks": list(range(201)),
                },
                400 * 3600.0,
            ),
        ),
    },
    seeds={"tiny": (0, 1, 2), "demo": (0, 1, 2), "small": (0, 1, 2), "paper": (0,)},
    shrunk=(
        "Perceptrons with 16 hidden units on the 8×8 digits by plain gradient descent; the "
        "paper's protocol is not known to us."
    ),
    learnt=(
        "Units change places mostly in the first ten epochs, and by then the order is more than "
        "half as far from the first as a random one. Single swaps go on: in more than a quarter "
        "of the networks one still happens before the last check."
    ),
    claims=(
        Claim(
            "units change places",
            "Training permutes units: the last order differs from the first.",
            LAURENT,
            _SECTION,
            "transpositions_last",
            bound=0.5,
        ),
        Claim(
            "most changes are early",
            "Per epoch, places change more often in the first checks than in the last.",
            LAURENT,
            _SECTION,
            "early_over_late",
            bound=1.0,
        ),
    ),
    controls=(
        Control(
            "a check against itself",
            "the order of the same weights has not changed",
            "control_same",
            0.0,
        ),
        Control(
            "a scrambled copy",
            "a network and a copy moved by a random symmetry have one canonical form (largest "
            "difference of a weight)",
            "control_scrambled",
            1e-5,
        ),
    ),
    exhibits=(
        Exhibit(
            "changes",
            "How often units change places",
            "Left: the share of units whose place changed since the check before, per epoch. "
            "Right: swaps from the order of the start. The dashed line is what a random order of "
            "16 units would take.",
            (
                Panel(
                    "lines",
                    (Series("", "later_checks", "changed_per_epoch"),),
                    x="epoch",
                    y="share of units, per epoch",
                    log="x",
                ),
                Panel(
                    "lines",
                    (Series("", "checks", "transpositions"),),
                    x="epoch",
                    y="swaps from the first order",
                    levels=(("random order", 12.62),),
                ),
            ),
            "Laurent et al., section 5.2",
        ),
        Exhibit(
            "final",
            "When the order is final",
            "For each network the check from which on the order is that of the end: most networks "
            "keep exchanging a pair until late.",
            (
                Panel(
                    "histogram",
                    (Series("", "final"),),
                    x="epoch from which on the order is final",
                    y="share of networks",
                ),
            ),
        ),
    ),
)
