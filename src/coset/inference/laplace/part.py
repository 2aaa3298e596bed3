"""What is uncertain of a network: all weights, whole tensors, or chosen entries of them."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.curvature.capture import record
from coset.curvature.jacobian import Jacobian
from coset.curvature.kfac import KFAC
from coset.curvature.measure import UNCUT, Curvature, Cuts, Measured
from coset.curvature.rows import gradient_rows
from coset.curvature.sampled import plain
from coset.curvature.structures import DiagonalOnly, Full
from coset.curvature.tangent import Tangent, tangent_of
from coset.errors import CosetError, require_counts, require_kinds
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.groups import Groups, group_weights, prior_of
from coset.linalg import Embedded, inverse, scale, shift
from coset.posterior.families import FitReport
from coset.posterior.gaussian import Gaussian, stored
from coset.vocabulary import Weights
from coset.weights.inputs import split_rows, take_rows
from coset.weights.layout import Layout

_NAME = "subnetwork"
_MEMORY = 2 << 30
"""Bytes that the Jacobian of a subnetwork may take."""


@dataclass(frozen=True)
class LastLayer:
    """The weights and bias of the last layer that is applied.

    >>> LastLayer()
    LastLayer()
    """

    def layout(self, problem: Problem) -> Layout:
        """Its tensors."""
        network = problem.network
        first, _ = next(iter(problem.train))
        one = take_rows(first, slice(1))
        recorded = record(network, network.weights, network.layout, one)
        shapes = dict(zip(network.layout.names, network.layout.shapes, strict=True))
        layers = [names for names in recorded.maps if len(shapes[names[0]]) > 1]
        if not layers:
            raise CosetError(
                "got a network without a linear, convolution or embedding layer",
                "needed one to call the last",
                "name its tensors: subset=('head.*',)",
            )
        prefix = layers[-1][0].rpartition(".")[0]
        names = [n for n in network.layout.names if n.rpartition(".")[0] == prefix]
        return Layout.of(network.weights, names)


@dataclass(frozen=True)
class Subnetwork:
    """Some weights, with their full covariance (Daxberger et al. 2021).

    Attributes:
        size: How many.
        score: ``"wasserstein"``: those with the largest marginal variances, which of all choices
            changes the posterior least; ``"random"``: drawn.
        prior_precision: Of the diagonal approximation whose variances are compared.
    """

    size: int
    score: Literal["wasserstein", "random"] = "wasserstein"
    prior_precision: float = 1.0

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(size=self.size)
        if not 0 < self.prior_precision < math.inf:
            raise CosetError(
                f"got a prior precision of {self.prior_precision}", "needed a positive number"
            )

    def select(
        self, problem: Problem, weights: Weights, layout: Layout, *, generator: torch.Generator
    ) -> Int[Tensor, " k"]:
        """Places of the chosen weights in the flat vector, in increasing order."""
        if self.size > layout.size:
            raise CosetError(
                f"got a subnetwork of {self.size:,} weights", f"needed at most {layout.size:,}"
            )
        if self.score == "random":
            return torch.randperm(layout.size, generator=generator)[: self.size].sort().values
        measured = DiagonalOnly().build(problem, weights, layout).operator
        curvature = measured.matmat(torch.ones(layout.size, 1, dtype=torch.float64)).squeeze(1)
        variance = 1 / (curvature + self.prior_precision)
        # weights that no output depends on vary freely and matter to nobody
        variance = torch.where(curvature > 0, variance, 0.0)
        return variance.topk(self.size).indices.sort().values


Subset = str | tuple[str, ...] | LastLayer | Subnetwork | None


def layout_of(subset: Subset, problem: Problem) -> Layout:
    """The tensors in which a subset lies."""
    layout = problem.network.layout
    match subset:
        case None | Subnetwork():
            return layout
        case LastLayer():
            return subset.layout(problem)
        case str():
            return layout.select(subset)
        case _:
            return layout.select(*subset)


@dataclass(frozen=True)
class Columns:
    """Chosen entries of some tensors as one tensor of their own.

    Attributes:
        layout: The tensors they come from.
        index: Their places in that layout's flat vector.
        full: How their curvature is measured.
    """

    layout: Layout
    index: Int[Tensor, " k"]
    full: Full

    @property
    def small(self) -> Layout:
        """The layout of the chosen entries."""
        return Layout((_NAME,), ((len(self.index),),))

    def restrict(self, weights: Weights) -> Weights:
        """The chosen entries."""
        return {_NAME: self.layout.flatten(weights)[self.index]}

    def groups(self, groups: Groups) -> Groups:
        """The groups of the chosen entries."""
        used, labels = groups.labels[self.index].unique(return_inverse=True)
        names = tuple(groups.names[group] for group in used.tolist())
        return replace(groups, layout=self.small, labels=labels, names=names)

    def tangent(self, problem: Problem, weights: Weights) -> Tangent:
        """The tangent model in which only the chosen entries move."""
        outputs, targets = problem.outputs_and_targets(weights)
        size = outputs.numel() * len(self.index) * outputs.element_size()
        if size > _MEMORY:
            raise CosetError(
                f"got a subnetwork whose Jacobian takes {size / 2**30:.1f} GiB",
                f"needed at most {_MEMORY / 2**30:.0f} GiB",
                "take fewer weights or fewer data",
            )
        rows = [
            gradient_rows(problem.network, weights, self.layout, part, index=self.index)
            for inputs, _ in problem.train
            for part in split_rows(inputs, 64)
        ]
        own = self.restrict(weights)
        matrix = torch.cat(rows).flatten(0, 1)
        jacobian = Jacobian((len(matrix), len(self.index)), matrix, problem, own, self.small)
        return Tangent(problem, own, self.small, jacobian, outputs, targets)

    def at(self, weights: Weights) -> "ColumnCurvature":
        """The curvature of the chosen entries around ``weights``."""
        return ColumnCurvature(self, weights)


@dataclass(frozen=True)
class ColumnCurvature:
    """The exact curvature of chosen entries, as a recipe."""

    columns: Columns
    base: Weights

    def build(
        self,
        problem: Problem,
        weights: Weights,
        layout: Layout,
        *,
        outputs: Tensor | None = None,
        previous: Measured | None = None,
        cuts: Cuts = UNCUT,
    ) -> Measured:
        """Measures the curvature."""
        columns = self.columns
        return columns.full.of_columns(problem, self.base, columns.layout, outputs, columns.index)


@dataclass(frozen=True)
class Part:
    """The weights that are uncertain, and how their curvature is measured.

    Attributes:
        layout: The tensors they lie in.
        curvature: The recipe.
        asked: The problem of the whole network.
        columns: Which entries of these tensors, where not all.
        fixed: All other weights.
    """

    layout: Layout
    curvature: Curvature
    asked: Problem
    columns: Columns | None = None
    fixed: Weights = field(default_factory=dict)

    @property
    def own(self) -> Layout:
        """The layout of the uncertain weights alone."""
        return self.layout if self.columns is None else self.columns.small

    def entries(self, flat: Float[Tensor, " p"]) -> Float[Tensor, " q"]:
        """Those of a vector over all entries of the tensors."""
        return flat if self.columns is None else flat[self.columns.index]

    def groups(self, problem: Problem, settings: ByEvidence) -> Groups:
        """Which of them share a precision."""
        rows = isinstance(plain(self.curvature), KFAC)
        found = group_weights(problem, self.layout, settings.groups, rows=rows)
        return found if self.columns is None else self.columns.groups(found)

    def tangent(self, problem: Problem, weights: Weights, memory: int) -> Tangent:
        """The tangent model in which only they move."""
        if self.columns is None:
            return tangent_of(problem, weights, self.layout, memory=memory)
        return self.columns.tangent(problem, weights)

    def prior(self, flat: Float[Tensor, " q"]) -> GaussianPrior:
        """The precisions by tensor: tuned where the weights are uncertain, as given elsewhere."""
        network, prior = self.asked.network, self.asked.prior
        given = {n: prior.of(n, network.weights[n]) for n in network.layout.names}
        if self.columns is not None:
            like = self.layout.flatten(network.weights).double()
            whole = prior.flat(self.layout, like)
            whole[self.columns.index] = flat
            flat = whole
        return prior_of(self.layout, flat, given)

    def gaussian(
        self,
        weights: Weights,
        measured: Measured,
        precision: Float[Tensor, " q"],
        noise: float,
        report: FitReport,
    ) -> Gaussian:
        """``N(θ̃, (noise · H + Λ)⁻¹)`` over the tensors."""
        mean = {name: weights[name].clone() for name in self.layout.names}
        operator = measured.operator if noise == 1 else scale(measured.operator, noise)
        dtype = mean[self.layout.names[0]].dtype
        covariance = stored(inverse(shift(operator, precision)), dtype)
        if self.columns is not None:
            covariance = Embedded(covariance, self.columns.index, self.layout.size)
        return Gaussian(mean, covariance, measured.layers, report, fixed=self.fixed)


def part_of(
    subset: Subset,
    curvature: Curvature,
    problem: Problem,
    weights: Weights,
    *,
    generator: torch.Generator,
) -> Part:
    """What a subset stands for; a :class:`coset.Subnetwork` always has its full covariance."""
    layout = layout_of(subset, problem)
    if not isinstance(subset, Subnetwork):
        return Part(layout, curvature, problem)
    index = subset.select(problem, weights, layout, generator=generator)
    columns = Columns(layout, index, curvature if isinstance(curvature, Full) else Full())
    return Part(layout, columns.at(weights), problem, columns)
