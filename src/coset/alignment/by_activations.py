"""Matching by activations: units that respond alike belong together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from math import prod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.alignment.ascent import inner
from coset.alignment.by_weights import ByWeights, ascend, begin_at
from coset.alignment.checks import answer, check_network, network_of
from coset.alignment.plans import lone_signs, matched_tensors
from coset.alignment.read_points import ReadPoint, find_read_points
from coset.alignment.result import Outcome
from coset.alignment.scales import rescaled_if_it_helps
from coset.bayes.batches import read_inputs
from coset.errors import CosetError
from coset.symmetry.action import region
from coset.symmetry.elements import Element, ScalingFactor, Site
from coset.symmetry.graph import Graph, Ref
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.tracing import trace
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import check_finite_inputs, count_rows, parts_of, take_rows
from coset.weights.network import Network

Score = Literal["correlation", "covariance", "inner"]
_CHUNK = 128
"""Examples that are read at once: as many are traced, and asked once more for every sign."""

_TINY = 1e-20


@dataclass(frozen=True)
class ByActivations:
    """Compares what units say about data, instead of their weights.

    The gain of putting unit ``j`` in place ``i`` is the correlation, covariance or inner product of
    their activations over all inputs (and positions of pictures), summed over all places where the
    units are read: found from the traced graph, so no layer has to be named.  Every factor is then
    solved once.  Factors and signs that no activation shows are matched by weights.

    Attributes:
        module: The network.
        inputs: Data, a tensor, or a tuple or dictionary of them, with the examples along the first
            axis; they are read in equal chunks, and up to as many examples as there are chunks are
            left out.
        score: What is compared; ``"inner"`` is the published choice of Xiao, Liu, Bamler (2023).
    """

    module: nn.Module
    inputs: Inputs
    score: Score = "correlation"

    def __post_init__(self) -> None:
        if self.score not in ("correlation", "covariance", "inner"):
            raise CosetError(
                f"got score={self.score!r}", "needed 'correlation', 'covariance' or 'inner'"
            )

    @cached_property
    def _network(self) -> Network:
        return network_of(self.module, "ByActivations")

    def solve(
        self, group: SymmetryGroup, weights: Weights, to: Weights, *, generator: torch.Generator
    ) -> Outcome:
        """The element found for weights that were checked."""
        inputs = read_inputs(self.inputs, self.module)
        chunks = _chunks(count_rows(inputs))
        check_finite_inputs(inputs)
        check_network(group, self._network, "ByActivations")
        with torch.no_grad():  # of wrong inputs a tracer would say that the network is to blame
            answer(partial(self._network.apply, to), take_rows(inputs, slice(2)), to.values())
        graph = trace(self.module, take_rows(inputs, slice(chunks[0])))
        points = find_read_points(graph, group)
        parts = parts_of(inputs)
        grams = gram_matrices(graph, points, to, weights, parts, chunks, self.score)
        flips = flipped_points(graph, group, points, to, [x[: chunks[0]] for x in parts])
        seen, outcome = _solve(group, points, grams, flips, generator)
        together = unseen_together(flips)
        outcome = _flipped(group, outcome, weights, to, together)
        outcome = _finish(group, outcome, weights, to, seen)
        outcome = _flipped(group, outcome, weights, to, together)
        return rescaled_if_it_helps(group, outcome, weights, to)


def gram_matrices(
    graph: Graph,
    points: Sequence[ReadPoint],
    to: Weights,
    weights: Weights,
    inputs: Sequence[Tensor],
    chunks: tuple[int, int],
    score: Score,
) -> list[Float[Tensor, "h h"]]:
    """For each read point the scores between all units of ``to`` and of ``weights``.

    Inputs are streamed: only sums are kept.
    """
    size, count = chunks
    watched = replace(graph, outputs=tuple(Ref(point.node) for point in points))
    sums = [_Moments() for _ in points]
    with torch.no_grad():
        for k in range(count):
            part = [x[k * size : (k + 1) * size] for x in inputs]
            ours = watched.run(to, part, dtype=None)
            theirs = watched.run(weights, part, dtype=None)
            for point, total, a, b in zip(points, sums, ours, theirs, strict=True):
                total.add(_units(a, point), _units(b, point))
    return [total.score(score) for total in sums]


class _Moments:
    """Running sums of products of two sets of units: of chunks in their type, of all in double."""

    def __init__(self) -> None:
        self.count = 0
        self.products: Tensor | float = 0.0
        self.first: list[Tensor | float] = [0.0, 0.0]
        self.squares: list[Tensor | float] = [0.0, 0.0]

    def add(self, a: Float[Tensor, "h n"], b: Float[Tensor, "h n"]) -> None:
        self.count += a.shape[1]
        self.products = self.products + (a @ b.T).double()
        for k, units in enumerate((a, b)):
            self.first[k] = self.first[k] + units.sum(1).double()
            self.squares[k] = self.squares[k] + units.square().sum(1).double()

    def score(self, score: Score) -> Float[Tensor, "h h"]:
        products = torch.as_tensor(self.products) / self.count
        if score == "inner":
            return products
        means = [torch.as_tensor(total) / self.count for total in self.first]
        covariance = products - means[0].unsqueeze(1) * means[1]
        if score == "covariance":
            return covariance
        scales = []
        for mean, total in zip(means, self.squares, strict=True):
            square = torch.as_tensor(total) / self.count
            variance = square - mean.square()
            # a unit that never changes has no correlation with anything
            alive = variance > 1e-6 * square + _TINY
            scales.append(torch.where(alive, variance.clamp_min(_TINY).rsqrt(), 0.0))
        return covariance * scales[0].unsqueeze(1) * scales[1]


def flipped_points(
    graph: Graph,
    group: SymmetryGroup,
    points: Sequence[ReadPoint],
    to: Weights,
    inputs: Sequence[Tensor],
) -> dict[str, set[int]]:
    """For each sign, along a factor or of a whole layer, the read points whose values it flips.

    The network is asked: signs are flipped in its weights, and its values are looked at.  Signs
    that may meet at a read point are flipped one after the other, all others together.
    """
    watched = replace(graph, outputs=tuple(Ref(point.node) for point in points))
    identity, parts = group.identity(), _never_meeting(group, points)
    found: dict[str, set[int]] = {}
    with torch.no_grad():
        before = watched.run(to, inputs, dtype=None) if parts else ()
        for together in parts:
            flipped = {sign.name: -identity.scales[sign.name] for sign in together}
            element = Element(identity.permutations, {**identity.scales, **flipped})
            after = watched.run(group.act(element, to), inputs, dtype=None)
            turned = {
                k
                for k, (point, a, b) in enumerate(zip(points, before, after, strict=True))
                if _opposite(_units(a, point), _units(b, point))
            }
            for sign in together:
                found[sign.name] = {k for k in turned if _may_flip(sign, points[k])}
    return found


def _never_meeting(group: SymmetryGroup, points: Sequence[ReadPoint]) -> list[list[ScalingFactor]]:
    """The signs in as few parts as come by, of which no two may flip values of one read point."""
    layers = [
        [sign] for sign in lone_signs(group) if group.identity().scales[sign.name].numel() == 1
    ]
    parts: list[list[ScalingFactor]] = []
    for sign in (s for s in group.scalings if s.domain != "positive" and s.along is not None):
        met = {name for point in points if _may_flip(sign, point) for name in point.factors}
        for part in parts:
            if not any(other.along in {*met, sign.along} for other in part):
                part.append(sign)
                break
        else:
            parts.append([sign])
    return [*parts, *layers]


def _may_flip(sign: ScalingFactor, point: ReadPoint) -> bool:
    return sign.along is None or sign.along in point.factors


def _opposite(one: Tensor, other: Tensor) -> bool:
    """Whether numbers have changed their sign rather than stayed: ``|a + b| < |a - b|``."""
    return bool(torch.dot(one.reshape(-1), other.reshape(-1)) < 0)


def _units(value: Tensor, point: ReadPoint) -> Float[Tensor, "h n"]:
    """A value as (units of all factors, everything else)."""
    site = point.site
    view = region(value.contiguous(), 0, site)
    rest = [d for d in range(len(site.view)) if d not in site.digits]
    return view.permute([*site.digits, *rest]).reshape(prod(point.sizes), -1)


def _solve(
    group: SymmetryGroup,
    points: Sequence[ReadPoint],
    grams: Sequence[Tensor],
    flips: Mapping[str, set[int]],
    generator: torch.Generator,
) -> tuple[set[str], Outcome]:
    """The assignment problems, as the matching of Gram matrices to identity matrices.

    With rows ``G[i, :]`` on one side and unit vectors on the other, the inner product of row ``i``
    and vector ``j`` is ``G[i, j]``: so factors inside factors and signs are solved as for weights.
    """
    to: Weights = {}
    units: Weights = {}
    sites: dict[str, list[Site]] = {factor.name: [] for factor in group.permutations}
    for k, (point, gram) in enumerate(zip(points, grams, strict=True)):
        name, view = f"read{k}", (*point.sizes, gram.shape[1])
        to[name] = gram.reshape(view).contiguous()
        units[name] = torch.eye(len(gram), dtype=gram.dtype).reshape(view)
        for depth, factor in enumerate(point.factors):
            site = Site(name, (), view, (depth,), tuple(range(depth)))
            sites[factor].append(site)
    factors = (replace(f, sites=tuple(sites[f.name])) for f in group.permutations)
    signs = (_sign_of_values(f, to, sites, flips) for f in group.scalings)
    small = SymmetryGroup(
        tuple(factor for factor in factors if factor.sites),
        tuple(sign for sign in signs if sign.sites),
        shapes={name: tuple(tensor.shape) for name, tensor in to.items()},
    )
    _, outcome = ascend(ByWeights(scales="keep"), small, units, to, generator)
    return {*outcome.element.permutations, *outcome.element.scales}, replace(
        outcome, element=_filled_up(group, outcome.element), aligned=None
    )


def _filled_up(group: SymmetryGroup, element: Element) -> Element:
    """The element of a part of the factors as one of all."""
    identity = group.identity()
    return Element(
        {**identity.permutations, **element.permutations}, {**identity.scales, **element.scales}
    )


def _sign_of_values(
    scaling: ScalingFactor,
    values: Weights,
    sites: Mapping[str, Sequence[Site]],
    flips: Mapping[str, set[int]],
) -> ScalingFactor:
    """The scaling as it flips values."""
    whole = (Site(name, (), tuple(value.shape), ()) for name, value in values.items())
    own = whole if scaling.along is None else sites[scaling.along]
    flipped = {f"read{k}" for k in flips.get(scaling.name, ())}
    found = tuple(replace(site, power=1) for site in own if site.tensor in flipped)
    return replace(scaling, sites=found, domain="sign")


def unseen_together(flips: Mapping[str, set[int]]) -> list[set[str]]:
    """Signs that flip no value when all of them are flipped: as of a stream and of all its norms.

    Found by elimination: whatever else flips no value is a product of these.  Products of two that
    leave fewer signs are among them, to be tried by themselves.

    >>> [sorted(names) for names in unseen_together({"norm": {0}, "other": {1}, "stream": {0, 1}})]
    [['norm', 'other', 'stream']]
    """
    found: list[set[str]] = []
    known: list[tuple[set[int], set[str]]] = []
    for name, points in flips.items():
        left, together = set(points), {name}
        for flipped, names in known:
            if min(flipped) in left:
                left ^= flipped
                together ^= names
        if left:
            known.append((left, together))
        elif points:  # else it is unseen by itself
            found.append(together)
    pairs = [(a ^ b, max(len(a), len(b))) for a, b in combinations(found, 2)]
    return found + [product for product, most in pairs if len(product) < most]


def _flipped(
    group: SymmetryGroup,
    outcome: Outcome,
    weights: Weights,
    to: Weights,
    together: Sequence[set[str]],
) -> Outcome:
    """The outcome after those flips that no activation shows and that bring weights nearer."""
    if not together:
        return outcome
    aligned, names = group.act(outcome.element, weights), sorted(matched_tensors(group))
    identity, element = group.identity(), outcome.element
    best = sum(inner(to[name], aligned[name]) for name in names)
    for flipped in (*together, *together):  # the second time from where the first has led
        scales = {n: -table if n in flipped else table for n, table in identity.scales.items()}
        flip = Element(identity.permutations, scales)
        after = group.act(flip, aligned)
        value = sum(inner(to[name], after[name]) for name in names)
        if value > best + 1e-9 * abs(best):
            aligned, best, element = after, value, group.compose(element, flip)
    return replace(outcome, element=element)


def _finish(
    group: SymmetryGroup, outcome: Outcome, weights: Weights, to: Weights, seen: set[str]
) -> Outcome:
    """Matches by weights what no activation shows: factors, and signs, also of units that are."""
    rest = [factor.name for factor in group.permutations if factor.name not in seen]
    signs = [s for s in group.scalings if s.domain != "positive" and s.name not in seen]
    if not rest and not signs:
        return outcome
    # signs along units that stay are as those of whole layers: each for itself
    left = tuple(replace(s, along=s.along if s.along in rest else None) for s in signs)
    small = SymmetryGroup(group.permutations, left, shapes=group.shapes)
    ascent = begin_at(small, group.act(outcome.element, weights), to, small.identity())
    ascent.sweep(rest, most=100)
    then = _filled_up(group, ascent.element)
    return replace(outcome, element=group.compose(outcome.element, then))


def _chunks(total: int) -> tuple[int, int]:
    """Examples a chunk and chunks, such that few examples are left over."""
    count = -(-total // _CHUNK)
    return total // count, count
