"""Stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017).

``log det A = tr log A`` is the mean of ``vᵀ (log A) v`` over random signs ``v``; each of these is a
Gauss quadrature whose nodes and weights come from a few Lanczos steps.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.linalg.operators import LinearOperator


@dataclass(frozen=True)
class Estimate:
    """A number found by sampling.

    Attributes:
        value: The mean over probes.
        standard_error: Of that mean, from the spread of the probes.
    """

    value: float
    standard_error: float


def stochastic_logdet(
    operator: LinearOperator,
    *,
    probes: int,
    steps: int,
    like: Tensor,
    generator: torch.Generator,
    together: int | None = None,
) -> Estimate:
    """``log det`` of a positive definite operator, with its standard error.

    The error is that of the sampling; the quadrature itself converges geometrically in ``steps``,
    the faster the nearer the operator is to the identity.

    Args:
        operator: The operator.
        probes: Random vectors, at least two.
        steps: Lanczos steps of each.
        like: Whose type and device the vectors have.
        generator: Where they come from.
        together: How many go side by side; ``None``: all.

    >>> from coset.linalg import Diagonal
    >>> operator = Diagonal(torch.full((5,), math.e))
    >>> options = {"probes": 2, "steps": 1, "like": torch.zeros(())}
    >>> found = stochastic_logdet(operator, generator=torch.Generator(), **options)
    >>> round(found.value, 5), round(found.standard_error, 5)
    (5.0, 0.0)
    """
    if probes < 2 or steps < 1:
        raise CosetError(
            f"got {probes} probes of {steps} steps", "needed at least two probes of one step"
        )
    size = operator.shape[0]
    values: list[Tensor] = []
    for start in range(0, probes, together or probes):
        count = min(together or probes, probes - start)
        signs = torch.randint(0, 2, (count, size), generator=generator, device=generator.device)
        vectors = (2 * signs - 1).to(like).mT / math.sqrt(size)
        nodes, weights = quadrature(operator, vectors, min(steps, size))
        if bool((nodes <= 0).any()):
            raise CosetError(
                f"got the eigenvalue {float(nodes.min()):.1e}",
                "needed a positive definite operator",
                "use float64 weights and data",
            )
        values.extend(size * (weights * nodes.log()).sum(1))
    each = torch.stack(values)
    return Estimate(float(each.mean()), float(each.std()) / math.sqrt(probes))


def quadrature(
    operator: LinearOperator, vectors: Float[Tensor, "p k"], steps: int
) -> tuple[Float[Tensor, "k m"], Float[Tensor, "k m"]]:
    """Nodes and weights of the Gauss quadrature of each unit vector's spectral measure.

    Vectors are not made orthogonal again: eigenvalues found twice share their weight, which leaves
    the quadrature as it is.
    """
    diagonal, beside = [], []
    before, vector = torch.zeros_like(vectors), vectors
    beta = vectors.new_zeros(vectors.shape[1])
    for _ in range(steps):
        product = operator.matmat(vector) - beta * before
        alpha = (vector * product).sum(0)
        product = product - alpha * vector
        beta = product.norm(dim=0)
        # an invariant subspace: what comes after has no weight, and must not be noise
        beta = torch.where(beta > 1e3 * torch.finfo(beta.dtype).eps * alpha.abs(), beta, 0.0)
        diagonal.append(torch.where(alpha == 0, 1.0, alpha))
        beside.append(beta)
        before = vector
        vector = torch.where(beta > 0, product / beta.clamp_min(1e-300), 0.0)
    table = torch.diag_embed(torch.stack(diagonal, 1).double())
    if steps > 1:
        side = torch.stack(beside[:-1], 1).double()
        table = table + torch.diag_embed(side, 1) + torch.diag_embed(side, -1)
    nodes, basis = torch.linalg.eigh(table)
    return nodes, basis[:, 0].square()
