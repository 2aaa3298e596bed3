"""A metric over a set that does not fit in memory: update with each batch, compute at the end."""

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.catalogue import Metric, Sums, metric_named


class Running:
    """One metric of the catalogue, accumulated over batches in memory that does not grow.

    Those that order the whole set (AUROC, bins of equal count, risk-coverage) run on histograms;
    ``bound`` says how far they may be from the exact ones.

    >>> running = Running("accuracy")
    >>> running.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    >>> running.update(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([1, 0]))
    >>> running.compute()  # 1 of 3
    tensor(0.3333, dtype=torch.float64)
    """

    def __init__(self, name: str) -> None:
        self.metric = metric_named(name)
        self._sums = as_sums(self.metric)
        self._total: Tensor | None = None

    def update(self, *readings: Tensor) -> None:
        """Add a batch: the arguments of the metric's function.  A refused batch adds nothing."""
        self.metric.function(*readings)
        statistics = self._sums.update(*readings)
        self._total = statistics if self._total is None else self._total + statistics

    def compute(self) -> Tensor:
        """The metric over all batches so far, in float64."""
        return self._sums.compute(self._seen())

    def bound(self) -> Tensor:
        """How far the result may be from the exact one, given these data; 0: it is exact."""
        seen = self._seen()
        return torch.zeros(()).to(seen) if self._sums.bound is None else self._sums.bound(seen)

    def _seen(self) -> Tensor:
        if self._total is None:
            raise CosetError(
                f"{self.metric.name} has seen no batch", "needed one or more", "call update first"
            )
        return self._total


def as_sums(metric: Metric) -> Sums:
    """The metric as a function of sums, the mean over inputs included."""
    if metric.sums is not None:
        return metric.sums
    per_input = metric.per_input
    if per_input is None:
        raise CosetError(
            f"{metric.name} needs the whole set at once",
            "needed a metric that is a function of sums over batches",
            "collect the predictions and call the function itself",
        )

    def update(*readings: Tensor) -> Tensor:
        values = per_input(*readings).double()
        return torch.stack([values.sum(), values.new_tensor(values.numel())])

    return Sums(update, lambda sums: sums[0] / sums[1])
