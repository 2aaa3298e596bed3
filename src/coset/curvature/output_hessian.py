"""The output Hessian itself, for the layer whose outputs are those of the network.

There no column has to be sent back: its gradients are the columns of ``B^½``, and their second
moment is ``Σ B``.  With a thousand classes this saves a thousand products.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Categorical, Likelihood
from coset.curvature.columns import exact

_ENTRIES = 1 << 24
"""Entries of the Hessians that are formed at a time."""


def summed(likelihood: Likelihood, outputs: Float[Tensor, "n c"]) -> Float[Tensor, "c c"]:
    """``Σ_n B_n``; for classes ``diag(Σ π) - Σ π πᵀ``.

    >>> summed(Categorical(), torch.zeros(3, 2))  # three times diag(½, ½) - ¼
    tensor([[ 0.7500, -0.7500],
            [-0.7500,  0.7500]])
    """
    if isinstance(exact(likelihood), Categorical):
        chances = outputs.softmax(1)
        return torch.diag(chances.sum(0)) - chances.mT @ chances
    return torch.stack([hessian.sum(0) for hessian in _slices(likelihood, outputs)]).sum(0)


def along(
    likelihood: Likelihood, outputs: Float[Tensor, "n c"], basis: Float[Tensor, "c k"]
) -> Float[Tensor, "n k"]:
    """``bᵀ B_n b`` for each column ``b`` of a basis.

    >>> along(Categorical(), torch.zeros(1, 2), torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor([[0.2500, 0.0000]])
    """
    if isinstance(exact(likelihood), Categorical):  # the variance of b over the classes
        chances = outputs.softmax(1)
        return (chances @ basis.square() - (chances @ basis).square()).clamp_min(0)
    parts = [((part @ basis) * basis).sum(1) for part in _slices(likelihood, outputs)]
    return torch.cat(parts)


def _slices(likelihood: Likelihood, outputs: Float[Tensor, "n c"]) -> Iterator[Tensor]:
    for some in outputs.split(max(1, _ENTRIES // outputs.shape[1] ** 2)):
        yield likelihood.hessian(some)
