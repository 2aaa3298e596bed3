"""Scores of classification: how often right, and how good the probabilities are."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.metrics.checks import counted, working


def accuracy(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """The share of inputs whose most probable class is the target: 1/n Σ 1[argmax p = y].

    Among equal probabilities the first class counts as the prediction.

    >>> p = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4], [0.2, 0.8]])
    >>> float(accuracy(p, torch.tensor([0, 1, 1, 1])))
    0.75
    """
    probabilities, targets = counted(probabilities, targets, ignore)
    return correct_inputs(probabilities, targets).mean().to(probabilities.dtype)


def correct_inputs(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """One for each input that is classified right, zero for the others, in float64."""
    return confident_answers(probabilities, targets)[1].double()


def confident_answers(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """The largest probability of each input, and whether its class is the target.

    The maximum without the target's entry tells both and costs a third of finding where the maximum
    is; only for ties do we look which class comes first.
    """
    values, labels = working(probabilities.detach()), targets.long()
    of_target = values.gather(1, labels.unsqueeze(1)).squeeze(1)
    of_others = values.scatter(1, labels.unsqueeze(1), -1.0).amax(-1)
    right = of_target > of_others
    tied = (of_target == of_others).nonzero().squeeze(1)
    right[tied] = values[tied].max(-1).indices == labels[tied]
    return torch.maximum(of_target, of_others), right


def negative_log_likelihood(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """The mean surprise in nats: −1/n Σ log p(y), infinite where the target had probability zero.

    >>> p = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    >>> round(float(negative_log_likelihood(p, torch.tensor([0, 1]))), 4)  # log 2
    0.6931
    """
    probabilities, targets = counted(probabilities, targets, ignore)
    return log_loss_inputs(probabilities, targets).mean().to(probabilities.dtype)


def log_loss_inputs(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """−log p(y) of each input, in float64."""
    return -_target_probability(probabilities, targets).log()


def brier(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    *,
    ignore: int | None = None,
) -> Float[Tensor, ""]:
    """The Brier score in its original form, between 0 and 2: 1/n Σ Σ_k (p_k − 1[y = k])².

    >>> p = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    >>> round(float(brier(p, torch.tensor([0, 0]))), 4)  # (0.04 + 0.04 + 0.36 + 0.36) / 2
    0.4
    """
    probabilities, targets = counted(probabilities, targets, ignore)
    return brier_inputs(probabilities, targets).mean().to(probabilities.dtype)


def brier_inputs(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Σ_k p_k² − 2 p_y + 1 of each input, in float64: no one-hot targets are built."""
    norms: Tensor = torch.linalg.vector_norm(working(probabilities), dim=-1)
    return norms.double().square() - 2 * _target_probability(probabilities, targets) + 1


def _target_probability(
    probabilities: Float[Tensor, "n c"], targets: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    return probabilities.gather(1, targets.long().unsqueeze(1)).squeeze(1).double()
