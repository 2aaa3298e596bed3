"""Gain matrices: what it is worth to put unit ``j`` of one network in place ``i`` of another.

For a factor the objective ``<to, aligned>`` is linear in its permutation, all else being held: it
is ``Σ A[i, p[i]]`` with ``A = Σ_sites to_unfolded @ aligned_unfolded.T``.  Signs along the factor
make it ``max_s Σ_parity s^parity A_parity``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.alignment.plans import Plan, Term
from coset.symmetry.action import region
from coset.vocabulary import Weights

Parity = tuple[bool, ...]


@dataclass(frozen=True)
class Gains:
    """Gain matrices of all copies, apart by how signs act on them.

    >>> gains = Gains({(True,): torch.tensor([[[1.0, -3.0], [2.0, 1.0]]])}, signs=1)
    >>> gains.best()[0].tolist(), gains.current().tolist()
    ([[[1.0, 3.0], [2.0, 1.0]]], [[1.0, 1.0]])
    """

    by_parity: Mapping[Parity, Float[Tensor, "b h h"]]
    signs: int = 0

    def best(self) -> tuple[Float[Tensor, "b h h"], Int[Tensor, "b h h"] | None]:
        """The gain with the best signs for each pair, and which of the choices these are."""
        if not self.signs:
            return _total(self.by_parity.values()), None
        options = torch.stack(
            [
                _total(
                    matrix if _factor(parity, signs) > 0 else -matrix
                    for parity, matrix in self.by_parity.items()
                )
                for signs in sign_choices(self.signs)
            ]
        )
        best = options.amax(0)
        # ties go to the first choice, which flips nothing
        return best, (options == best).int().argmax(0)

    def current(self) -> Float[Tensor, "b h"]:
        """The gain of each unit where it is, nothing flipped."""
        return _total(self.by_parity.values()).diagonal(dim1=-2, dim2=-1)


def sign_choices(count: int) -> list[tuple[int, ...]]:
    """All choices of ``count`` signs; the first flips nothing.

    >>> sign_choices(1)
    [(1,), (-1,)]
    """
    return list(product((1, -1), repeat=count))


def _factor(parity: Parity, signs: tuple[int, ...]) -> int:
    flipped = [sign for flips, sign in zip(parity, signs, strict=True) if flips]
    return reduce(int.__mul__, flipped, 1)


def _total(matrices: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, matrices)


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
        self._known: dict[tuple[str, int], Tensor] = {}

    def gains(self, name: str, allowed: Callable[[Term], bool] | None = None) -> Gains | None:
        """The gains of a factor's copies, or of those terms that are allowed; ``None``: no term."""
        found: dict[Parity, Tensor] = {}
        for k, terms in enumerate(self._bundles[name]):
            if allowed is not None and not allowed(terms[0]):
                continue
            matrix = self._known.get((name, k))
            if matrix is None:
                matrix = self._known[(name, k)] = self._compare(terms)
            parity = terms[0].parity
            found[parity] = found[parity] + matrix if parity in found else matrix
        return Gains(found, len(self.plans[name].signs)) if found else None

    def own_gains(self, plan: Plan, allowed: Callable[[Term], bool] | None = None) -> Gains | None:
        """The gains from terms that no child of the factor moves."""
        below = frozenset(plan.children)
        return self.gains(
            plan.factor.name,
            lambda term: not term.others & below and (allowed is None or allowed(term)),
        )

    def pair_gains(
        self, parent: Plan, child: Plan, allowed: Callable[[Term], bool] | None = None
    ) -> Gains | None:
        """The gains of a child for every pair ``(i, j)`` of its parent's units.

        The matrices come in the order (copy of the parent, i, j).
        """
        units, size = parent.factor.size, child.factor.size
        found: dict[Parity, Tensor] = {}
        for terms in self._bundles[child.factor.name]:
            if allowed is not None and not allowed(terms[0]):
                continue
            left, right = self._features(terms)
            left = left.reshape(parent.copies, units * size, -1)
            right = right.reshape(parent.copies, units * size, -1)
            flat = left @ right.mT
            pairs = flat.reshape(-1, units, size, units, size).transpose(2, 3)
            matrix = pairs.reshape(-1, size, size)
            parity = terms[0].parity
            found[parity] = found[parity] + matrix if parity in found else matrix
        return Gains(found, len(child.signs)) if found else None

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
                    self._known[(other, k)] = self._known[(other, k)].index_select(-1, order)

    def rows(self, name: str) -> tuple[Float[Tensor, "b h f"], Float[Tensor, "b h f"]]:
        """All numbers of each unit, in ``to`` and in the aligned weights."""
        return self._features(self.plans[name].terms)

    def _compare(self, terms: Sequence[Term]) -> Tensor:
        left, right = self._features(terms)
        return left @ right.mT

    def _features(self, terms: Sequence[Term]) -> tuple[Tensor, Tensor]:
        left = [_unfold(self.to, term) for term in terms]
        right = [_unfold(self.aligned, term) for term in terms]
        if len(terms) == 1:
            return left[0], right[0]
        return torch.cat(left, -1), torch.cat(right, -1)


def _unfold(weights: Weights, term: Term) -> Tensor:
    return term.unfold(region(weights[term.site.tensor], 0, term.site))


def _bundle(terms: Sequence[Term]) -> list[tuple[Term, ...]]:
    bundles: dict[tuple[frozenset[str], Parity], list[Term]] = {}
    for term in terms:
        bundles.setdefault((term.others, term.parity), []).append(term)
    return [tuple(bundle) for bundle in bundles.values()]
