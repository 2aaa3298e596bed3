"""The demo: one network against an ensemble on digits, two of which neither has ever seen."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.prior import GaussianPrior
from coset.data import Dataset, digits, holding_out
from coset.errors import CosetError
from coset.inference import DeepEnsemble, MaximumAPosteriori
from coset.metrics import (
    accuracy,
    auroc,
    brier,
    entropy,
    expected_calibration_error,
    mutual_information,
    negative_log_likelihood,
    reliability,
)
from coset.models import mlp
from coset.predictor import Predictor, fit
from coset.report import Figure, Gallery, Headline, Page, Picture, Section, Table, write_page
from coset.report.figures import picture_address, reliability_diagram, score_histogram
from coset.version import __version__
from coset.vocabulary import Batch, Progress

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
_SHOWN = 8


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
        """A value for each of :data:`METRICS`."""
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
        return dict(zip(METRICS, map(float, values), strict=True))


@dataclass(frozen=True)
class Result:
    """All that the page and the terminal show."""

    settings: Settings
    data: Dataset
    unseen: Batch
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
        # one member cannot disagree with itself: a zero would read like a finding
        alone = [len(outcome.known) == 1 for outcome in self.outcomes]
        return [
            [
                metric,
                *(
                    "–" if single and _OF_MEMBERS in metric else f"{values[metric]:.3f}"
                    for values, single in zip(numbers, alone, strict=True)
                ),
                reading,
            ]
            for metric, reading in METRICS.items()
        ]


def run_demo(settings: Settings, *, progress: Progress | None = None) -> Result:
    """Trains both predictors and asks them about test pictures and unseen digits.

    Training sees the training part of the known classes only.
    """
    known, unseen = holding_out(digits(), settings.held_out)
    recipe = MaximumAPosteriori(epochs=settings.epochs)
    share = 1 / (settings.members + 1)
    single = _train(known, recipe, settings.seed, _part(progress, 0, share, "one network"))
    ensemble = _train(
        known,
        DeepEnsemble(members=settings.members, base=recipe),
        settings.seed + 1,
        _part(progress, share, 1, f"ensemble of {settings.members}"),
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
    module = mlp(64, (64, 64), len(data.classes))
    return fit(
        module,
        data.train,
        method=method,
        prior=GaussianPrior(1.0),
        generator=torch.Generator().manual_seed(seed),
        progress=progress,
    )


def _part(progress: Progress | None, start: float, end: float, what: str) -> Progress | None:
    """Progress of one piece of work as a part of the whole."""
    if progress is None:
        return None
    return lambda fraction, line: progress(start + (end - start) * fraction, f"{what}: {line}")


def _ask(name: str, predictor: Predictor, known: Dataset, unseen: Dataset) -> Outcome:
    return Outcome(
        name,
        predictor(known.test_inputs).members,
        known.test_targets,
        predictor(unseen.test_inputs).members,
    )


def write_report(path: str | Path, result: Result) -> None:
    """Writes the page of a result as one self-contained file."""
    write_page(path, build_page(result))


def build_page(result: Result) -> Page:
    """The page of a result."""
    held = " and ".join(result.unseen_names)
    return Page(
        title="What does the network not know?",
        lead=(
            f"An ensemble of {result.settings.members} small networks and one single network "
            f"learnt {len(result.data.train_targets)} handwritten digits, all but {held}. Here "
            f"they meet {len(result.data.test_targets)} digits from writers they have not met, "
            f"and {len(result.unseen[0])} pictures of {held}, which they cannot get right: they "
            "can only notice that something is odd."
        ),
        headlines=_headlines(result),
        sections=(
            _numbers_section(result),
            _reliability_section(result),
            _unseen_section(result),
            _pictures_section(result),
        ),
        numbers=_embedded(result),
        footer=(
            f"coset {__version__} · seed {result.settings.seed} · data: the digits of "
            "scikit-learn (Alpaydin and Kaynak 1998) · the numbers are in this page as JSON, "
            "element “numbers”"
        ),
    )


def _headlines(result: Result) -> list[Headline]:
    single, ensemble = result.single.numbers(), result.ensemble.numbers()

    def headline(metric: str, label: str, shown: str = ".3f") -> Headline:
        return Headline(
            f"{ensemble[metric]:{shown}}", label, f"one network: {single[metric]:{shown}}"
        )

    return [
        headline("accuracy", "right answers", ".1%"),
        headline("negative log-likelihood", "log loss"),
        headline("calibration error (ECE)", "calibration error"),
        headline("AUROC by entropy", "unseen noticed"),
    ]


def _numbers_section(result: Result) -> Section:
    return Section(
        "The numbers",
        "All on pictures that training did not use. AUROC tells unseen from known digits, by the "
        "entropy of the answer or by disagreement: the mutual information, in nats, between the "
        "answer and the choice of the member, which is how much the members contradict each other.",
        tables=[Table(result.columns, result.rows(), words=(0, 3))],
    )


def _reliability_section(result: Result) -> Section:
    series = {
        outcome.name: reliability(outcome.probabilities, outcome.targets, bins=10)
        for outcome in result.outcomes
    }
    return Section(
        "Can its confidence be believed?",
        "Of the pictures that a predictor is 80 % sure about, 80 % should be right: the bars "
        "should end on the dashed line, and at the orange mark, the mean confidence in the bin.",
        figures=[
            Figure(
                reliability_diagram(series),
                "Reliability on test digits of known classes, in ten bins of confidence. Below: "
                "the share of pictures in each bin. Bins with few pictures mean little.",
            )
        ],
    )


def _unseen_section(result: Result) -> Section:
    series = {outcome.name: outcome.entropies for outcome in result.outcomes}
    informed = {
        "ensemble: disagreement": (
            mutual_information(result.ensemble.known),
            mutual_information(result.ensemble.unseen),
        )
    }
    return Section(
        "Does it notice what it has never seen?",
        "The further the two histograms are apart, the better can unseen digits be told from "
        "known ones. AUROC is the chance that a random unseen digit has a larger score than a "
        "random known one: 0.5 is guessing, 1 is perfect.",
        figures=[
            Figure(
                score_histogram(series, label="entropy of the prediction (nats)", name="entropy"),
                "Entropy of the prediction, for test digits of known classes and for "
                f"{' and '.join(result.unseen_names)}.",
            ),
            Figure(
                score_histogram(informed, label="mutual information (nats)", name="information"),
                "Disagreement among the members of the ensemble; one network alone has none.",
            ),
        ],
    )


def _pictures_section(result: Result) -> Section:
    known, unseen = result.ensemble.entropies
    names = [str(result.data.classes[label]) for label in result.data.test_targets.tolist()]
    truth = [result.unseen_names[label] for label in result.unseen[1].tolist()]

    def gallery(caption: str, scores: Tensor, *, known_side: bool, largest: bool) -> Gallery:
        order = scores.argsort(descending=largest, stable=True)[:_SHOWN].tolist()
        inputs = result.data.test_inputs if known_side else result.unseen[0]
        members = result.ensemble.known if known_side else result.ensemble.unseen
        labels = names if known_side else truth
        chosen = [
            _picture(inputs[i], members.mean(0)[i], labels[i], result.data.classes) for i in order
        ]
        return Gallery(chosen, caption)

    return Section(
        "Most and least certain",
        "The ensemble's answer under each picture, with its probability and the true digit.",
        galleries=[
            gallery("Most certain, known digits.", known, known_side=True, largest=False),
            gallery("Least certain, known digits.", known, known_side=True, largest=True),
            gallery(
                "Least certain, unseen digits: noticed.", unseen, known_side=False, largest=True
            ),
            gallery(
                "Most certain, unseen digits: fooled.", unseen, known_side=False, largest=False
            ),
        ],
    )


def _picture(
    image: Float[Tensor, "1 height width"],
    probabilities: Float[Tensor, " c"],
    truth: str,
    classes: tuple[str, ...],
) -> Picture:
    answer = str(classes[int(probabilities.argmax())])
    return Picture(
        picture_address(image[0]),
        f"says {answer}",
        f"{float(probabilities.max()):.0%} · is {truth}",
        wrong=answer != truth,
    )


def _embedded(result: Result) -> Mapping[str, object]:
    return {
        "settings": asdict(result.settings),
        "training_pictures": len(result.data.train_targets),
        "test_pictures": len(result.data.test_targets),
        "unseen_pictures": len(result.unseen[0]),
        "scores": {outcome.name: outcome.numbers() for outcome in result.outcomes},
        "entropy": {
            outcome.name: {
                side: [round(value, 5) for value in scores.tolist()]
                for side, scores in zip(("known", "unseen"), outcome.entropies, strict=True)
            }
            for outcome in result.outcomes
        },
    }
