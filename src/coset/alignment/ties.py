"""Units that can be exchanged at no cost: counted, and put back near their old places."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.alignment.ascent import Ascent
from coset.alignment.plans import Plan
from coset.vocabulary import Weights


def settle_ties(ascent: Ascent) -> int:
    """Puts units that have equals nearest to their old places, and counts them.

    Two units are equal if all numbers compared agree: in the weights (two dead units) or in the
    network they are matched to.  Exchanging them changes the objective by nothing, so equals are
    exchanged as long as that takes fewer transpositions.  Heads and the like are exchanged
    with all that is in them, and units inside heads only with those of the same head.  Units of a
    factor that acts twice on one tensor (recurrent matrices) are counted and stay where they are;
    units that are equal but for their sign count as different.
    """
    count = 0
    for name, plan in ascent.plans.items():
        to, own = (_with_a_double(plan, given) for given in (ascent.to, ascent.aligned))
        if not bool((to | own).any()):
            continue
        places, units = (_classes(rows, to | own) for rows in ascent.rows(name))
        tied = _shared(places) | _shared(units)
        count += int(tied.sum())
        if plan.curved or not bool(tied.any()):
            continue
        table = ascent.permutations[name]
        before = table.reshape(plan.copies, -1)
        copies = zip(before.tolist(), places.tolist(), units.tolist(), strict=True)
        after = torch.tensor([nearest_home(*copy) for copy in copies])
        if not torch.equal(after, before):
            ascent.reorder(name, before.argsort(-1).gather(-1, after).reshape(table.shape))
    return count


def _with_a_double(plan: Plan, weights: Weights) -> Bool[Tensor, "b h"]:
    """Units whose first number is that of another unit, in every tensor that is compared."""
    alike = torch.full((plan.copies, plan.factor.size), bool(plan.terms))
    for term in sorted(plan.terms, key=lambda term: term.features):  # few tell most apart
        if not bool(alike.any()):
            break
        first = term.unfold(weights[term.site.tensor])[..., 0].cpu()
        alike &= (first.unsqueeze(-1) == first.unsqueeze(-2)).sum(-1) > 1
    return alike


def _classes(rows: Float[Tensor, "b h f"], among: Bool[Tensor, "b h"]) -> Int[Tensor, "b h"]:
    """For each unit the first one of its copy that has equal rows; only some are looked at."""
    labels = torch.arange(rows.shape[1]).repeat(len(rows), 1)
    for copy, chosen, found in zip(rows, among, labels, strict=True):
        places = chosen.nonzero().squeeze(-1)
        if len(places):
            same: Tensor = torch.unique(copy[places], dim=0, return_inverse=True)[1].cpu()
            first = torch.full_like(places, len(copy)).scatter_reduce(0, same, places, "amin")
            found[places] = first[same]
    return labels


def _shared(labels: Int[Tensor, "b h"]) -> Bool[Tensor, "b h"]:
    """Which labels occur more than once in their row."""
    counts = torch.zeros_like(labels).scatter_add(1, labels, torch.ones_like(labels))
    return counts.gather(1, labels) > 1


def nearest_home(
    permutation: Sequence[int], places: Sequence[int], units: Sequence[int]
) -> list[int]:
    """The permutation with equals exchanged as long as that takes fewer transpositions.

    A permutation takes as many transpositions as it has units, less its cycles.  To exchange two
    equals that are in one cycle cuts it in two; so in the end no cycle has two of one class.  With
    one class this is exact; with several, other exchanges might have led to fewer still.

    Args:
        permutation: For each place its unit.
        places: For each place its class.
        units: For each place the class of the unit in it.

    >>> nearest_home([2, 3, 1, 0], [0, 0, 2, 3], [0, 0, 2, 3])  # the first two are equal
    [3, 2, 1, 0]
    """
    after, classes = list(permutation), dict(zip(permutation, units, strict=True))
    while _cut(after, [classes[unit] for unit in after]) | _cut(after, places):
        pass
    return after


def _cut(permutation: list[int], classes: Sequence[int]) -> bool:
    """Exchanges units between places of one class that lie in one cycle; says whether any did.

    Args:
        permutation: For each place its unit; changed in place.
        classes: For each place its class.
    """
    found, kept = False, dict[int, set[int]]()
    for place, kind in enumerate(classes):
        known = kept.setdefault(kind, set())  # no two of them in one cycle
        other = permutation[place]
        while known and other not in known and other != place:
            other = permutation[other]
        if other in known:
            permutation[place], permutation[other] = permutation[other], permutation[place]
            found = True
        known.add(place)
    return found
