"""The uncertain part of a network: whole tensors, or chosen entries of them."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.curvature.kfac import KFAC
from coset.curvature.measure import Curvature, Measured
from coset.curvature.sampled import plain
from coset.curvature.structures import Full
from coset.curvature.tangent import Tangent, tangent_of
from coset.inference.precisions.by_evidence import ByEvidence
from coset.inference.precisions.grouping import Groups, group_weights, prior_of
from coset.inference.subsets import Columns, Subnetwork, Subset, layout_of
from coset.linalg import Embedded, inverse, scale, shift
from coset.posterior.families import FitReport
from coset.posterior.gaussian import Gaussian, stored
from coset.vocabulary import Weights
from coset.weights.layout import Layout


@dataclass(frozen=True)
class Part:
    """The weights that are uncertain, and how their curvature is measured.

    Attributes:
        layout: The tensors they lie in.
        curvature: The recipe.
        columns: Which entries of these tensors, where not all.
        fixed: All other weights.
    """

    layout: Layout
    curvature: Curvature
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

    def tangent(self, problem: Problem, weights: Weights) -> Tangent:
        """The tangent model in which only they move."""
        if self.columns is None:
            return tangent_of(problem, weights, self.layout)
        return self.columns.tangent(problem, weights)

    def prior(self, problem: Problem, flat: Float[Tensor, " q"]) -> GaussianPrior:
        """The precisions by tensor: tuned where the weights are uncertain, as given elsewhere."""
        network = problem.network
        given = {n: problem.prior.of(n, network.weights[n]) for n in network.layout.names}
        if self.columns is not None:
            like = self.layout.flatten(network.weights).double()
            whole = problem.prior.flat(self.layout, like)
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
        return Part(layout, curvature)
    index = subset.select(problem, weights, layout, generator=generator)
    columns = Columns(layout, index, curvature if isinstance(curvature, Full) else Full())
    return Part(layout, columns.at(weights), columns)
