"""Min-mass: how far trained networks are from the smallest network of the same function."""

from coset.studies.settings import DESCENT, LAURENT, OPTUNETS
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

_PROFILES = "poster, figure 'mass profiles of simple ConvNets' (OptuNet on MNIST)"

_DECAYS = (2e-4, 5e-3)


def _training(epochs: list[int], members: int, seconds: float) -> Cell:
    facts = {"part": "training", "checks": epochs, "members": members, "decays": list(_DECAYS)}
    return Cell("training", {**DESCENT, **facts}, seconds)


def _profile(parameters: dict[str, object], members: int, seconds: float) -> Cell:
    return Cell("profile", {**parameters, "part": "profile", "members": members}, seconds)


def _scalings(epochs: list[int], members: int, seconds: float) -> Cell:
    """Two hidden layers, so that the way to the smallest copy is not one step."""
    facts = {"part": "scalings", "checks": epochs, "members": members, "decay": _DECAYS[0]}
    return Cell("scalings", {**DESCENT, "hidden": [16, 16], **facts}, seconds)


_TRAINED = DESCENT | {"epochs": 30, "schedule": "halved", "decay": 2e-4}

_PUBLISHED = OPTUNETS | {
    "zoo": "checkpoints/mnist-optunet",
    "zoo_steps": 56_000,
    "zoo_pictures": 60_000,
}

STUDY = Study(
    name="min-mass",
    title="Mass: training does not find the smallest network of its function",
    question=(
        "ReLU units can be rescaled without a change of the function, and one choice of the scales "
        "has the smallest squared norm. Weight decay should lead there. How much larger are "
        "trained networks, how does the excess change along training, and why?"
    ),
    source=LAURENT,
    revision=1,
    compute="coset.studies.cells.min_mass:compute",
    cells={
        "tiny": (
            _profile(_TRAINED | {"epochs": 4}, 8, 1.0),
            _training([0, 1, 3], 4, 1.5),
            _scalings([0, 1], 2, 1.0),
        ),
        "demo": (
            _profile(_TRAINED, 48, 8.0),
            _training([0, 1, 2, 5, 10, 20, 40], 8, 11.0),
            _scalings([0, 1, 2, 5, 10, 20], 2, 3.0),
        ),
        "small": (
            _profile({**OPTUNETS, "test": 1000}, 128, 110.0),
            _training([0, 1, 2, 5, 10, 20, 40, 60], 8, 20.0),
            _scalings([0, 1, 2, 5, 10, 20, 40, 60], 4, 10.0),
        ),
        "paper": (
            _profile(_PUBLISHED, 8192, 600.0),
            Cell(
                "training",
                {**_PUBLISHED, "part": "training", "checks": list(range(61)), "members": 1000},
                60 * 3600.0,
            ),
        ),
    },
    seeds={"tiny": (0, 1, 2), "demo": (0, 1, 2), "small": (0, 1, 2), "paper": (0,)},
    shrunk=(
        "128 OptuNets a seed in place of 8,192, each trained by 1,500 steps of Adam in place of "
        "56,000 of gradient descent; "
        "training is followed on small perceptrons on the 8×8 digits, by plain gradient descent "
        "at a constant rate."
    ),
    learnt=(
        "No OptuNet comes near its smallest mass: the least excess of 384 is above a fifth, the "
        "mean is a half. The poster has 1.1 % and 27 %, after forty times as many steps and with "
        "weight decay all along. In small perceptrons the excess falls from 4 % to 0.04 %, as "
        "their weights grow, but the imbalance of units stays: at the usual decay 1.08 of that of "
        "the start is left, where its pull alone would leave 0.90. In a step the noise of the "
        "gradients along scalings is ten times the pull. With 25 times the decay the pull wins."
    ),
    claims=(
        Claim(
            "mean excess",
            "The mass of trained OptuNets exceeds the smallest by 27.2 % on average.",
            LAURENT,
            _PROFILES,
            "excess_mean",
            kind="size",
            published=27.2,
            tolerance=5.0,
            cells={"part": "profile"},
            scales=("paper",),
        ),
        Claim(
            "spread of the excess",
            "Its standard deviation over networks is 10.7 points.",
            LAURENT,
            _PROFILES,
            "excess_deviation",
            kind="size",
            published=10.7,
            tolerance=4.0,
            cells={"part": "profile"},
            scales=("paper",),
        ),
        Claim(
            "no network at its minimum",
            "No trained network has its smallest mass: the least excess is above zero.",
            LAURENT,
            _PROFILES,
            "excess_least",
            published=1.1,
            bound=0.2,
            cells={"part": "profile"},
        ),
        Claim(
            "large networks stay large",
            "Mass as trained and smallest mass go together over networks.",
            LAURENT,
            _PROFILES,
            "mass_correlation",
            kind="size",
            published=0.952,
            tolerance=0.05,
            cells={"part": "profile"},
            scales=("paper",),
        ),
        Claim(
            "decay is weak",
            "At the usual weight decay much of the imbalance of the start survives training, as "
            "the pull along scalings alone foretells.",
            LAURENT,
            "poster, section 'min-mass' (no number published)",
            "imbalance_surviving",
            bound=0.3,
            cells={"part": "training"},
        ),
        Claim(
            "noise is stronger than the pull",
            "Along scalings the noise of gradient descent is larger than the pull of weight decay.",
            LAURENT,
            "poster, section 'min-mass' (no number published)",
            "noise_over_pull",
            bound=1.0,
            cells={"part": "training"},
        ),
    ),
    controls=(
        Control(
            "two starts meet",
            "two random rescalings of one network have the same smallest network",
            "control_meeting",
            1e-6,
        ),
        Control(
            "nothing to gain at the minimum",
            "the smallest network has no excess of its own (percent)",
            "control_again",
            1e-6,
        ),
        Control(
            "invariance",
            "the gradient of the loss has no part along the scalings (share of its norm)",
            "control_along",
            1e-4,
        ),
    ),
    exhibits=(
        Exhibit(
            "profile",
            "Mass profiles",
            "Left: each network's mass as trained against the smallest mass of the same function; "
            "all dots lie below the diagonal, none on it. Right: the excess in percent.",
            (
                Panel(
                    "points",
                    (Series("", "mass", "minimum"),),
                    x="mass as trained",
                    y="smallest mass",
                    diagonal=True,
                ),
                Panel(
                    "histogram",
                    (Series("", "excess"),),
                    x="excess of mass (%)",
                    y="share of networks",
                    marks=(("published mean (OptuNet)", 27.2),),
                ),
            ),
            _PROFILES,
        ),
        Exhibit(
            "training",
            "Excess along training, for two weight decays",
            "Left: the mean excess after each epoch. Right: what is left of the imbalance of the "
            "units (squared norm of incoming minus outgoing weights), beside what the pull of "
            "weight decay alone would leave: exp(−2 · decay · rate · steps).",
            (
                Panel(
                    "lines",
                    tuple(
                        Series(f"decay {decay:g}", "checks", f"excess_{decay:g}")
                        for decay in _DECAYS
                    ),
                    x="epoch",
                    y="excess of mass (%)",
                    log="y",
                ),
                Panel(
                    "lines",
                    tuple(
                        Series(f"decay {decay:g}{word}", "checks", f"{quantity}_{decay:g}")
                        for decay in _DECAYS
                        for word, quantity in (
                            (", measured", "imbalance"),
                            (", expected", "expected"),
                        )
                    ),
                    x="epoch",
                    y="share of the imbalance left",
                ),
            ),
        ),
        Exhibit(
            "scalings",
            "Why training does not get there",
            "Left: the mass on the straight way to the smallest copy, in logarithms of scales, of "
            "a trained network and of two random rescalings of it: all three ways are convex, and "
            "the two random starts meet where the trained network ends. Right: what one step of "
            "training does along the scalings: the pull of weight decay lies below the noise of "
            "the gradients.",
            (
                Panel(
                    "lines",
                    (
                        Series("first random start", "way", "way_first"),
                        Series("second random start", "way", "way_second"),
                        Series("as trained", "way", "way_trained"),
                    ),
                    x="way to the smallest copy",
                    y="mass over the smallest",
                    marks=(("the smallest copy", 1.0),),
                    log="y",
                    first=True,
                ),
                Panel(
                    "lines",
                    (
                        Series("noise of the gradients", "checks", "along_noise"),
                        Series("pull of weight decay", "checks", "along_pull"),
                    ),
                    x="epoch",
                    y="change of the imbalance in a step",
                    log="y",
                ),
            ),
            "section 'min-mass'",
        ),
        TableExhibit(
            "numbers",
            "trained networks",
            "Batch norm divides scales out: there is no smallest network, and asking for one is "
            "refused (1: it was).",
            (("mass", "", {"part": "profile"}),),
            (
                ("mean excess (%)", "excess_mean"),
                ("deviation", "excess_deviation"),
                ("least", "excess_least"),
                ("most", "excess_most"),
                ("correlation", "mass_correlation"),
                ("batch norm refused", "batch_norm_refused"),
            ),
            _PROFILES,
            (("published (OptuNet, 8,192)", "27.2", "10.7", "1.1", "67.9", "0.952", "–"),),
        ),
    ),
)
