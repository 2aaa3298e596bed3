"""Temperature scaling (Guo et al. 2017): the post-hoc baseline of calibration."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_finite, check_floating, check_shape, check_targets

LOWEST, HIGHEST = 1e-3, 1e3
"""The temperatures we search; a validation set without a single error asks for zero."""


def fit_temperature(logits: Float[Tensor, "n c"], targets: Int[Tensor, " n"]) -> float:
    """The temperature t > 0 that minimises the mean of −log softmax(logits / t)_y.

    In β = 1/t the loss is convex with derivative E_p[z] − z_y and curvature Var_p[z], so Newton
    steps guarded by a bracket find the one minimum.  The logarithms of an ensemble's probabilities
    do as logits.

    >>> logits = torch.tensor([[2.0, 0.0]] * 4)  # confidence σ(2) = 0.88, right in 3 of 4 cases
    >>> t = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))
    >>> round(2 / t, 4)  # σ(2 / t) = 3/4, so 2 / t = log 3
    1.0986
    """
    check_floating("logits", logits)
    check_shape("logits", logits, ("n", "c"))
    check_finite("logits", logits)
    check_targets(targets, *logits.shape)
    values = logits.detach().double()
    values = values - values.gather(1, targets.long().unsqueeze(1))
    low, high, inverse = 1 / HIGHEST, 1 / LOWEST, 1.0
    for _ in range(200):
        slope, curvature = _derivatives(values, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else low
        proposal = step if low < step < high else (low * high) ** 0.5
        if abs(proposal - inverse) <= 1e-12 * inverse:
            break
        inverse = proposal
    return 1 / inverse


def _derivatives(values: Float[Tensor, "n c"], inverse: float) -> tuple[float, float]:
    """First and second derivative of the loss in β; values are logits minus the target's logit."""
    probabilities = torch.softmax(values * inverse, -1)
    mean = (probabilities * values).sum(-1)
    square = (probabilities * values.square()).sum(-1)
    return float(mean.mean()), float((square - mean.square()).mean())


def scale_temperature(logits: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n c"]:
    """softmax(logits / temperature).

    >>> scale_temperature(torch.tensor([[0.0, 0.0]]), 3.0).tolist()
    [[0.5, 0.5]]
    """
    check_floating("logits", logits)
    if not temperature > 0:
        raise CosetError(
            f"temperature is {temperature}", "needed a positive number", "call fit_temperature"
        )
    return torch.softmax(logits / temperature, -1)
