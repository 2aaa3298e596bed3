"""Priors of 3 × 3 filters: correlation falls with the distance of two taps.

``C_pq = exp(-|r_p - r_q| / length)`` takes one of six values, so every quadratic form in ``C`` is a
sum over six *distance classes*: ``Φ C Φᵀ = Σ_c exp(-r_c / length) Φ E_c Φᵀ`` with 0/1 matrices
``E_c``.  The class sums ``Φ E_c Φᵀ`` do not depend on the length and are found once.

All ``E_c`` commute with the eight symmetries of the square.  In a basis that these symmetries split
they are block-diagonal, so that eleven products in place of forty-five give all six sums.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

DISTANCES = torch.tensor([0, 1, 2, 4, 5, 8], dtype=torch.float64).sqrt()
"""The distances of two taps, in pixels."""

TAPS = 9

JITTER = 1e-6
"""Added to the correlation of a tap with itself."""


@cache
def tap_classes() -> Float[Tensor, "6 9 9"]:
    """Which pairs of taps have which distance.

    >>> tap_classes().sum((1, 2)).tolist()
    [9.0, 24.0, 16.0, 12.0, 16.0, 4.0]
    """
    places = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).double()
    apart = torch.cdist(places, places)
    return (apart - DISTANCES[:, None, None]).abs().lt(1e-6).double()


def class_weights(length: Float[Tensor, ""]) -> Float[Tensor, " 6"]:
    """How much each distance class counts at a length.

    >>> class_weights(torch.tensor(1.0).double())[1].item() == math.exp(-1)
    True
    """
    weights = (-DISTANCES / length).exp()
    return torch.cat([weights[:1] + JITTER, weights[1:]])


def tap_correlation(length: Float[Tensor, ""]) -> Float[Tensor, "9 9"]:
    """The correlation of the taps, with the jitter."""
    return torch.einsum("c,cpq->pq", class_weights(length), tap_classes())


_HALF, _ROOT = 0.5, math.sqrt(0.5)

_BASIS = torch.tensor(
    [
        # columns are taps, row by row; first what all eight symmetries keep
        [0, 0, 0, 0, 1, 0, 0, 0, 0],
        [0, _HALF, 0, _HALF, 0, _HALF, 0, _HALF, 0],
        [_HALF, 0, _HALF, 0, 0, 0, _HALF, 0, _HALF],
        # then what changes its sign: by a quarter turn, and by a reflection too
        [0, _HALF, 0, -_HALF, 0, -_HALF, 0, _HALF, 0],
        [_HALF, 0, -_HALF, 0, 0, 0, -_HALF, 0, _HALF],
        # then two pairs that turn into each other: right against left, above against below
        [0, 0, 0, -_ROOT, 0, _ROOT, 0, 0, 0],
        [0, _ROOT, 0, 0, 0, 0, 0, -_ROOT, 0],
        [-_HALF, 0, _HALF, 0, 0, 0, -_HALF, 0, _HALF],
        [_HALF, 0, _HALF, 0, 0, 0, -_HALF, 0, -_HALF],
    ],
    dtype=torch.float64,
)

_PRODUCTS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 0),),
    ((1, 1),),
    ((2, 2),),
    ((0, 1),),
    ((0, 2),),
    ((1, 2),),
    ((3, 3),),
    ((4, 4),),
    ((5, 5), (6, 6)),
    ((7, 7), (8, 8)),
    ((5, 7), (6, 8)),
)
"""Pairs of coordinates whose products have one weight; those of two different ones count twice."""


@cache
def _product_weights() -> Float[Tensor, "6 11"]:
    turned = _BASIS @ tap_classes() @ _BASIS.mT
    return torch.stack([turned[:, i, j] for ((i, j), *_) in _PRODUCTS], dim=1)


def class_sums(
    rows: Float[Tensor, "n filters 9"],
    product: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "6 ..."]:
    """``Σ_filters φ E_c φ'`` for each class and each pair of rows that ``product`` takes.

    Args:
        rows: Derivatives by the taps of each filter.
        product: A bilinear form of coordinates ``(n, filters)`` in double precision.

    >>> ones = torch.ones(1, 1, 9)  # 9 taps at distance 0, 24 pairs at distance 1, …
    >>> class_sums(ones, lambda a, b: a @ b.mT).flatten().round().tolist()
    [9.0, 24.0, 16.0, 12.0, 16.0, 4.0]
    """
    wide = rows.double()  # sums in single precision would not be those of the rows themselves
    parts = [wide @ axis for axis in _BASIS]
    weights = _product_weights()
    total: Tensor | None = None
    for index, pairs in enumerate(_PRODUCTS):
        found = sum((product(parts[i], parts[j]) for i, j in pairs), torch.zeros(()).double())
        if pairs[0][0] != pairs[0][1]:
            found = found + sum(
                (product(parts[j], parts[i]) for i, j in pairs), torch.zeros(()).double()
            )
        weight = weights[:, index].reshape(-1, *[1] * found.ndim)
        total = weight * found if total is None else total.addcmul_(weight, found)
    assert total is not None
    return total


def gram(rows: Float[Tensor, "n filters 9"]) -> Float[Tensor, "6 n n"]:
    """The class sums of every pair of rows."""
    return class_sums(rows, lambda left, right: left @ right.mT)


def own(rows: Float[Tensor, "n filters 9"]) -> Float[Tensor, "6 n"]:
    """The class sums of every row with itself."""
    return class_sums(rows, lambda left, right: (left * right).sum(1))
