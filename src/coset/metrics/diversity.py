"""Diversity of the members of a posterior: how much they disagree, and where."""

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import (
    check_floating,
    check_not_nan,
    check_probabilities,
    check_shape,
    check_simplex,
    sums_to_one,
    working,
)

BLOCK = 1 << 18
"""Entries worked on at a time: a megabyte in float32, so that a block stays in cache."""


def entropy(probabilities: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """The entropy of each input's prediction in nats: −Σ_k p_k log p_k, with 0 log 0 = 0.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()  # log 2 and zero
    [0.693..., 0.0]
    """
    check_probabilities("probabilities", probabilities)
    return entropy_unchecked(probabilities)


def entropy_unchecked(probabilities: Float[Tensor, "*axes c"]) -> Float[Tensor, "*axes"]:
    """The entropy over the last axis, of probabilities that were checked before."""
    values = working(probabilities)
    tiny = torch.finfo(values.dtype).tiny
    return (0 - _p_log_p(values, values.clamp_min(tiny)).sum(-1)).to(probabilities.dtype)


def _p_log_p(values: Float[Tensor, "*axes"], positive: Float[Tensor, "*axes"]) -> Tensor:
    """Values times the logarithm of positive ones: torch.special.entr is not vectorised."""
    logs = positive.log()
    return logs * values if logs.requires_grad else logs.mul_(values)


def mutual_information(
    members: Float[Tensor, "m n c"], log_weights: Float[Tensor, " m"] | None = None
) -> Float[Tensor, " n"]:
    """How much the members disagree on each input, in nats, at least zero and at most log m.

    H(Σ_i w_i p_i) − Σ_i w_i H(p_i): the mutual information between the prediction and the choice of
    the member, which is the Jensen–Shannon divergence of the members.  All weigh the same, 1/m,
    without ``log_weights``.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()  # log 2
    [0.693...]
    """
    check_members(members)
    shares = _shares(members, log_weights)
    rows = max(1, BLOCK // (members.shape[0] * members.shape[2]))
    return torch.cat([_mutual_information(block, shares) for block in members.split(rows, dim=1)])


def _mutual_information(
    members: Float[Tensor, "m n c"], shares: Float[Tensor, " m"] | None
) -> Float[Tensor, " n"]:
    """Of a block that stays in cache, where the checks and all passes are cheap."""
    values = working(members)
    mean = _mean(values, shares)

    def minus_entropies(positive: Tensor) -> Tensor:
        terms = _p_log_p(values, positive)
        if shares is None:
            # Members and classes are summed in one reduction: single entropies are not needed.
            return terms.sum((0, 2)) / len(values)
        return _mean(terms.sum(2), shares)

    minus_entropy = minus_entropies(values)
    if bool(minus_entropy.isnan().any()) or not sums_to_one(members.detach()):
        # An entry is not positive: say why, or if it is zero only, take 0 log 0 = 0.
        check_simplex("members", members.detach())
        minus_entropy = minus_entropies(values.clamp_min(torch.finfo(values.dtype).tiny))
    return (entropy_unchecked(mean) + minus_entropy).clamp_min(0).to(members.dtype)


def _mean(values: Float[Tensor, "m ..."], shares: Float[Tensor, " m"] | None) -> Tensor:
    """Over the members."""
    return values.mean(0) if shares is None else torch.tensordot(shares.to(values), values, dims=1)


def _shares(
    members: Float[Tensor, "m n c"], log_weights: Float[Tensor, " m"] | None
) -> Float[Tensor, " m"] | None:
    """Weights that sum to one, or nothing where all are equal."""
    if log_weights is None:
        return None
    check_floating("log_weights", log_weights)
    check_not_nan("log_weights", log_weights)
    if log_weights.shape != members.shape[:1]:
        raise CosetError(
            f"log_weights has shape {tuple(log_weights.shape)} for {len(members)} members",
            f"needed shape ({len(members)},), one a member",
            "give those of the predictions, or leave them out",
        )
    shares = log_weights.double().softmax(0)
    return None if bool((shares == shares[0]).all()) else shares


def disagreement(
    members: Float[Tensor, "m n c"], log_weights: Float[Tensor, " m"] | None = None
) -> Float[Tensor, ""]:
    """The share of inputs on which two members predict different classes, averaged over the pairs.

    With n_k members voting for class k, 1 − Σ_k n_k (n_k − 1) / m (m − 1), averaged over inputs;
    with ``log_weights`` a pair weighs w_i w_j.

    >>> sure, unsure = [0.9, 0.1], [0.2, 0.8]
    >>> float(disagreement(torch.tensor([[sure], [sure], [unsure]])))  # 2 of 3 pairs
    0.666...
    """
    check_probabilities("members", members, ("m", "n", "c"))
    return disagreement_inputs(members, log_weights).mean().to(members.dtype)


def disagreement_inputs(
    members: Float[Tensor, "m n c"], log_weights: Float[Tensor, " m"] | None = None
) -> Float[Tensor, " n"]:
    """The share of pairs of members that disagree on each input, in float64."""
    count, inputs, classes = members.shape
    check_two_members(count)
    shares = _shares(members, log_weights)
    votes = torch.zeros(inputs, classes, dtype=torch.float64, device=members.device)
    answers = members.max(-1).indices.T
    if shares is None:
        votes.scatter_add_(1, answers, votes.new_ones(answers.shape))
        return 1 - (votes * (votes - 1)).sum(-1) / (count * (count - 1))
    votes.scatter_add_(1, answers, shares.to(votes).expand(answers.shape))
    pairs = (1 - shares.square().sum()).clamp_min(torch.finfo(torch.float64).tiny)
    return ((1 - votes.square().sum(-1)) / pairs).clamp(0, 1)


def check_members(members: Tensor) -> None:
    """Refuse members that are not floating-point numbers of shape (m, n, c)."""
    check_floating("members", members)
    check_shape("members", members, ("m", "n", "c"))


def check_two_members(count: int) -> None:
    """Refuse fewer members than a pair."""
    if count < 2:
        raise CosetError(
            f"members has {count} member",
            "needed at least two to compare",
            "draw more members from the posterior",
        )
