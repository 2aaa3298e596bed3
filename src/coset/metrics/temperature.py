"""Scaling after training: of temperature (Guo et al. 2017), of classes, and of variances.

Each is a few numbers fitted on held-out predictions.  Logits may have a leading axis of members;
the mean of the members' scaled probabilities is then what is fitted (Rahaman and Thiery 2021).
The logarithms of probabilities do as logits.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_finite, check_floating, check_shape, check_targets
from coset.metrics.regression import check_gaussian

LOWEST, HIGHEST = 1e-3, 1e3
"""The temperatures we search; a validation set without a single error asks for zero."""


def fit_temperature(
    logits: Float[Tensor, "*m n c"],
    targets: Int[Tensor, " n"],
    *,
    log_weights: Float[Tensor, " m"] | None = None,
) -> float:
    """The temperature t > 0 that minimises the mean of −log softmax(logits / t)_y.

    In β = 1/t the loss is convex with derivative E_p[z] − z_y and curvature Var_p[z], so Newton
    steps guarded by a bracket find the one minimum.  Of members it is −log Σ_m w_m softmax(z_m/t)_y
    and need not be convex; what is found is then a minimum.

    Args:
        logits: Of all inputs, or of members and all inputs.
        targets: The class of each input.
        log_weights: Logarithm of each member's weight; ``None``: all weigh the same.

    >>> logits = torch.tensor([[2.0, 0.0]] * 4)  # confidence σ(2) = 0.88, right in 3 of 4 cases
    >>> t = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))
    >>> round(2 / t, 4)  # σ(2 / t) = 3/4, so 2 / t = log 3
    1.0986
    """
    values, shares = _checked(logits, targets, log_weights)
    index = targets.long().expand(len(values), -1).unsqueeze(2)
    values = values - values.gather(2, index)
    low, high, inverse = 1 / HIGHEST, 1 / LOWEST, 1.0
    for _ in range(200):
        slope, curvature = _derivatives(values, shares, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else low
        proposal = step if low < step < high else (low * high) ** 0.5
        if abs(proposal - inverse) <= 1e-12 * inverse:
            break
        inverse = proposal
    return 1 / inverse


def _checked(
    logits: Tensor, targets: Tensor, log_weights: Tensor | None
) -> tuple[Float[Tensor, "m n c"], Float[Tensor, "m 1"]]:
    """Logits in double precision with an axis of members, and the logarithms of their shares."""
    check_floating("logits", logits)
    several = logits.dim() == 3
    check_shape("logits", logits, ("m", "n", "c") if several else ("n", "c"))
    check_finite("logits", logits)
    check_targets(targets, *logits.shape[-2:])
    values = logits.detach().double()
    values = values if several else values.unsqueeze(0)
    if log_weights is None:
        log_weights = values.new_zeros(len(values))
    elif log_weights.shape != values.shape[:1]:
        raise CosetError(
            f"got log-weights of shape {tuple(log_weights.shape)} for {len(values)} members",
            "needed one a member",
        )
    return values, log_weights.to(values).log_softmax(0).unsqueeze(1)


def _derivatives(
    values: Float[Tensor, "m n c"], shares: Float[Tensor, "m 1"], inverse: float
) -> tuple[float, float]:
    """First and second derivative of the loss in β; values are logits minus the target's logit."""
    scaled = values * inverse
    probabilities = torch.softmax(scaled, -1)
    mean = (probabilities * values).sum(-1)
    variance = (probabilities * values.square()).sum(-1) - mean.square()
    # how much of the target's probability each member gives
    parts = (shares - torch.logsumexp(scaled, -1)).softmax(0)
    slope = (parts * mean).sum(0)
    between = (parts * mean.square()).sum(0) - slope.square()
    curvature = (parts * variance).sum(0) - between
    return float(slope.mean()), float(curvature.mean())


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


def fit_vector_scaling(
    logits: Float[Tensor, "*m n c"],
    targets: Int[Tensor, " n"],
    *,
    log_weights: Float[Tensor, " m"] | None = None,
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Factors a and offsets b of the classes, for −Σ log softmax(a ⊙ z + b)_y + ½|a−1|² + ½|b|².

    The penalty is that of a standard normal prior around no change: it decides what the data leave
    open, such as a class that they do not hold, and is soon outweighed elsewhere.

    Args:
        logits: Of all inputs, or of members and all inputs.
        targets: The class of each input.
        log_weights: Logarithm of each member's weight; ``None``: all weigh the same.

    >>> logits = torch.zeros(400, 2)
    >>> _, offsets = fit_vector_scaling(logits, torch.arange(400) // 300)  # 300 of 400 are class 0
    >>> round(float((offsets[0] - offsets[1]).exp()), 1)  # odds 3 : 1, a little less
    3.0
    """
    values, shares = _checked(logits, targets, log_weights)
    classes = values.shape[2]
    start = torch.cat([values.new_ones(classes), values.new_zeros(classes)])
    found = start.clone().requires_grad_()
    index = targets.long().expand(len(values), -1).unsqueeze(2)
    search = torch.optim.LBFGS(
        [found],
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        search.zero_grad()
        scaled = found[:classes] * values + found[classes:]
        own = scaled.gather(2, index).squeeze(2) - torch.logsumexp(scaled, -1)
        surprise = -torch.logsumexp(shares + own, 0).sum()
        total = (surprise + (found - start).square().sum() / 2) / values.shape[1]
        total.backward()
        return total

    with torch.enable_grad():
        search.step(loss)
    return found.detach()[:classes], found.detach()[classes:]


def fit_variance_factor(
    mean: Float[Tensor, "n ..."], variance: Float[Tensor, "n ..."], targets: Float[Tensor, "n ..."]
) -> float:
    """The factor s² for which N(mean, s² variance) has the highest density: mean (y − μ)²/σ².

    >>> fit_variance_factor(torch.zeros(2), torch.ones(2), torch.tensor([1.0, 3.0]))
    5.0
    """
    check_gaussian(mean, variance, targets)
    squares = (targets.double() - mean.double()).square() / variance.double()
    return float(squares.mean().clamp_min(torch.finfo(torch.float64).tiny))
