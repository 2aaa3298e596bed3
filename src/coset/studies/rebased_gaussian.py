"""The re-based Gaussian: does one Gaussian describe a posterior once permutations are removed?"""

from typing import Any

from coset.studies.settings import XIAO
from coset.studies.study import (
    Cell,
    Claim,
    Control,
    Exhibit,
    ExplorerExhibit,
    Panel,
    Parameters,
    Series,
    Study,
    TableExhibit,
)

_TABLE = "poster, table 1 (784-512-10 perceptron on MNIST, one chain of 9,900 states)"
_MODES = "poster, figure 4"
_PRUNING = "poster, figure 5"

_ROWS = (
    ("HMC, samples", "hmc_samples"),
    ("HMC, q_d: not aligned", "hmc_direct"),
    ("HMC, q_r: aligned to the first", "hmc_first"),
    ("HMC, aligned to the mean", "hmc_mean"),
    ("HMC, aligned by density", "hmc_density"),
    ("HMC, aligned by density, covariance", "hmc_covariance"),
    ("ensemble, samples", "ensemble_samples"),
    ("ensemble, q_d: not aligned", "ensemble_direct"),
    ("ensemble, q_r: aligned to the first", "ensemble_first"),
    ("ensemble, aligned to the mean", "ensemble_mean"),
    ("mean field", "mean_field"),
)

_KEPT = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01]


def _cells(
    base: Parameters, *, draws: int, members: int, seconds: float, name: str = "compact"
) -> tuple[Cell, ...]:
    facts: dict[str, Any] = {"draws": draws, "members": members, "kept": _KEPT}
    return (Cell(name, {**base, **facts}, seconds),)


_DIGITS: dict[str, Any] = {
    "data": "digits",
    "network": "mlp",
    "hidden": [16],
    "precision": 1.0,
    "optimiser": "adam",
    "rate": 0.01,
    "epochs": 20,
    "batch": 32,
}

_MNIST: dict[str, Any] = {
    "data": "mnist",
    "train": 1000,
    "test": 1000,
    "network": "mlp",
    "hidden": [24],
    "precision": 1.0,
    "optimiser": "adam",
    "rate": 0.01,
    "epochs": 30,
    "batch": 64,
}

STUDY = Study(
    name="rebased-gaussian",
    title="Re-based Gaussian: one Gaussian describes the aligned posterior far better",
    question=(
        "Samples of a posterior lie in many permuted copies of one region. A Gaussian fitted to "
        "them as they are (q_d) describes none of these; fitted after every sample was moved into "
        "one copy (q_r) it should predict like the samples. How near does it come to HMC, which "
        "alignment and which covariance help, and do its standard deviations say which weights "
        "can be pruned?"
    ),
    source=XIAO,
    revision=1,
    compute="coset.studies.cells.rebased_gaussian:compute",
    cells={
        "tiny": _cells(
            _DIGITS | {"train": 150, "hidden": [6], "epochs": 5}, draws=20, members=4, seconds=3.0
        ),
        "demo": _cells(_DIGITS | {"train": 500}, draws=100, members=10, seconds=20.0),
        "small": _cells(
            _MNIST | {"side": 10},
            draws=200,
            members=20,
            seconds=40.0,
        )
        + _cells(
            _MNIST | {"side": 28, "cause": "blank pixels"},
            draws=100,
            members=20,
            seconds=42.0,
            name="cause",
        )
        + _cells(
            _MNIST | {"side": 10, "cause": "two chains", "chains": 1},
            draws=200,
            members=20,
            seconds=40.0,
            name="cause-chains",
        ),
        "paper": _cells(
            {"data": "mnist", "network": "mlp", "hidden": [512], "precision": 1.0},
            draws=9900,
            members=5,
            seconds=2000 * 3600.0,
        ),
    },
    seeds={"tiny": (0, 1, 2), "demo": (0, 1, 2), "small": (0, 1, 2), "paper": (0,)},
    shrunk=(
        "MNIST at 10×10 pixels, 1,000 pictures, 24 hidden units in place of 512, two chains with "
        "100 states each in place of one with 9,900; an ensemble of 20 in place of 5."
    ),
    learnt=(
        "Alignment helps as claimed. For an ensemble one diagonal Gaussian is then nearly good. "
        "For HMC it takes alignment to the mean in place of the first sample, and a covariance in "
        "place of standard deviations, to come as near to the samples. "
        "Not reproduced: that weights with the lowest sigma are those to keep. Here accuracy is "
        "gone when a tenth is left out, while ranking by |mean|/sigma keeps it down to a fifth of "
        "the weights. Looked for: blank pixels, whose weights keep the prior's sigma and are few "
        "here, by pictures of 28×28 pixels, of which most are blank; and a difference between "
        "chains, by one chain as in the paper. Neither changes it: cause not found."
    ),
    claims=(
        Claim(
            "agreement gained on HMC",
            "Alignment raises the agreement of the Gaussian with HMC.",
            XIAO,
            _TABLE,
            "agreement_gained_hmc",
            published=0.704,
            bound=0.0,
        ),
        Claim(
            "total variation gained on HMC",
            "Alignment lowers the total variation of the Gaussian to HMC.",
            XIAO,
            _TABLE,
            "variation_gained_hmc",
            published=0.207,
            bound=0.0,
        ),
        Claim(
            "mean network gained on HMC",
            "Alignment raises the accuracy of the network of mean weights.",
            XIAO,
            _TABLE,
            "mean_accuracy_gained_hmc",
            published=0.642,
            bound=0.0,
        ),
        Claim(
            "agreement gained on an ensemble",
            "Alignment raises the agreement of the ensemble's Gaussian with HMC.",
            XIAO,
            _TABLE,
            "agreement_gained_ensemble",
            published=0.463,
            bound=0.0,
        ),
        Claim(
            "the ensemble's Gaussian is good",
            "Aligned, the Gaussian of an ensemble agrees with HMC nearly always.",
            XIAO,
            _TABLE,
            "agreement_ensemble_first",
            kind="size",
            published=0.987,
            tolerance=0.1,
        ),
        Claim(
            "mean field is near HMC",
            "Mean-field variational inference has a small total variation to HMC.",
            XIAO,
            _TABLE,
            "variation_mean_field",
            published=0.0235,
            side="below",
            bound=0.2,
        ),
        Claim(
            "standard deviations shrink",
            "Alignment shrinks the posterior standard deviations of HMC.",
            XIAO,
            _PRUNING,
            "sigma_ratio",
            side="below",
            bound=1.0,
        ),
        Claim(
            "pruning by the lowest sigma works",
            "With the half of the weights of lowest HMC sigma, the aligned mean keeps most of its "
            "accuracy.",
            XIAO,
            _PRUNING,
            "half_kept",
            bound=0.9,
        ),
        *(
            Claim(
                f"table 1, {label}",
                f"Agreement of {label} with HMC.",
                XIAO,
                _TABLE,
                quantity,
                kind="size",
                published=published,
                tolerance=0.05,
                scales=("paper",),
            )
            for label, quantity, published in (
                ("q_d of HMC", "agreement_hmc_direct", 0.1212),
                ("q_r of HMC", "agreement_hmc_first", 0.8249),
                ("q_d of an ensemble", "agreement_ensemble_direct", 0.5239),
            )
        ),
    ),
    controls=(
        Control(
            "HMC against itself",
            "HMC's samples have no total variation to themselves",
            "control_self",
            1e-6,
        ),
        Control(
            "planted copies",
            "scrambled copies of one network have no spread once aligned (largest sigma)",
            "control_copies",
            1e-4,
        ),
    ),
    exhibits=(
        TableExhibit(
            "table",
            "posterior",
            "Agreement and total variation to HMC, and accuracy of the averaged prediction and of "
            "the network of mean weights. Aligning to the mean beats aligning to one sample; after "
            "that the diagonal covariance is the bottleneck.",
            tuple((label, key, {}) for label, key in _ROWS),
            (
                ("agreement", "agreement_{row}"),
                ("total variation", "variation_{row}"),
                ("accuracy", "accuracy_{row}"),
                ("accuracy of the mean", "mean_accuracy_{row}"),
            ),
            "table 1",
            (
                ("published: HMC, q_d", "0.121", "0.864", "0.111", "0.281"),
                ("published: HMC, q_r", "0.825", "0.657", "0.823", "0.923"),
                ("published: ensemble, q_d", "0.524", "0.721", "0.523", "0.864"),
                ("published: ensemble, q_r", "0.987", "0.050", "0.977", "0.980"),
                ("published: VI", "0.989", "0.024", "0.981", "0.980"),
            ),
        ),
        Exhibit(
            "modes",
            "Many modes before, one after",
            "Samples of the chains on their two leading directions. Left: as sampled, scattered "
            "over permuted copies. Right: the same samples after re-basin, one cloud.",
            (
                Panel(
                    "points",
                    (Series("", "plain_x", "plain_y"),),
                    "as sampled",
                    "first direction",
                    "second",
                ),
                Panel(
                    "points",
                    (Series("", "rebased_x", "rebased_y"),),
                    "re-based",
                    "first direction",
                    "second",
                ),
            ),
            _MODES,
        ),
        Exhibit(
            "sigma",
            "Posterior standard deviations of all weights, and what they are good for",
            "Left: alignment moves mass to smaller standard deviations; weights of blank pixels "
            "stay at the prior's one. Right: accuracy of the mean network when only a fraction of "
            "the weights is kept, ranked by the lowest sigma or the largest |mean|/sigma.",
            (
                Panel(
                    "histogram",
                    (Series("q_d", "sigma_direct"), Series("aligned", "sigma_aligned")),
                    x="standard deviation",
                    y="share of weights",
                ),
                Panel(
                    "lines",
                    (
                        Series("HMC mean, sigma", "kept", "pruned_hmc_sigma"),
                        Series("HMC mean, |mean|/sigma", "kept", "pruned_hmc_signal"),
                        Series("ensemble member, moved first", "kept", "pruned_member_moved"),
                        Series("ensemble member, not moved", "kept", "pruned_member_plain"),
                    ),
                    x="fraction of the weights kept",
                    y="test accuracy",
                ),
            ),
            _PRUNING,
        ),
        ExplorerExhibit(
            "prune",
            "prune",
            "Leave out weights, by their standard deviation or by what stands out of it",
            "The network of mean weights of the aligned samples of HMC, of the first seed. Left: "
            "how often it is right when only a share of its weights is kept. Right: the standard "
            "deviations of weights; by the lowest sigma those to the left of the line stay.",
            ("kept", "pruned_hmc_sigma", "pruned_hmc_signal", "sigma_direct", "sigma_aligned"),
            where=_PRUNING,
        ),
        Exhibit(
            "cause",
            "Why does pruning by the lowest sigma fail here?",
            "Left: pictures of 10×10 pixels, of which few are blank, and two chains. Looked for, "
            "middle: 28×28 pixels as in the paper, of which many are blank in every picture, so "
            "that their weights keep the prior's standard deviation and go first. Right: one chain "
            "as in the paper, so that no difference between chains adds to standard deviations.",
            tuple(
                Panel(
                    "lines",
                    (
                        Series("HMC mean, sigma", "kept", "pruned_hmc_sigma", where),
                        Series("HMC mean, |mean|/sigma", "kept", "pruned_hmc_signal", where),
                        Series("member, moved first", "kept", "pruned_member_moved", where),
                    ),
                    title,
                    "fraction of the weights kept",
                    "test accuracy",
                    limits=(0.0, 1.0),
                )
                for title, where in (
                    ("10×10 pixels", {"side": 10}),
                    ("28×28 pixels", {"cause": "blank pixels"}),
                    ("one chain", {"cause": "two chains"}),
                )
            ),
            "figure 5",
        ),
    ),
)
