"""The output Hessian itself, for the layer whose outputs are those of the network.

There no column has to be sent back: its gradients are the columns of ``B^½``, and their second
moment is ``Σ B``.  With a thousand classes this saves a thousand products.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import hessian, hessian_along, sum_of_hessians
from coset.bayes.likelihood import Likelihood
from coset.curvature.columns import exact

_ENTRIES = 1 << 24
"""Entries of the Hessians that are formed at a time."""


def summed(
    likelihood: Likelihood, outputs: Float[Tensor, "n c"], targets: Tensor
) -> Float[Tensor, "c c"]:
    """``Σ_n B_n``; for classes ``diag(Σ π) - Σ π πᵀ``.

    >>> from coset import Categorical
    >>> labels = torch.tensor([0, 1, 1])
    >>> summed(Categorical(), torch.zeros(3, 2), labels)  # three times diag(½, ½) - ¼
    tensor([[ 0.7500, -0.7500],
            [-0.7500,  0.7500]])
    """
    found = sum_of_hessians(exact(likelihood), outputs, targets)
    if found is not None:
        return found
    parts = _slices(likelihood, outputs, targets)
    return torch.stack([part.sum(0) for part in parts]).sum(0)


def along(
    likelihood: Likelihood,
    outputs: Float[Tensor, "n c"],
    targets: Tensor,
    basis: Float[Tensor, "c k"],
) -> Float[Tensor, "n k"]:
    """``bᵀ B_n b`` for each column ``b`` of a basis.

    >>> from coset import Categorical
    >>> basis = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> along(Categorical(), torch.zeros(1, 2), torch.tensor([0]), basis)
    tensor([[0.2500, 0.0000]])
    """
    found = hessian_along(exact(likelihood), outputs, targets, basis)
    if found is not None:
        return found
    parts = _slices(likelihood, outputs, targets)
    return torch.cat([((part @ basis) * basis).sum(1) for part in parts])


def _slices(
    likelihood: Likelihood, outputs: Float[Tensor, "n c"], targets: Tensor
) -> Iterator[Tensor]:
    some = max(1, _ENTRIES // outputs.shape[1] ** 2)
    for few, labels in zip(outputs.split(some), targets.split(some), strict=True):
        yield hessian(exact(likelihood), few, labels)
