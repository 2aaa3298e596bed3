"""Calibration: does a confidence of 0.8 mean right in 80 % of the cases?"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.metrics.checks import check_at_least, counted, working
from coset.metrics.scores import confident_answers


@dataclass(frozen=True)
class ReliabilityBins:
    """The bins of a reliability diagram, the empty ones included.

    Attributes:
        edges: Confidence where each bin starts and the last one ends.
        count: Inputs in each bin.
        confidence: Mean confidence in each bin, zero where it is empty.
        accuracy: Share of right answers in each bin, zero where it is empty.
    """

    edges: Float[Tensor, " edges"]
    count: Int[Tensor, " bins"]
    confidence: Float[Tensor, " bins"]
    accuracy: Float[Tensor, " bins"]

    @property
    def error(self) -> Float[Tensor, ""]:
        """Σ_b n_b / n · |accuracy_b − confidence_b|."""
        share = self.count.double() / self.count.sum()
        return (share * (self.accuracy - self.confidence).abs()).sum()

    @property
    def maximum_error(self) -> Float[Tensor, ""]:
        """max_b |accuracy_b − confidence_b|."""
        return (self.accuracy - self.confidence).abs().amax()


def expected_calibration_error(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    bins: int = 15,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """Gap between confidence and accuracy over bins (0, 1/b], …, ((b−1)/b, 1] of equal width.

    Σ_b n_b / n · |accuracy_b − confidence_b|, the confidence being the largest probability.

    >>> p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    >>> targets = torch.tensor([0, 1, 0])
    >>> round(float(expected_calibration_error(p, targets)), 4)  # 2/3 |1/2 − 0.9| + 1/3 |1 − 0.6|
    0.4
    """
    found = reliability(probabilities, targets, bins=bins, ignore=ignore)
    return found.error.to(probabilities.dtype)


def adaptive_calibration_error(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    bins: int = 15,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """The same gap over bins with equally many inputs, ordered by confidence.

    When ``bins`` does not divide n, the first bins hold one input more.  Equal confidences on the
    border of two bins are shared out evenly, so the order of the data does not matter.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    >>> targets = torch.tensor([0, 1, 0, 0])
    >>> error = adaptive_calibration_error(p, targets, bins=2)  # ½ |1 − 0.65| + ½ |0.5 − 0.85|
    >>> round(float(error), 4)
    0.35
    """
    found = adaptive_reliability(probabilities, targets, bins=bins, ignore=ignore)
    return found.error.to(probabilities.dtype)


def classwise_calibration_error(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    bins: int = 15,
    adaptive: bool = True,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """Calibration of every class's probability on every input, not of the top label only.

    Adaptive (Nixon et al. 2019): 1/(c·b) Σ_k Σ_b |frequency_kb − probability_kb| over ``bins``
    ranges of equal count for each class.  Otherwise bins of equal width, weighted by their share:
    1/c Σ_k Σ_b n_kb / n · |frequency_kb − probability_kb|.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    >>> error = classwise_calibration_error(p, torch.tensor([0, 0]), bins=2)
    >>> round(float(error), 4)  # gaps 0.1 and 0.2 for both classes
    0.15
    """
    check_at_least("bins", bins, 1)
    probabilities, targets = counted(probabilities, targets, ignore)
    columns = working(probabilities).T.contiguous()
    classes, inputs = columns.shape
    if not adaptive:
        happened = torch.zeros_like(columns)
        happened[targets.long(), torch.arange(inputs, device=columns.device)] = 1
        gaps = _equal_width_gaps(columns, happened, bins)
        return (gaps.sum() / (inputs * classes)).to(probabilities.dtype)
    order = columns.sort(dim=-1)
    own_class = torch.arange(classes, device=columns.device).unsqueeze(1)
    happened = targets[order.indices] == own_class
    sums = _equal_count_sums(order.values, happened, bins)
    return ((sums.right - sums.confidence).abs() / sums.count).mean().to(probabilities.dtype)


def reliability(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    bins: int = 15,
    ignore: int | None = None,
) -> ReliabilityBins:
    """The bins of equal width behind ``expected_calibration_error``.

    >>> p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    >>> reliability(p, torch.tensor([0, 1, 0]), bins=2).accuracy.tolist()  # (0, ½] is empty
    [0.0, 0.666...]
    """
    check_at_least("bins", bins, 1)
    probabilities, targets = counted(probabilities, targets, ignore)
    confidence, right = confident_answers(probabilities, targets)
    return bins_from_sums(equal_width_sums(confidence, right, bins))


def adaptive_reliability(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    bins: int = 15,
    ignore: int | None = None,
) -> ReliabilityBins:
    """The bins of equal count behind ``adaptive_calibration_error``; at most n of them.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    >>> adaptive_reliability(p, torch.tensor([0, 1, 0, 0]), bins=2).accuracy.tolist()
    [1.0, 0.5]
    """
    check_at_least("bins", bins, 1)
    probabilities, targets = counted(probabilities, targets, ignore)
    confidence, right = confident_answers(probabilities, targets)
    order = confidence.sort()
    sums = _equal_count_sums(order.values.unsqueeze(0), right[order.indices].unsqueeze(0), bins)
    last = sums.count.cumsum(0)
    edges = torch.cat([order.values[:1], order.values[last - 1]]).double()
    return ReliabilityBins(
        edges, sums.count, sums.confidence[0] / sums.count, sums.right[0] / sums.count
    )


def equal_width_sums(
    confidence: Float[Tensor, " n"], right: Bool[Tensor, " n"], bins: int
) -> Float[Tensor, "3 bins"]:
    """Count, summed confidence and summed right answers of bins of equal width, in float64.

    A bin holds its upper edge, the first one zero too.  Sums of parts of the data add up.
    """
    # Inner edges only: rounding may carry a confidence past one, and it belongs to the last bin.
    inner = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    index = torch.bucketize(confidence, inner)
    columns = torch.stack([torch.ones_like(confidence), confidence, right.to(confidence)]).double()
    sums = torch.zeros(3, bins, dtype=torch.float64, device=confidence.device)
    return sums.index_add_(1, index, columns)


def bins_from_sums(sums: Float[Tensor, "3 bins"]) -> ReliabilityBins:
    """The diagram that ``equal_width_sums`` stand for."""
    count, confidence, right = sums
    at_least_one = count.clamp_min(1)
    edges = torch.linspace(0, 1, sums.shape[1] + 1, dtype=torch.float64, device=sums.device)
    return ReliabilityBins(edges, count.long(), confidence / at_least_one, right / at_least_one)


def _equal_width_gaps(
    columns: Float[Tensor, "c n"], happened: Float[Tensor, "c n"], bins: int
) -> Float[Tensor, " cells"]:
    """n_kb · |frequency − probability| for each class and bin of equal width, flat."""
    inner = torch.linspace(0, 1, bins + 1, dtype=columns.dtype, device=columns.device)[1:-1]
    classes = len(columns)
    offset = torch.arange(classes, device=columns.device).unsqueeze(1) * bins
    index = (torch.bucketize(columns, inner) + offset).flatten()
    difference = (happened.double() - columns.double()).flatten()
    return torch.bincount(index, weights=difference, minlength=classes * bins).abs()


@dataclass(frozen=True)
class _EqualCountSums:
    count: Int[Tensor, " bins"]
    confidence: Float[Tensor, "k bins"]
    right: Float[Tensor, "k bins"]


def _equal_count_sums(ordered: Float[Tensor, "k n"], right: Tensor, bins: int) -> _EqualCountSums:
    """Sums over bins of equal count for k ascending rows, ties on a border shared out evenly."""
    inputs = ordered.shape[1]
    bins = min(bins, inputs)
    count = torch.full((bins,), inputs // bins, device=ordered.device)
    count[: inputs % bins] += 1
    border = count.cumsum(0)
    inner = border[:-1].expand(len(ordered), -1)
    up_to = torch.nn.functional.pad(right.double().cumsum(-1), (1, 0))
    # Among equal confidences the order is arbitrary: the border takes the mean over all orders.
    at_border = ordered.gather(1, inner).contiguous()
    start = torch.searchsorted(ordered, at_border, right=False)
    stop = torch.searchsorted(ordered, at_border, right=True)
    before, after = up_to.gather(1, start), up_to.gather(1, stop)
    shared = before + (after - before) * ((inner - start) / (stop - start).double())
    ends = torch.cat([shared, up_to[:, -1:]], dim=1)
    totals = torch.nn.functional.pad(ordered.double().cumsum(-1), (1, 0))[:, border]
    zero = torch.zeros_like(ends[:, :1])
    return _EqualCountSums(
        count, torch.diff(totals, prepend=zero, dim=1), torch.diff(ends, prepend=zero, dim=1)
    )
