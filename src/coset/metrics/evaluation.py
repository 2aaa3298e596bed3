"""Evaluate a predictor: predictions once, then every metric that fits."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.bayes.batches import as_tensor
from coset.bayes.defaults import gives_probabilities, link_of, weight_of
from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError, require_kind
from coset.metrics.catalogue import CATALOGUE, Metric, metric_named
from coset.metrics.collection import (
    Collected,
    Data,
    PredictionsLike,
    batches,
    log_weights_of,
    one_by_one,
    readings,
)
from coset.vocabulary import Inputs

Predict: TypeAlias = Callable[[Any], PredictionsLike]
Score: TypeAlias = Callable[[PredictionsLike], Tensor]


def evaluate(
    predictor: Predict,
    test: Data,
    *,
    outliers: Data | None = None,
    metrics: Sequence[str | Metric] | None = None,
    score: Score | None = None,
    standard_error: int | None = None,
    rule: object = None,
    generator: torch.Generator | None = None,
) -> dict[str, float]:
    """Predict a test set once and compute every metric of the catalogue that fits.

    Whole-number targets mean classification, by pixel if the predictions have pixel axes; others,
    and all targets of a Gaussian likelihood, mean regression; with a ``Bernoulli`` likelihood, or
    one probability an input, every output is a yes-or-no question.  Targets that the predictor's
    likelihood gives no say (``Categorical(ignore=…)``, ``missing="nan"``) have none here; dense
    tasks are averaged over the other pixels, and resampled by pictures.  One batch of members is
    in memory at a time; of the rest we keep what the metrics read: a value for each input, and the
    mean predictions.  Of pixels we keep sums and histograms alone, so that metrics that order them
    all are right up to the bound of :class:`coset.metrics.Running`.

    Args:
        predictor: Called with a batch of inputs.
        test: A pair (inputs, targets), a Dataset or a DataLoader; several inputs are a tuple.
        outliers: Out-of-distribution inputs, alone or like ``test`` with targets that are ignored.
            Several inputs alone are ``((a, b),)``: the pair ``(a, b)`` would be inputs and targets.
            In dense tasks a pair ``(inputs, mask)`` of truth values, true where a pixel is foreign,
            means pixels against the other pixels of the same pictures.
        metrics: Names, or rows of your own; None takes all that fit.
        score: Out-of-distribution score of each input, larger for outliers; by default minus the
            largest mean probability, or the mean variance of regression.
        standard_error: Bootstrap resamples; adds a key ``<name>_standard_error`` for each metric.
        rule: How to predict, where not by the predictor's own rule.
        generator: For the bootstrap; the seed is 0 without one.

    Returns:
        The metrics by the names of their functions.

    >>> from types import SimpleNamespace
    >>> def predictor(inputs):
    ...     mean = torch.stack([inputs, 1 - inputs], 1)
    ...     return SimpleNamespace(mean=mean, members=mean.unsqueeze(0), variance=None)
    >>> test = (torch.tensor([0.9, 0.2, 0.6, 0.7]), torch.tensor([0, 1, 1, 0]))
    >>> evaluate(predictor, test, metrics=["accuracy"])
    {'accuracy': 0.75}
    """
    require_kind(Score | None, score=score)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.no_grad():
        likelihood = getattr(predictor, "likelihood", None)
        module = getattr(getattr(predictor, "network", None), "module", None)
        predict = predictor if rule is None else partial(predictor, rule=rule)  # type: ignore[call-arg]
        collected = collect(
            predict,
            test,
            outliers,
            metrics,
            score,
            likelihood=likelihood,
            module=module,
            resampled=standard_error is not None,
        )
    return collected.results(standard_error, generator)


def collect(
    predictor: Predict,
    test: Data,
    outliers: Data | None,
    metrics: Sequence[str | Metric] | None,
    score: Score | None,
    *,
    likelihood: Likelihood | None,
    module: nn.Module | None = None,
    resampled: bool = True,
) -> Collected:
    """Predict the test set, then the outliers, and keep what the metrics read."""
    yes_or_no = None
    collected = None
    for inputs, targets in batches(_as_pair(test), module):
        if targets is None:
            raise CosetError(
                "test has inputs only", "needed inputs and targets", "give the pair of both"
            )
        predictions = _predicted(predictor, inputs)
        mean = predictions.mean
        truth, counts = targets, _counts(likelihood, mean, targets)
        if likelihood is not None and gives_probabilities(likelihood, mean):
            link = link_of(likelihood, mean)
            yes_or_no = None if link == "other" else link == "sigmoid"
        elif likelihood is not None:  # numbers, also where these are whole
            truth = targets.to(mean.dtype)
        dense = mean.ndim > 2
        parts = one_by_one(predictions, truth) if dense else [(predictions, truth)]
        for number, (part, target) in enumerate(parts):
            known = counts if counts is None or not dense else counts[number : number + 1]
            if known is not None and not bool(known.any()):
                continue
            found = readings(part, target, yes_or_no=yes_or_no, counts=known)
            score = score or _default_score(part, "labels" in found, yes_or_no)
            if outliers is not None:
                found["inlier_scores"] = score(part)
            if collected is None:
                offered = set(found) | _offered_by(outliers, dense, "members" in found)
                collected = Collected(_choose(metrics, offered, dense), dense, resampled)
            collected.add(found)
    if collected is None or score is None:
        raise CosetError(
            "test is empty" if likelihood is None else "test has no target that counts",
            "needed at least one",
            "check the data or loader",
        )
    if outliers is not None:
        _add_outliers(collected, predictor, batches(outliers, module), score)
    return collected


def _counts(likelihood: Likelihood | None, mean: Tensor, targets: Tensor) -> Tensor | None:
    """Which targets have a say, ready to broadcast against the mean; ``None``: all."""
    weight = None if likelihood is None else weight_of(likelihood, mean, targets)
    return None if weight is None or bool((weight > 0).all()) else weight > 0


def _as_pair(test: Data) -> Data:
    """A list of inputs and targets, such as a batch of a loader, is the pair that fit reads it as.

    Of outliers, which have no targets, a list is one of batches.
    """
    if isinstance(test, list) and len(test) == 2 and isinstance(as_tensor(test[1]), Tensor):
        return test[0], test[1]
    return test


def _predicted(predictor: Predict, inputs: Any) -> PredictionsLike:
    found = predictor(inputs) if callable(predictor) else predictor
    if not isinstance(found, PredictionsLike):
        raise CosetError(
            f"the predictor, a {type(predictor).__name__}, gives a {type(found).__name__}",
            "needed predictions with mean, members and variance",
            "give what coset.fit returns; a module without a posterior is one point of it: "
            "coset.fit(module, train, method=MaximumAPosteriori())",
        )
    return found


def _offered_by(outliers: Data | None, dense: bool, members: bool) -> set[str]:
    if outliers is None:
        return set()
    if dense or not members:
        return {"outlier_scores"}
    return {"outlier_scores", "outlier_members", "outlier_log_weights"}


def _add_outliers(
    collected: Collected,
    predictor: Predict,
    outliers: Iterable[tuple[Inputs, Tensor | None]],
    score: Score,
) -> None:
    """Predict the outliers, if a metric reads anything of them."""
    read = {name for row in collected.metrics for name in row.reads if name.startswith("outlier")}
    empty = True
    for inputs, mask in outliers if read else ():
        predictions = _predicted(predictor, inputs)
        if mask is not None and mask.dtype == torch.bool and mask.ndim > 1:
            if empty:  # pixels are told from pixels of the same pictures
                collected.columns.pop("inlier_scores", None)
            _add_pixels(collected, predictions, mask, score)
            empty = False
            continue
        found = {
            "outlier_scores": score(predictions),
            "outlier_members": predictions.members,
            "outlier_log_weights": log_weights_of(predictions),
        }
        collected.add({name: found[name] for name in read})
        empty = False
    if read and empty:
        raise CosetError(
            "outliers is empty", "needed at least one input", "leave it out if there are none"
        )


def _add_pixels(
    collected: Collected, predictions: PredictionsLike, mask: Tensor, score: Score
) -> None:
    """The scores of foreign pixels, and of all others."""
    default = _PIXEL_SCORES.get(score)
    scores = (default or score)(predictions)
    if scores.shape != mask.shape:
        raise CosetError(
            f"got a mask of shape {tuple(mask.shape)} for scores of shape {tuple(scores.shape)}",
            "needed one truth value, and one score, a pixel",
            "check that the mask has the size of the pictures"
            if default
            else "let the score give one number a pixel, or leave the mask out",
        )
    for values, foreign in zip(scores, mask, strict=True):
        collected.add({"inlier_scores": values[~foreign], "outlier_scores": values[foreign]})


def _default_score(
    predictions: PredictionsLike, classification: bool, yes_or_no: bool | None
) -> Score:
    if not classification:
        return variance_score
    alone = predictions.mean.shape[1] == 1 if yes_or_no is None else yes_or_no
    return answer_score if alone else probability_score


def probability_score(predictions: PredictionsLike) -> Float[Tensor, " n"]:
    """Minus the largest mean probability of each input, averaged over its pixels."""
    return -predictions.mean.amax(1).reshape(len(predictions.mean), -1).mean(1)


def answer_score(predictions: PredictionsLike) -> Float[Tensor, " n"]:
    """Minus the probability of the likelier answer, averaged over yes-or-no outputs."""
    mean = predictions.mean.flatten(1)
    return -torch.maximum(mean, 1 - mean).mean(1)


def variance_score(predictions: PredictionsLike) -> Float[Tensor, " n"]:
    """The predictive variance of each input, averaged over its outputs."""
    if predictions.variance is None:
        raise CosetError(
            "the predictions have no variance",
            "needed one to tell outliers by",
            "pass a score of your own, or leave the outliers out",
        )
    return predictions.variance.flatten(1).mean(1)


def _largest_probability(predictions: PredictionsLike) -> Float[Tensor, "n ..."]:
    return 1 - predictions.mean.double().amax(1)  # in the order of -p, and finer near zero


def _likelier_answer(predictions: PredictionsLike) -> Float[Tensor, "n ..."]:
    mean = predictions.mean.double()
    return torch.minimum(mean, 1 - mean).mean(1)


def _pixel_variance(predictions: PredictionsLike) -> Float[Tensor, "n ..."]:
    assert predictions.variance is not None, "checked where the test set was predicted"
    return predictions.variance.mean(1)


_PIXEL_SCORES: dict[Score, Score] = {
    probability_score: _largest_probability,
    answer_score: _likelier_answer,
    variance_score: _pixel_variance,
}
"""The default scores, of each pixel in place of each input."""


def _hint(missing: Sequence[str]) -> str:
    if "members" in missing:
        return (
            "predict by draws: rule=MonteCarlo() or rule=Linearised(SampledSoftmax()); a closed "
            "form has no members to compare"
        )
    if "outlier_scores" in missing:
        return "give outliers, or leave the metric out"
    return "call the function itself, or leave the metric out"


def _choose(
    metrics: Sequence[str | Metric] | None, offered: set[str], dense: bool
) -> tuple[Metric, ...]:
    """The metrics asked for, or all that fit; dense tasks cannot keep every pixel."""

    def streams(row: Metric) -> bool:
        return row.per_input is not None or row.sums is not None or "inlier_scores" in row.reads

    if metrics is None:
        fitting = [row for row in CATALOGUE if set(row.reads) <= offered]
        return tuple(row for row in fitting if streams(row) or not dense)
    if isinstance(metrics, str):
        raise CosetError(f"metrics is {metrics!r}", "needed a list of names", f"[{metrics!r}]")
    rows = [row if isinstance(row, Metric) else metric_named(row) for row in metrics]
    for row in rows:
        missing = [name for name in row.reads if name not in offered]
        if missing:
            raise CosetError(
                f"{row.name} reads {', '.join(missing)}, which these data do not give",
                f"have {', '.join(sorted(offered))}",
                _hint(missing),
            )
        if dense and not streams(row):
            raise CosetError(
                f"{row.name} needs all pixels at once",
                "needed a metric that adds up over images",
                "call the function itself on pixels that you choose",
            )
    return tuple(rows)
