"""Selective prediction: the error that remains when the least certain inputs are refused."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.metrics.checks import counted
from coset.metrics.scores import confident_answers


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve.

    Attributes:
        coverage: k/n, for k = 1 … n: the share of inputs that are answered.
        risk: The share of wrong answers among the k most confident ones.
    """

    coverage: Float[Tensor, " n"]
    risk: Float[Tensor, " n"]

    @property
    def area(self) -> Float[Tensor, ""]:
        """The mean of the risk over the n coverages."""
        return self.risk.mean()


def risk_coverage(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    ignore: int | None = None,
) -> RiskCoverage:
    """The risk at every coverage, inputs being answered in the order of their confidence.

    Equal confidences count with the mean over all their orders, so the order of the data does not
    matter.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> risk_coverage(p, torch.tensor([0, 1, 1])).risk.tolist()
    [0.0, 0.5, 0.333...]
    """
    probabilities, targets = counted(probabilities, targets, ignore)
    confidence, right = confident_answers(probabilities, targets)
    order = confidence.sort(descending=True)
    wrong = (~right[order.indices]).double()
    _, group, size = order.values.unique_consecutive(return_inverse=True, return_counts=True)
    group_sum = torch.zeros(len(size), dtype=wrong.dtype, device=wrong.device)
    shared = (group_sum.index_add_(0, group, wrong) / size)[group]
    answered = torch.arange(1, len(wrong) + 1, dtype=wrong.dtype, device=wrong.device)
    return RiskCoverage(answered / len(wrong), shared.cumsum(0) / answered)


def area_under_risk_coverage(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """The mean risk over all coverages: 1/n Σ_k risk(k/n) (Geifman and El-Yaniv 2017).

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> float(area_under_risk_coverage(p, torch.tensor([0, 1, 1])))  # (0 + 1/2 + 1/3) / 3
    0.277...
    """
    return risk_coverage(probabilities, targets, ignore=ignore).area.to(probabilities.dtype)
