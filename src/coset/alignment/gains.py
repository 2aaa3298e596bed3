"""Gain matrices: what it is worth to put unit ``j`` of one network in place ``i`` of another.

For a factor the objective ``<to, aligned>`` is linear in its permutation, all else being held: it
is ``Σ A[i, p[i]]`` with ``A = Σ_sites to_unfolded @ aligned_unfolded.T``.  Signs along the factor
make it ``max_s Σ_parity s^parity A_parity``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import Indices
from coset.alignment.plans import MOST_SIGNS, Plan, Term
from coset.vocabulary import Weights

Matrices: TypeAlias = NDArray[np.floating[Any]]
"""One gain matrix for each copy."""

_SMALL = 64
"""Numbers a unit below which terms are put side by side before they are compared."""

Parity = tuple[bool, ...]
Part = tuple[Term, Matrices]
"""A gain matrix (for each copy), and a term that tells how signs act on it."""

Allowed = Callable[[Term], bool]


@dataclass(frozen=True)
class Gains:
    """Gain matrices of all copies, apart by how signs act on them.

    Kept in numpy, as the assignments are: most networks have many small factors.

    >>> gains = Gains({(True,): np.array([[[1.0, -3.0], [2.0, 1.0]]])}, signs=1)
    >>> gains.best().tolist(), gains.current().tolist()
    ([[[1.0, 3.0], [2.0, 1.0]]], [[1.0, 1.0]])
    """

    by_parity: Mapping[Parity, Matrices]
    signs: int = 0

    def best(self) -> Matrices:
        """The gain with the best signs for each pair."""
        return _best(self.by_parity, MOST_SIGNS)

    def signs_at(self, chosen: Indices) -> Float[Tensor, "b h k"]:
        """The best signs of the pairs ``(i, chosen[i])``; ties flip nothing."""
        if not self.signs:
            return torch.ones(*chosen.shape, 0, dtype=torch.float64)
        picked = {
            parity: np.take_along_axis(matrix, chosen[..., None], -1)[..., 0]
            for parity, matrix in self.by_parity.items()
        }
        return torch.from_numpy(_best_signs(picked, MOST_SIGNS)[1]).movedim(0, -1)

    def signs_everywhere(self) -> Float[Tensor, "k b h h"]:
        """The best signs of all pairs; ties flip nothing."""
        return torch.from_numpy(_best_signs(self.by_parity, MOST_SIGNS)[1])

    def at(self, signs: tuple[int, ...]) -> Matrices:
        """The gain with the same signs for all pairs."""
        return _total(
            matrix if _factor(parity, signs) > 0 else -matrix
            for parity, matrix in self.by_parity.items()
        )

    def current(self) -> NDArray[np.float64]:
        """The gain of each unit where it is, nothing flipped."""
        parts = self.by_parity.values()
        return sum(m.diagonal(axis1=-2, axis2=-1).astype(np.float64) for m in parts)  # type: ignore[return-value]


def _best(parts: Mapping[Parity, Matrices], most: int) -> Matrices:
    """The largest sum over all signs.

    Signs that meet in no matrix are chosen apart.  Of those that do, the one that meets the most is
    held, at either value: then the others often fall apart, as those of the norms that read one
    stream do.

    Args:
        parts: Matrices by the signs that flip them.
        most: Signs that are held one inside the other; further ones stay as they are.
    """
    return _total(_best_together(own, most) for own in _apart(parts))


def _best_together(parts: Mapping[Parity, Matrices], most: int) -> Matrices:
    shared = _most_shared(tuple(parts))
    if shared is None or not most:
        return _total(parts.values())
    return np.maximum(*(_best(_held(parts, shared, sign), most - 1) for sign in (1, -1)))


def _best_signs(parts: Mapping[Parity, Matrices], most: int) -> tuple[Matrices, Matrices]:
    """The same with the signs, along a first axis; among equals the first sign is kept."""
    count = len(next(iter(parts)))
    total = _total(map(np.zeros_like, parts.values()))
    signs = np.ones((count, *total.shape))
    for own in _apart(parts):
        shared = _most_shared(tuple(own))
        if shared is None or not most:
            total = total + _total(own.values())
            continue
        kept, flipped = (_best_signs(_held(own, shared, sign), most - 1) for sign in (1, -1))
        flipped[1][shared] = -1
        better = flipped[0] > kept[0]
        total = total + np.where(better, flipped[0], kept[0])
        signs *= np.where(better, flipped[1], kept[1])
    return total, signs


def _held(parts: Mapping[Parity, Matrices], k: int, sign: int) -> dict[Parity, Matrices]:
    """The matrices with one sign chosen."""
    found: dict[Parity, Matrices] = {}
    for parity, matrix in parts.items():
        left = (*parity[:k], False, *parity[k + 1 :])
        signed = -matrix if parity[k] and sign < 0 else matrix
        found[left] = found[left] + signed if left in found else signed
    return found


def _apart(parts: Mapping[Parity, Matrices]) -> list[dict[Parity, Matrices]]:
    return [{p: parts[p] for p in parities} for parities in _components(tuple(parts))]


@cache
def _most_shared(parities: tuple[Parity, ...]) -> int | None:
    """The sign that flips most of some matrices, if one flips any."""
    counts = [sum(flips) for flips in zip(*parities, strict=True)]
    return counts.index(max(counts)) if any(counts) else None


@cache
def _components(all_parities: tuple[Parity, ...]) -> tuple[tuple[Parity, ...], ...]:
    """Parities that share no sign, not even over others, are apart."""
    groups: list[tuple[set[int], list[Parity]]] = []
    for parity in all_parities:
        own, parities = {k for k, flips in enumerate(parity) if flips}, [parity]
        apart = []
        for other, theirs in groups:
            if other & own or not (other or own):
                own, parities = own | other, [*theirs, *parities]
            else:
                apart.append((other, theirs))
        groups = [*apart, (own, parities)]
    return tuple(tuple(parities) for _, parities in groups)


def sign_choices(count: int) -> list[tuple[int, ...]]:
    """All choices of ``count`` signs; the first flips nothing.

    >>> sign_choices(1)
    [(1,), (-1,)]
    """
    return list(product((1, -1), repeat=count))


def _factor(parity: Parity, signs: tuple[int, ...]) -> int:
    flipped = [sign for flips, sign in zip(parity, signs, strict=True) if flips]
    return reduce(int.__mul__, flipped, 1)


def _total(matrices: Iterable[Matrices]) -> Matrices:
    return reduce(np.add, matrices)


def combine(
    parts: Sequence[Part],
    signs: int,
    *,
    flipped: Collection[str] = (),
    above: Sequence[int] = (),
) -> Gains | None:
    """Adds up matrices by parity, after flipping whole layers and what the signs above flip."""
    found: dict[Parity, Matrices] = {}
    for term, matrix in parts:
        sign = -1 if flipped and len(term.whole & set(flipped)) % 2 else 1
        if above:
            sign *= _factor(term.above, tuple(above))
        signed = matrix if sign > 0 else -matrix
        known = found.get(term.parity)
        found[term.parity] = signed if known is None else known + signed
    return Gains(found, signs) if found else None


class GainTable:
    """Computes gains against fixed weights ``to``, and remembers what has not changed.

    The terms of a factor are bundled by who else moves them: biases and layers that see the input
    are compared once, a layer between two factors again whenever the other one has moved.
    """

    def __init__(self, plans: Mapping[str, Plan], to: Weights, aligned: Weights) -> None:
        self.plans = plans
        self.to = to
        self.aligned = aligned
        self._bundles = {name: _bundle(plan.terms) for name, plan in plans.items()}
        self._known: dict[tuple[str, int], Matrices] = {}

    def own(self, name: str, allowed: Allowed | None = None) -> list[Part]:
        """The matrices of a factor's copies, or of those terms that are allowed."""
        parts = []
        for k, terms in enumerate(self._bundles[name]):
            if allowed is None or allowed(terms[0]):
                if (name, k) not in self._known:
                    self._known[(name, k)] = self._compare(terms).cpu().numpy()
                parts.append((terms[0], self._known[(name, k)]))
        return parts

    def pairs(self, parent: Plan, child: Plan, allowed: Allowed | None = None) -> list[Part]:
        """The matrices of a child for every pair ``(i, j)`` of its parent's units.

        They come in the order (copy of the parent, i, j).
        """
        units, size = parent.factor.size, child.factor.size
        parts = []
        for terms in self._bundles[child.factor.name]:
            if allowed is None or allowed(terms[0]):
                left, right = (
                    rows.reshape(parent.copies, units * size, -1) for rows in self._features(terms)
                )
                flat = (left @ right.mT).reshape(-1, units, size, units, size)
                pairs = flat.transpose(2, 3).reshape(-1, size, size)
                parts.append((terms[0], pairs.cpu().numpy()))
        return parts

    def flipped(self, names: Collection[str]) -> None:
        """Forgets what depends on whole layers that were flipped."""
        for name, k in list(self._known):
            if self._bundles[name][k][0].whole & set(names):
                del self._known[(name, k)]

    def moved(self, name: str, order: Int[Tensor, " h"] | None) -> None:
        """Forgets what depends on a factor that has moved.

        Args:
            name: The factor.
            order: How its units were moved, if that is all that happened: its own gains are then
                reordered instead of forgotten.
        """
        for other, k in list(self._known):
            plan, terms = self.plans[other], self._bundles[other][k]
            if name in terms[0].others or name in plan.factor.within:
                del self._known[(other, k)]
            elif other == name:
                if order is None:
                    del self._known[(other, k)]
                else:
                    self._known[(other, k)] = self._known[(other, k)].take(order.numpy(), -1)

    def rows(self, name: str) -> tuple[Float[Tensor, "b h f"], Float[Tensor, "b h f"]]:
        """All numbers of each unit, in ``to`` and in the aligned weights."""
        return self._features(self.plans[name].terms)

    def _compare(self, terms: Sequence[Term]) -> Tensor:
        """All terms of a bundle; small ones side by side, large ones without a copy."""
        small = [term for term in terms if term.features < _SMALL]
        total: Tensor | None = None
        for bundle in ([small] if small else []) + [[t] for t in terms if t.features >= _SMALL]:
            left, right = self._features(bundle)
            total = left @ right.mT if total is None else total.baddbmm_(left, right.mT)
        assert total is not None
        return total

    def _features(self, terms: Sequence[Term]) -> tuple[Tensor, Tensor]:
        left = [_unfold(self.to, term) for term in terms]
        right = [_unfold(self.aligned, term) for term in terms]
        if len(terms) == 1:
            return left[0], right[0]
        return torch.cat(left, -1), torch.cat(right, -1)


def _unfold(weights: Weights, term: Term) -> Tensor:
    return term.unfold(weights[term.site.tensor])


def _bundle(terms: Sequence[Term]) -> list[tuple[Term, ...]]:
    bundles: dict[tuple[object, ...], list[Term]] = {}
    for term in terms:
        key = (term.others, term.parity, term.above, term.whole)
        bundles.setdefault(key, []).append(term)
    return [tuple(bundle) for bundle in bundles.values()]
