"""What ``evaluate`` keeps of a test set while it predicts it batch by batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from coset.bayes.batches import as_tensor, every_row, read_batch, read_inputs, read_pair
from coset.bayes.named import has_target
from coset.errors import CosetError
from coset.metrics.bootstrap import bootstrap_of_sums, bootstrap_standard_error
from coset.metrics.catalogue import Metric
from coset.metrics.checks import check_classification, check_same_shape, flatten_pixels
from coset.metrics.regression import check_gaussian, check_points
from coset.metrics.running import as_sums
from coset.vocabulary import Batch, Inputs
from coset.weights.inputs import split_rows
from coset.weights.randomness import own_draws, own_randomness

BATCH = 512
"""Inputs predicted at a time, unless the data come as a loader."""

_PIXELS = 1 << 19
"""Pixels of such inputs at most, beyond one."""

Data: TypeAlias = Tensor | tuple[Inputs] | Batch | Dataset[object] | Iterable[object]
"""Inputs alone, inputs and targets, or anything that yields these.

Several inputs are a tuple, ``((a, b), targets)``; without targets ``((a, b),)``, since ``(a, b)``
is one input and its targets."""

Readings: TypeAlias = dict[str, Tensor]


@runtime_checkable
class PredictionsLike(Protocol):
    """What a prediction must offer."""

    @property
    def mean(self) -> Tensor:
        """Probabilities, or means of regression: (n, c) or (n, c, …) with pixels."""
        ...

    @property
    def members(self) -> Tensor:
        """The same of each draw, members first."""
        ...

    @property
    def variance(self) -> Tensor | None:
        """The predictive variance of regression, shaped like the mean."""
        ...


@dataclass
class Collected:
    """Predictions reduced to what the metrics need.

    Of a metric that is a mean we keep its value for each input; of the others the readings, or in
    dense tasks, where an image is an input, the summed statistics: of each image by itself if
    images are to be resampled, of all together if not.
    """

    metrics: tuple[Metric, ...]
    dense: bool
    resampled: bool = True
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    statistics: dict[str, list[Tensor]] = field(default_factory=dict)
    columns: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, readings: Readings) -> None:
        """Reduce the readings of a batch, or of one image of a dense task."""
        columns = set()
        for metric in self.metrics:
            read = [readings[name] for name in metric.reads if name in readings]
            if len(read) < len(metric.reads):
                columns |= set(metric.reads)
            elif self.dense and (metric.per_input is not None or metric.sums is not None):
                # sums, not means: images may have different numbers of pixels that count
                self._add_statistics(metric.name, as_sums(metric).update(*read))
            elif metric.per_input is not None:
                value = metric.per_input(*read).double()
                self.values.setdefault(metric.name, []).append(value)
            else:
                columns |= set(metric.reads)
        for name in sorted(columns & set(readings)):
            self.columns.setdefault(name, []).append(readings[name])

    def _add_statistics(self, name: str, statistics: Tensor) -> None:
        parts = self.statistics.setdefault(name, [])
        if parts and not self.resampled:
            parts[0] += statistics
        else:
            parts.append(statistics)

    def results(self, resamples: int | None, generator: torch.Generator) -> dict[str, float]:
        """Every metric, followed by its standard error if resamples are asked for."""
        columns = {name: torch.cat(parts) for name, parts in self.columns.items()}
        record: dict[str, float] = {}
        for metric in self.metrics:
            value, error = self._finish(metric, columns)
            record[metric.name] = value
            if resamples is not None:
                record[f"{metric.name}_standard_error"] = error(resamples, generator)
        return record

    def _finish(
        self, metric: Metric, columns: dict[str, Tensor]
    ) -> tuple[float, Callable[[int, torch.Generator], float]]:
        """The metric, and how to get its standard error."""
        if metric.name in self.values:
            values = torch.cat(self.values[metric.name])
            return float(values.mean()), lambda resamples, generator: bootstrap_of_sums(
                values, lambda total: total / len(values), resamples=resamples, generator=generator
            )
        if metric.name in self.statistics:
            compute, images = as_sums(metric).compute, torch.stack(self.statistics[metric.name])
            return float(compute(images.sum(0))), lambda resamples, generator: bootstrap_of_sums(
                images, compute, resamples=resamples, generator=generator
            )
        read = [columns[name] for name in metric.reads]
        # Inliers and outliers are sets of their own; everything else is resampled together.
        apart = "outlier_scores" in metric.reads
        groups = [(column,) for column in read] if apart else [tuple(read)]
        return float(metric.function(*read)), lambda resamples, generator: bootstrap_standard_error(
            metric.function, *groups, resamples=resamples, generator=generator
        )


def readings(
    predictions: PredictionsLike,
    targets: Tensor,
    *,
    yes_or_no: bool | None = None,
    counts: Tensor | None = None,
) -> Readings:
    """What the metrics can read of one batch.

    Whole-number targets mean classification, others regression; with ``yes_or_no`` every output is
    a question of its own, and targets are zeros and ones of any dtype.  ``counts`` says which
    targets have a say, ready to broadcast against the mean; ``None``: all.
    """
    mean, members = predictions.mean, predictions.members
    if yes_or_no is None:
        yes_or_no = mean.shape[1] == 1 and not targets.is_floating_point()
    if yes_or_no:
        found = _yes_or_no_readings(mean, members, targets, counts)
    elif targets.is_floating_point():
        return _regression_readings(mean, predictions.variance, targets, counts)
    else:
        pixels = mean.ndim > 2
        if pixels:
            mean, targets = flatten_pixels(mean, targets)
            members = members.movedim(2, -1).flatten(1, -2)
        if counts is not None:
            known = counts[:, 0].flatten()
            mean, targets, members = mean[known], targets[known], members[:, known]
        found = _classification_readings(mean, members, targets, pixels=pixels)
    if is_closed_form(predictions):
        del found["members"]
    return found | {"log_weights": log_weights_of(predictions)}


def log_weights_of(predictions: PredictionsLike) -> Tensor:
    """Of each member; equal unless the predictions have some."""
    found: Tensor | None = getattr(predictions, "log_weights", None)
    return torch.zeros(len(predictions.members)).log_softmax(0) if found is None else found


def is_closed_form(predictions: PredictionsLike) -> bool:
    """Whether an average was taken on paper: one member that says nothing of how others differ."""
    return len(predictions.members) == 1 and getattr(predictions, "covariance", None) is not None


def _yes_or_no_readings(
    mean: Tensor, members: Tensor, targets: Tensor, counts: Tensor | None
) -> Readings:
    """Every output is an input with two classes: its probability, and that of the other answer."""
    if mean.shape[1] == 1 and targets.ndim == mean.ndim - 1:
        targets = targets.unsqueeze(1)
    check_same_shape("the mean", mean, "targets", targets)
    if counts is not None:
        known = counts.expand_as(mean)
        mean, targets, members = mean[known], targets[known], members[:, known]
    if not bool(((targets == 0) | (targets == 1)).all()):
        raise CosetError(
            "targets have entries other than 0 and 1",
            "needed yes-or-no targets for predictions with one probability an output",
            "check the targets",
        )
    mean, targets, members = mean.flatten(), targets.flatten(), members.flatten(1)
    return _classification_readings(
        torch.stack([1 - mean, mean], -1),
        torch.stack([1 - members, members], -1),
        targets.long(),
        pixels=False,
    )


def _classification_readings(
    mean: Tensor, members: Tensor, labels: Tensor, *, pixels: bool
) -> Readings:
    check_classification(mean, labels)
    found = {"probabilities": mean, "labels": labels, "members": members}
    if len(members) > 1:
        found["several_members"] = members
    if pixels:
        found["pixel_probabilities"] = mean
    return found


def _regression_readings(
    mean: Tensor, variance: Tensor | None, targets: Tensor, counts: Tensor | None
) -> Readings:
    if mean.shape[1] == 1 and targets.shape == mean.shape[:1] + mean.shape[2:]:
        targets = targets.unsqueeze(1)
    if counts is not None:  # each number that counts by itself
        check_same_shape("the mean", mean, "targets", targets)
        known = counts.expand_as(mean)
        mean, targets = mean[known].unsqueeze(1), targets[known].unsqueeze(1)
        variance = None if variance is None else variance[known].unsqueeze(1)
    if variance is None:
        check_points(mean, targets)
        return {"mean": mean, "targets": targets}
    check_gaussian(mean, variance, targets)
    return {"mean": mean, "variance": variance, "targets": targets}


@dataclass(frozen=True)
class Slice:
    """One input of a batch of predictions."""

    mean: Tensor
    members: Tensor
    variance: Tensor | None
    covariance: Tensor | None = None
    log_weights: Tensor | None = None


def one_by_one(
    predictions: PredictionsLike, targets: Tensor
) -> Iterator[tuple[PredictionsLike, Tensor]]:
    """The predictions of each input by itself."""
    variance, covariance = predictions.variance, getattr(predictions, "covariance", None)
    for i in range(len(targets)):
        row = slice(i, i + 1)
        part = Slice(
            predictions.mean[row],
            predictions.members[:, row],
            None if variance is None else variance[row],
            None if covariance is None else covariance[row],
            getattr(predictions, "log_weights", None),
        )
        yield part, targets[row]


def batches(data: Data, module: nn.Module | None = None) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Inputs and targets, a batch at a time; targets are None where the data have inputs only.

    Args:
        data: What is read.
        module: Whose ``forward`` says in which order it takes the inputs of dictionaries.

    >>> [len(inputs) for inputs, _ in batches(torch.zeros(700, 2))]
    [512, 188]
    """
    data = as_tensor(data)
    if isinstance(data, Tensor):
        yield from ((part, None) for part in data.split(_rows_of(data)) if len(part))
    elif isinstance(data, tuple):
        yield from _tuple_batches(data, module)
    elif isinstance(data, Mapping):
        inputs, targets = _read(data, module)
        yield from _tuple_batches((inputs,) if targets is None else (inputs, targets), module)
    else:
        # a loader draws a seed for its workers: not from the generator of the user
        loader: Iterable[object] = (
            DataLoader(data, batch_size=_rows_of_examples(data), generator=torch.Generator())
            if isinstance(data, Dataset)
            else every_row(data)
            if isinstance(data, DataLoader)
            else data
        )
        for batch in loader:
            yield _read(batch, module)


def _rows_of(inputs: object) -> int:
    """Inputs to predict at a time: fewer of large pictures, whose outputs may have pixels too.

    >>> _rows_of(torch.zeros(1, 3, 360, 480))
    3
    """
    while isinstance(inputs, list | tuple) and inputs:
        inputs = as_tensor(inputs[0])
    shape: tuple[int, ...] = getattr(inputs, "shape", ())
    return max(1, min(BATCH, _PIXELS // max(1, prod(shape[2:]))))


def _rows_of_examples(data: Dataset[object]) -> int:
    if isinstance(data, IterableDataset):  # a stream has no first example to look at
        return BATCH
    with own_randomness(0), own_draws():  # which a data set that augments would draw from
        first = as_tensor(data[0])
    while isinstance(first, list | tuple | Mapping) and first:
        first = as_tensor(next(iter(first.values())) if isinstance(first, Mapping) else first[0])
    return _rows_of(first.unsqueeze(0) if isinstance(first, Tensor) else None)


def _tuple_batches(
    data: tuple[object, ...], module: nn.Module | None
) -> Iterator[tuple[Inputs, Tensor | None]]:
    if len(data) == 1:
        alone = read_inputs(data[0], module)
        yield from ((part, None) for part in split_rows(alone, _rows_of(alone)))
        return
    inputs, targets = read_pair(data, module)
    rows = _rows_of(inputs)
    yield from zip(split_rows(inputs, rows), targets.split(rows), strict=True)


def _read(batch: object, module: nn.Module | None) -> tuple[Inputs, Tensor | None]:
    batch = as_tensor(batch)
    if isinstance(batch, Mapping) and not has_target(batch):
        return read_inputs(batch, module), None
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, list | tuple) and len(batch) == 1:
        return read_inputs(batch[0], module), None
    return read_batch(batch, module)
