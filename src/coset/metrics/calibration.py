"""Calibration: does a confidence of 0.8 mean right in 80 % of the cases?"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.metrics.checks import check_at_least, check_classification, working


@dataclass(frozen=True)
class ReliabilityBins:
    """The bins of a reliability diagram, the empty ones included.

    Attributes:
        edges: Confidence where each bin starts and the last one ends.
        count: Inputs in each bin.
        confidence: Mean confidence in each bin, zero where it is empty.
        accuracy: Share of right answers in each bin, zero where it is empty.
    """

    edges: Float[Tensor, " bins+1"]
    count: Int[Tensor, " bins"]
    confidence: Float[Tensor, " bins"]
    accuracy: Float[Tensor, " bins"]

    @property
    def error(self) -> Float[Tensor, ""]:
        """Σ_b n_b / n · |accuracy_b − confidence_b|."""
        share = self.count / self.count.sum()
        return (share * (self.accuracy - self.confidence).abs()).sum()


def expected_calibration_error(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"], *, bins: int = 15
) -> Float[Tensor, ""]:
    """Gap between confidence and accuracy over bins (0, 1/b], …, ((b−1)/b, 1] of equal width.

    Σ_b n_b / n · |accuracy_b − confidence_b|, the confidence being the largest probability.

    >>> p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    >>> targets = torch.tensor([0, 1, 0])
    >>> round(float(expected_calibration_error(p, targets)), 4)  # 2/3 |1/2 − 0.9| + 1/3 |1 − 0.6|
    0.4
    """
    return reliability(probabilities, targets, bins=bins).error.to(probabilities.dtype)


def reliability(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"], *, bins: int = 15
) -> ReliabilityBins:
    """The bins of equal width behind ``expected_calibration_error``.

    >>> p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    >>> reliability(p, torch.tensor([0, 1, 0]), bins=2).accuracy.tolist()  # (0, ½] is empty
    [0.0, 0.666...]
    """
    check_at_least("bins", bins, 1)
    check_classification(probabilities, targets)
    confidence, right = confident_answers(probabilities, targets)
    return equal_width_bins(confidence, right, bins)


def confident_answers(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The confidence of each input, and one where the answer was right, zero elsewhere."""
    confidence, answers = working(probabilities).max(-1)
    return confidence, (answers == targets).to(confidence.dtype)


def equal_width_bins(
    confidence: Float[Tensor, " n"], right: Float[Tensor, " n"], bins: int
) -> ReliabilityBins:
    """Bins of equal width over [0, 1]; a bin holds its upper edge, the first one zero too."""
    edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)
    # Inner edges only: rounding may carry a confidence past one, and it belongs to the last bin.
    index = torch.bucketize(confidence, edges[1:-1])
    sums = torch.zeros(3, bins, dtype=torch.float64, device=confidence.device)
    columns = torch.stack([torch.ones_like(confidence), confidence, right]).double()
    count, summed_confidence, summed_right = sums.index_add_(1, index, columns)
    at_least_one = count.clamp_min(1)
    return ReliabilityBins(
        edges.double(), count.long(), summed_confidence / at_least_one, summed_right / at_least_one
    )
