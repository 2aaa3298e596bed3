"""The page of the demo: headlines, a table, two figures and pictures of digits."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from coset.demo.experiment import Result
from coset.metrics import ReliabilityBins, mutual_information, reliability
from coset.report import Figure, Gallery, Headline, Page, Picture, Section, Table, write_page
from coset.report.charts import rows_as_csv
from coset.report.figures import picture_address, reliability_diagram, score_histogram
from coset.studies.page import comparison_table, study_section
from coset.studies.registry import names, study_named
from coset.studies.runs import Run
from coset.version import __version__

_SHOWN = 8


def write_report(path: str | Path, result: Result, run: Run | None = None) -> None:
    """Writes the page of a result, and of a run of the studies, as one self-contained file."""
    write_page(path, build_page(result, run))


def build_page(result: Result, run: Run | None = None) -> Page:
    """The page of a result, and below it what a run of the studies has given so far."""
    held = " and ".join(result.unseen_names)
    return Page(
        title="What does the network not know?",
        lead=(
            f"An ensemble of {result.settings.members} small networks and one single network "
            f"learnt {len(result.data.train_targets)} handwritten digits, all but {held}. Here "
            f"they meet {len(result.data.test_targets)} digits, most of them from writers they "
            f"have not met, and {len(result.unseen[0])} pictures of {held}, which they cannot get "
            "right: they can only notice that something is odd."
        ),
        headlines=_headlines(result),
        sections=(
            _numbers_section(result),
            _reliability_section(result),
            _unseen_section(result),
            _pictures_section(result),
            *(_studies_sections(run) if run is not None else ()),
        ),
        numbers=_embedded(result),
        footer=(
            f"coset {__version__} · seed {result.settings.seed} · data: the digits of "
            "scikit-learn (Alpaydin and Kaynak 1998) · the numbers are in this page as JSON, "
            "element “numbers”"
        ),
    )


def _studies_sections(run: Run) -> list[Section]:
    """Published results run again: the verdicts that came along, and today's numbers."""
    return [
        Section(
            "Published results, run again",
            "The papers behind this library compare networks up to the symmetries of their "
            "weights. The table shows what an earlier, larger run found about their claims. Below "
            "it is what this machine has just computed, at a smaller scale, which gets no verdict.",
            tables=[comparison_table(run, [study_named(name) for name in names()])],
            anchor="published",
        ),
        *(study_section(run, study) for study in run.studies),
    ]


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
                "".join(
                    reliability_diagram({title: bins}, name=f"reliability-{place}")
                    for place, (title, bins) in enumerate(series.items())
                ),
                "Reliability on test digits of known classes, in ten bins of confidence. Below: "
                "the share of pictures in each bin. Bins with few pictures mean little.",
                csv=_bins_as_csv(series),
                name="reliability",
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
                _histograms(series, "entropy of the prediction (nats)", "entropy"),
                "Entropy of the prediction, for test digits of known classes and for "
                f"{' and '.join(result.unseen_names)}.",
                csv=_scores_as_csv(series),
                name="entropy",
            ),
            Figure(
                _histograms(informed, "mutual information (nats)", "information"),
                "Disagreement among the members of the ensemble; one network alone has none.",
                csv=_scores_as_csv(informed),
                name="disagreement",
            ),
        ],
    )


def _histograms(series: Mapping[str, tuple[Tensor, Tensor]], label: str, name: str) -> str:
    """One drawing for each entry, all on the same axis."""
    largest = max(float(scores.max()) for pair in series.values() for scores in pair)
    return "".join(
        score_histogram({title: pair}, label=label, name=f"{name}-{place}", largest=largest)
        for place, (title, pair) in enumerate(series.items())
    )


def _bins_as_csv(series: Mapping[str, ReliabilityBins]) -> str:
    return rows_as_csv(
        ("predictor", "from", "to", "pictures", "accuracy", "confidence"),
        (
            (title, *(float(value) for value in row))
            for title, bins in series.items()
            for row in zip(
                bins.edges[:-1],
                bins.edges[1:],
                bins.count,
                bins.accuracy,
                bins.confidence,
                strict=True,
            )
        ),
    )


def _scores_as_csv(series: Mapping[str, tuple[Tensor, Tensor]]) -> str:
    return rows_as_csv(
        ("predictor", "pictures", "score"),
        (
            (title, side, value)
            for title, pair in series.items()
            for side, scores in zip(("known", "unseen"), pair, strict=True)
            for value in scores.tolist()
        ),
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
