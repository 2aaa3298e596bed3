"""Closeness of a prediction to that of a reference posterior, such as long chains of HMC."""

from jaxtyping import Float
from torch import Tensor

from coset.metrics.checks import check_probabilities, check_same_shape


def agreement(
    probabilities: Float[Tensor, "n c"], reference: Float[Tensor, "n c"]
) -> Float[Tensor, ""]:
    """The share of inputs on which both predict the same class: 1/n Σ 1[argmax p = argmax q].

    >>> import torch
    >>> p = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
    >>> float(agreement(p, torch.tensor([[0.6, 0.4], [0.7, 0.3]])))
    0.5
    """
    _check_pair(probabilities, reference)
    same = probabilities.max(-1).indices == reference.max(-1).indices
    return same.double().mean().to(probabilities.dtype)


def total_variation(
    probabilities: Float[Tensor, "n c"], reference: Float[Tensor, "n c"]
) -> Float[Tensor, ""]:
    """The mean total variation distance, between 0 and 1: 1/n Σ ½ Σ_k |p_k − q_k|.

    >>> import torch
    >>> p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    >>> float(total_variation(p, torch.tensor([[0.5, 0.5], [0.5, 0.5]])))  # (½ + 0) / 2
    0.25
    """
    _check_pair(probabilities, reference)
    distance = (probabilities - reference).abs().sum(-1) / 2
    return distance.double().mean().to(probabilities.dtype)


def _check_pair(probabilities: Tensor, reference: Tensor) -> None:
    check_probabilities("probabilities", probabilities)
    check_probabilities("reference", reference)
    check_same_shape("probabilities", probabilities, "reference", reference)
