"""The demo: one network against an ensemble on digits, two of which neither has ever seen."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.prior import GaussianPrior
from coset.data import Dataset, digits, holding_out
from coset.errors import CosetError, require_counts
from coset.inference import DeepEnsemble, MaximumAPosteriori
from coset.metrics import (
    accuracy,
    auroc,
    brier,
    entropy,
    expected_calibration_error,
    mutual_information,
    negative_log_likelihood,
)
from coset.models import mlp
from coset.predictor import Predictor, fit
from coset.progress import within
from coset.vocabulary import Progress

METRICS: Mapping[str, str] = {
    "accuracy": "higher is better",
    "negative log-likelihood": "lower is better",
    "Brier score": "lower is better",
    "calibration error (ECE)": "lower is better",
    "AUROC by entropy": "higher is better",
    "AUROC by disagreement": "higher is better",
    "disagreement, known": "small is right",
    "disagreement, unseen": "large is right",
}
"""What is measured, and how to read it."""

_OF_MEMBERS = "disagreement"


@dataclass(frozen=True)
class Settings:
    """What the demo can be told.

    Attributes:
        seed: Where every random number comes from.
        members: Networks of the ensemble.
        epochs: Passes over the training pictures.
        held_out: Digits kept away from training.
    """

    seed: int = 0
    members: int = 10
    epochs: int = 60
    held_out: tuple[int, ...] = (8, 9)

    def __post_init__(self) -> None:
        require_counts(0, seed=self.seed)
        if self.members < 2 or self.epochs < 1:
            raise CosetError(
                f"got {self.members} members and {self.epochs} epochs",
                "needed at least two members, which can disagree, and one epoch",
            )


@dataclass(frozen=True)
class Outcome:
    """What one predictor says about the test pictures and about the unseen digits."""

    name: str
    known: Float[Tensor, "m n c"]
    targets: Int[Tensor, " n"]
    unseen: Float[Tensor, "m o c"]

    @property
    def probabilities(self) -> Float[Tensor, "n c"]:
        """The mean over members."""
        return self.known.mean(0)

    @property
    def entropies(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " o"]]:
        """Entropy of the predictions for known and for unseen pictures."""
        return entropy(self.known.mean(0)), entropy(self.unseen.mean(0))

    def numbers(self) -> dict[str, float]:
        """A value for each of :data:`METRICS`; NaN for the disagreement of one member alone."""
        information = mutual_information(self.known), mutual_information(self.unseen)
        values = (
            accuracy(self.probabilities, self.targets),
            negative_log_likelihood(self.probabilities, self.targets),
            brier(self.probabilities, self.targets),
            expected_calibration_error(self.probabilities, self.targets),
            auroc(*self.entropies),
            auroc(*information),
            information[0].mean(),
            information[1].mean(),
        )
        found = dict(zip(METRICS, map(float, values), strict=True))
        # one member cannot disagree with itself: a zero would read like a finding
        alone = {metric for metric in METRICS if _OF_MEMBERS in metric and len(self.known) == 1}
        return {name: math.nan if name in alone else value for name, value in found.items()}


@dataclass(frozen=True)
class Result:
    """All that the page and the terminal show."""

    settings: Settings
    data: Dataset
    unseen: tuple[Tensor, Tensor]
    unseen_names: tuple[str, ...]
    single: Outcome
    ensemble: Outcome

    @property
    def title(self) -> str:
        """The heading of the terminal's table."""
        count, others = len(self.data.test_targets), len(self.unseen[0])
        return f"{count} test digits, {others} digits of classes never seen"

    @property
    def outcomes(self) -> tuple[Outcome, Outcome]:
        """Both predictors."""
        return self.single, self.ensemble

    @property
    def columns(self) -> list[str]:
        """The heads of the table."""
        return ["", *(outcome.name for outcome in self.outcomes), ""]

    def rows(self) -> list[list[str]]:
        """The table: a metric, a number for each predictor, and how to read it."""
        numbers = [outcome.numbers() for outcome in self.outcomes]
        return [
            [metric, *(_shown(values[metric]) for values in numbers), reading]
            for metric, reading in METRICS.items()
        ]


def _shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def run_demo(settings: Settings, *, progress: Progress | None = None) -> Result:
    """Trains both predictors and asks them about test pictures and unseen digits.

    Training sees the training part of the known classes only.
    """
    known, unseen = holding_out(digits(), settings.held_out)
    recipe = MaximumAPosteriori(epochs=settings.epochs)
    share = 1 / (settings.members + 1)
    single = _train(known, recipe, settings.seed, within(progress, 0, share, "one network"))
    ensemble = _train(
        known,
        DeepEnsemble(members=settings.members, base=recipe),
        settings.seed + 1,
        within(progress, share, 1, f"ensemble of {settings.members}"),
    )
    return Result(
        settings,
        known,
        unseen.test,
        unseen.classes,
        _ask("one network", single, known, unseen),
        _ask(f"ensemble of {settings.members}", ensemble, known, unseen),
    )


def _train(
    data: Dataset,
    method: MaximumAPosteriori | DeepEnsemble,
    seed: int,
    progress: Progress | None,
) -> Predictor:
    with torch.random.fork_rng(devices=[]):  # its own start is not used: others may need theirs
        module = mlp(64, (64, 64), len(data.classes))
    return fit(
        module,
        data.train,
        method=method,
        prior=GaussianPrior(1.0),
        generator=torch.Generator().manual_seed(seed),
        progress=progress,
    )


def _ask(name: str, predictor: Predictor, known: Dataset, unseen: Dataset) -> Outcome:
    return Outcome(
        name,
        predictor(known.test_inputs).members,
        known.test_targets,
        predictor(unseen.test_inputs).members,
    )
