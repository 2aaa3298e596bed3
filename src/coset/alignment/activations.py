"""Matching by activations: units that respond alike belong together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.alignment.by_weights import (
    ByWeights,
    Outcome,
    ascend,
    begin_at,
    rescaled_if_it_helps,
)
from coset.alignment.checks import answer, check_network, network_of
from coset.alignment.plans import lone_signs
from coset.alignment.read_points import ReadPoint, find_read_points
from coset.errors import CosetError
from coset.symmetry.action import region
from coset.symmetry.elements import PermutationFactor, ScalingFactor, Site
from coset.symmetry.graph import Graph, Ref
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.tracing import trace
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import check_finite_inputs, count_rows, parts_of, take_rows
from coset.weights.network import Network

Score = Literal["correlation", "covariance", "inner"]
_CHUNK = 512
_TINY = 1e-20


@dataclass(frozen=True)
class ByActivations:
    """Compares what units say about data, instead of their weights.

    The gain of putting unit ``j`` in place ``i`` is the correlation, covariance or inner product of
    their activations over all inputs (and positions of pictures), summed over all places where the
    units are read: found from the traced graph, so no layer has to be named.  Every factor is then
    solved once.  Factors that no activation shows are matched by weights.

    Attributes:
        module: The network.
        inputs: Data, a tensor or a tuple of tensors with the examples along the first axis; they
            are read in equal chunks, and up to as many examples as there are chunks are left out.
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
        chunks = _chunks(count_rows(self.inputs))
        check_finite_inputs(self.inputs)
        check_network(group, self._network, "ByActivations")
        with torch.no_grad():  # of wrong inputs a tracer would say that the network is to blame
            answer(partial(self._network.apply, to), take_rows(self.inputs, slice(2)))
        graph = trace(self.module, take_rows(self.inputs, slice(chunks[0])))
        points = find_read_points(graph, group)
        grams = gram_matrices(graph, points, to, weights, parts_of(self.inputs), chunks, self.score)
        seen, outcome = _solve(group, points, grams, generator)
        outcome = replace(outcome, aligned=None)  # of Gram matrices
        rest = [name for name in outcome.element.permutations if name not in seen]
        if rest or lone_signs(group):
            outcome = _finish(group, outcome, weights, to, rest)
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
    """Running sums of products of two sets of units."""

    def __init__(self) -> None:
        self.count = 0
        self.products: Tensor | float = 0.0
        self.first: list[Tensor | float] = [0.0, 0.0]
        self.squares: list[Tensor | float] = [0.0, 0.0]

    def add(self, a: Float[Tensor, "h n"], b: Float[Tensor, "h n"]) -> None:
        self.count += a.shape[1]
        self.products = self.products + (a @ b.T).double()
        for k, units in enumerate((a, b)):
            self.first[k] = self.first[k] + units.sum(1, dtype=torch.float64)
            self.squares[k] = self.squares[k] + units.square().sum(1, dtype=torch.float64)

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
    seen = {name for name, found in sites.items() if found}
    factors = tuple(replace(f, sites=tuple(sites[f.name])) for f in group.permutations)
    signs = tuple(_sign_of_values(f, points, sites, group.permutations) for f in group.scalings)
    shapes = {name: tuple(tensor.shape) for name, tensor in to.items()}
    small = SymmetryGroup(factors, signs, shapes=shapes)
    by = ByWeights(scales="keep")
    _, outcome = ascend(by, small, units, to, generator)
    return seen, outcome


def _sign_of_values(
    scaling: ScalingFactor,
    points: Sequence[ReadPoint],
    sites: Mapping[str, Sequence[Site]],
    permutations: Sequence[PermutationFactor],
) -> ScalingFactor:
    """The scaling as it flips values: those whose readers' weights are flipped back."""
    flipped = []
    if scaling.along is not None and scaling.domain != "positive":
        own = next(factor for factor in permutations if factor.name == scaling.along)
        odd = {(s.tensor, s.block, s.digits) for s in scaling.sites if s.power % 2}
        tensors = {s.tensor for s in own.sites if (s.tensor, s.block, s.digits) in odd}
        for site in sites[scaling.along]:
            readers = points[int(site.tensor.removeprefix("read"))].readers
            # queries meet keys, not weights: both are flipped
            if readers & tensors or not readers:
                flipped.append(replace(site, power=1))
    return replace(scaling, sites=tuple(flipped), domain="sign")


def _finish(
    group: SymmetryGroup, outcome: Outcome, weights: Weights, to: Weights, rest: Sequence[str]
) -> Outcome:
    """Matches by weights what no activation shows."""
    ascent = begin_at(group, weights, to, outcome.element)
    ascent.sweep([name for name in ascent.plans if name in set(rest)], most=100)
    return replace(outcome, element=ascent.element, aligned=None)


def _chunks(total: int) -> tuple[int, int]:
    """Examples a chunk and chunks, such that few examples are left over."""
    count = -(-total // _CHUNK)
    return total // count, count
