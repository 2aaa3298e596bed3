"""Finds the numbers of a calibration step on held-out data."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.bayes.batches import Batches
from coset.bayes.defaults import gives_probabilities, link_of, weight_of
from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError
from coset.metrics.conformal import check_level, conformal_quantile
from coset.metrics.temperature import fit_temperature, fit_variance_factor, fit_vector_scaling
from coset.posterior.calibrated import (
    CalibrationStep,
    ClassScaling,
    Conformal,
    VarianceScaling,
    class_answers,
    known_variance,
    log_chances,
)
from coset.posterior.predict import Predictions
from coset.vocabulary import Inputs

Calibration = Literal["temperature", "vector", "conformal"]

_KEPT = 1 << 22
"""Numbers that are kept of the held-out predictions; of more, a random share of the pixels."""

_AT_ONCE = 1 << 24
"""Numbers of the predictions that are alive together."""

Predict = Callable[[Inputs], Predictions]


def calibrate(
    predict: Predict,
    likelihood: Likelihood,
    held_out: Batches,
    *,
    method: Calibration,
    level: float,
) -> CalibrationStep:
    """The step that corrects a predictor's predictions, from held-out data."""
    if method not in get_args(Calibration):
        raise CosetError(
            f"got method={method!r}", f"needed one of {', '.join(get_args(Calibration))}"
        )
    check_level(level)
    conformal = method == "conformal"
    rows = _collect(predict, likelihood, held_out, scores=conformal)
    if conformal:
        return Conformal(
            conformal_quantile(rows.values[:, 0, 0], level=level, groups=rows.groups), level
        )
    columns = rows.each_column() if method == "vector" else [rows]
    if not rows.classes:
        known = [
            fit_variance_factor(each.values[:, 0, 0], each.values[:, 0, 1], each.targets)
            for each in columns
        ]
        return VarianceScaling(torch.tensor(known, dtype=torch.float64))
    if method == "temperature":
        logits, zero = log_chances(rows.values).movedim(1, 0), torch.zeros(())
        found = fit_temperature(logits, rows.targets, log_weights=rows.log_weights)
        return ClassScaling(torch.tensor(1 / found, dtype=torch.float64), zero)
    pairs = [
        fit_vector_scaling(
            log_chances(each.values).movedim(1, 0), each.targets, log_weights=each.log_weights
        )
        for each in columns
    ]
    factors, offsets = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    return ClassScaling(factors.squeeze(0), offsets.squeeze(0))


@dataclass(frozen=True)
class _Rows:
    """Held-out predictions, a row for each example, pixel, or entry of several targets.

    Attributes:
        values: Probabilities of classes; or mean and variance; or one conformal score.
        targets: Labels, or numbers.
        column: Which of several targets.
        groups: The number of the example.
        classes: Whether targets are labels.
        log_weights: Of the members.
    """

    values: Float[Tensor, "r m c"]
    targets: Tensor
    column: Int[Tensor, " r"]
    groups: Int[Tensor, " r"]
    classes: bool
    log_weights: Float[Tensor, " m"] | None = None

    def chosen(self, rows: Bool[Tensor, " r"]) -> "_Rows":
        return replace(
            self,
            values=self.values[rows],
            targets=self.targets[rows],
            column=self.column[rows],
            groups=self.groups[rows],
        )

    def each_column(self) -> list["_Rows"]:
        return [self.chosen(self.column == each) for each in self.column.unique()]


def _collect(predict: Predict, likelihood: Likelihood, held_out: Batches, *, scores: bool) -> _Rows:
    """The rows of all held-out data whose targets count, or of a random share of them."""
    generator, parts = torch.Generator().manual_seed(0), []
    share = None
    for first, found, targets in _predicted(predict, held_out):
        rows = _rows(_averaged(found, likelihood) if scores else found, likelihood, targets, first)
        if share is None:
            entries = 1 if scores else rows.values[0].numel()
            share = _KEPT / (held_out.size * len(rows.targets) / len(targets) * entries)
        counts = _counts(likelihood, found, targets)
        if share < 1:
            counts &= torch.rand(len(counts), generator=generator).to(counts.device) < share
        rows = rows.chosen(counts)
        parts.append(_scored(rows) if scores else rows)
    return replace(
        parts[0],
        values=torch.cat([part.values for part in parts]),
        targets=torch.cat([part.targets for part in parts]),
        column=torch.cat([part.column for part in parts]),
        groups=torch.cat([part.groups for part in parts]),
    )


def _predicted(predict: Predict, held_out: Batches) -> Iterator[tuple[int, Predictions, Tensor]]:
    """Number of the first, predictions and targets, so many at once as the memory takes."""
    start, rows = 0, 1
    while start < held_out.size:
        index = torch.arange(start, min(held_out.size, start + rows))
        inputs, targets = held_out.rows(index)
        found = predict(inputs)
        yield start, found, targets
        start += rows
        held = (found.members, found.variance, found.covariance)
        each = sum(part.numel() for part in held if part is not None) // len(index)
        rows = min(held_out.batch_size, max(1, _AT_ONCE // each))


def _rows(found: Predictions, likelihood: Likelihood, targets: Tensor, first: int) -> _Rows:
    """The rows of some examples, those that do not count among them."""
    mean = found.mean
    examples = torch.arange(first, first + len(mean), device=mean.device)
    outputs = torch.arange(mean.shape[1], device=mean.device)

    def spread(numbers: Tensor, axis: int) -> Tensor:
        return numbers.reshape([-1 if i == axis else 1 for i in range(mean.dim())])

    if gives_probabilities(likelihood, mean) and link_of(likelihood, mean) != "sigmoid":
        groups = spread(examples, 0)[:, 0].expand_as(mean[:, 0])
        values = class_answers(found, likelihood).flatten(1, -2).movedim(0, 1)
        labels = targets.long().flatten()
        none = torch.zeros_like(labels)
        return _Rows(values, labels, none, groups.flatten(), True, found.log_weights)
    # every target by itself, the outputs in the last axis
    groups, column = (
        spread(numbers, axis).expand_as(mean).movedim(1, -1).flatten()
        for numbers, axis in ((examples, 0), (outputs, 1))
    )
    truth = targets.reshape(mean.shape).movedim(1, -1).flatten()
    if gives_probabilities(likelihood, mean):
        values = class_answers(found, likelihood).flatten(1, -2).movedim(0, 1)
        truth = torch.where(truth > 0, 1, 0)  # a missing one does not count
        return _Rows(values, truth, column, groups, True, found.log_weights)
    moments = torch.stack([mean, known_variance(found)], -1).movedim(1, -2)
    return _Rows(moments.flatten(0, -2).unsqueeze(1), truth, column, groups, False)


def _counts(likelihood: Likelihood, found: Predictions, targets: Tensor) -> Bool[Tensor, " r"]:
    """Which rows have a say."""
    mean = found.mean
    weight = weight_of(likelihood, mean, targets)
    apart = not gives_probabilities(likelihood, mean) or link_of(likelihood, mean) == "sigmoid"
    shape = mean if apart else mean[:, :1]
    if weight is None:
        return torch.ones(math.prod(shape.shape), dtype=torch.bool, device=mean.device)
    return (weight > 0).expand_as(shape).movedim(1, -1).flatten()


def _averaged(found: Predictions, likelihood: Likelihood) -> Predictions:
    """The mean prediction alone, which sets and intervals are made of."""
    if link_of(likelihood, found.mean) == "sigmoid":
        raise CosetError(
            "got method='conformal' for yes-or-no outputs",
            "needed classes or numbers",
            "fit with Categorical() and two outputs, or use method='temperature'",
        )
    return replace(found, members=found.mean.unsqueeze(0), log_weights=None)


def _scored(rows: _Rows) -> _Rows:
    """Conformal scores: ``1 - p_y``, or ``|y - μ| / σ``."""
    values = rows.values.double().squeeze(1)
    if rows.classes:
        found = 1 - values.gather(1, rows.targets.unsqueeze(1)).squeeze(1)
    else:
        mean, variance = values.unbind(1)
        smallest = torch.finfo(torch.float64).tiny
        found = (rows.targets - mean).abs() / variance.sqrt().clamp_min(smallest)
    return replace(rows, values=found[:, None, None])
