"""The tangent linear model of a network: its mode and its evidence.

Around the trained weights ``θ̃`` the network is replaced by ``h(θ) = f + J (θ - θ̃)``, the full form,
or by ``h(θ) = J θ``, the simple form (Antorán et al. 2022).  Its posterior mode ``θ*`` is the
minimum of a convex function, found by Newton steps.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import has_constant_curvature, has_gradients, hessian_root
from coset.bayes.likelihood import Likelihood
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.curvature.jacobian import DIRECT, Jacobian
from coset.curvature.line_search import lowest_along
from coset.curvature.outputs import through_root
from coset.curvature.products import Linearisation
from coset.errors import CosetError, require_kind
from coset.linalg import (
    Dense,
    Diagonal,
    FromFunctions,
    LinearOperator,
    LowRankPlusDiagonal,
    conjugate_gradients,
    logdet,
    shift,
    solve,
)
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout

_HESSIANS = 1 << 24
"""Entries of the Hessians of the outputs that are formed at a time."""

Form = Literal["full", "simple"]
Mean = Literal["tangent", "network", "newton"]
HessianAt = Literal["auto", "tangent", "network"]
Precision = float | Tensor | Mapping[str, float | Tensor] | GaussianPrior


@dataclass(frozen=True)
class Point:
    """A value of the weights of the tangent model, and its outputs on the data."""

    flat: Float[Tensor, " p"]
    outputs: Tensor
    converged: bool = True


@dataclass(frozen=True)
class Quadratic:
    """``½ (θ - c)ᵀ P (θ - c)``: what a Gaussian prior, or an earlier posterior, adds.

    Attributes:
        precision: ``P``, in double precision.
        centre: ``c``.
    """

    precision: LinearOperator
    centre: Float[Tensor, " p"]

    def product(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """``P x``, in the type of ``x``."""
        return self.precision.matmat(x.double()).to(x)

    def slope(self, flat: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """The gradient."""
        return self.product((flat - self.centre).unsqueeze(1)).squeeze(1)

    def value(self, flat: Float[Tensor, " p"]) -> float:
        """The value."""
        return float(((flat - self.centre) * self.slope(flat)).sum(dtype=torch.float64)) / 2


@dataclass(frozen=True)
class Tangent:
    """The tangent model over a data set.

    Attributes:
        problem: Network, likelihood and data.
        weights: The linearisation point ``θ̃``.
        layout: The weights of the model.
        jacobian: ``J``, of shape ``(n c, p)``.
        outputs: The network's outputs ``f``.
        targets: The targets.
    """

    problem: Problem
    weights: Weights
    layout: Layout
    jacobian: Jacobian
    outputs: Tensor
    targets: Tensor

    __repr__ = brief

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the problem."""
        return self.problem.likelihood

    def with_likelihood(self, likelihood: Likelihood) -> "Tangent":
        """The same model under another likelihood (another noise, say)."""
        return replace(self, problem=self.problem.with_likelihood(likelihood))

    def mode(self, precision: Precision, form: Form = "full") -> Weights:
        """The posterior mode ``θ*`` under a Gaussian prior of the given precisions.

        Args:
            precision: One number, one a weight (flat), or as :class:`coset.GaussianPrior` takes it.
            form: ``"full"``: ``f + J (θ - θ̃)``; ``"simple"``: ``J θ``.
        """
        return self.layout.unflatten(self.find_mode(self._flat(precision), form).flat)

    def log_evidence(
        self,
        precision: Precision,
        mean: Mean = "tangent",
        form: Form = "full",
        hessian: HessianAt = "auto",
    ) -> Float[Tensor, ""]:
        """``log p(y | h(θ)) - ½ |θ|²_Λ - ½ log det(I + Λ⁻¹ H)``, exact, with all constants.

        Args:
            precision: As in :meth:`mode`.
            mean: ``θ``: the mode ``θ*``, the network's own weights, or one Newton step from them.
            form: As in :meth:`mode`.
            hessian: Where the output curvature in ``H`` is taken: at the mode, or at the network's
                own outputs, in either form; ``"auto"``: at the model's outputs at the ``mean``, or
                where its Newton step begins.

        Precisions, and a noise, that require gradients get them; the way of the mode with them is
        followed by the implicit function theorem.
        """
        require_kind(Mean, mean=mean)
        require_kind(HessianAt, hessian=hessian)
        flat = self._flat(precision)
        moving = mean == "tangent"
        point = self._moving_mode(flat, form) if moving else self.start(form, at_network=True)
        at = point.outputs
        if hessian == "network":
            at = self.outputs
        elif hessian == "tangent" and not moving:
            at = self._moving_mode(flat, form).outputs
        curvature = self.exact_curvature(at)
        value = self.log_joint(point, flat) - self._half_logdet(curvature, flat)
        return value + self._newton_gain(point, flat, curvature) if mean == "newton" else value

    def _newton_gain(self, start: Point, precision: Tensor, curvature: LinearOperator) -> Tensor:
        """What one Newton step promises."""
        gradient = self.gradient(start, precision).double().unsqueeze(1)
        return (gradient * solve(shift(curvature, precision.double()), gradient)).sum() / 2

    def _moving_mode(self, precision: Float[Tensor, " p"], form: Form) -> Point:
        """The mode, with a graph where one is wanted: a Newton step of length zero.

        ``θ* - (H + Λ)⁻¹ ∇L(θ*)`` is ``θ*`` because the gradient vanishes there, and its derivative
        in whatever ``∇L`` depends on is that of ``θ*``.
        """
        with torch.no_grad():
            found = self.find_mode(precision.detach(), form)
        gradient = self.gradient(found, precision)
        if not gradient.requires_grad:
            return found
        with torch.no_grad():
            system = shift(self.exact_curvature(found.outputs), precision.double())
        flat = found.flat - solve(system, gradient.double().unsqueeze(1)).squeeze(1).to(gradient)
        change = (self.jacobian @ (flat - found.flat)).reshape(self.outputs.shape)
        return replace(found, flat=flat, outputs=found.outputs + change)

    def _half_logdet(self, curvature: LinearOperator, precision: Tensor) -> Tensor:
        precision = precision.double()
        return (logdet(shift(curvature, precision)) - precision.log().sum()) / 2

    def log_joint(self, point: Point, precision: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """``log p(y | h(θ)) - ½ |θ|²_Λ``: the prior's own constant is left to the determinant."""
        return self.log_likelihood(point.outputs) - (precision * point.flat.square()).sum() / 2

    def log_likelihood(self, outputs: Tensor) -> Float[Tensor, ""]:
        """Of all data, at some outputs."""
        return self.likelihood.log_prob(outputs, self.targets).sum()

    def start(self, form: Form, *, at_network: bool = False) -> Point:
        """Where the search for the mode begins: the network, or zero for the simple form."""
        flat = self.layout.flatten(self.weights)
        if form == "full":
            return Point(flat, self.outputs)
        if form != "simple":
            raise CosetError(f"got the form {form!r}", "needed 'full' or 'simple'")
        if at_network:
            return Point(flat, (self.jacobian @ flat).reshape(self.outputs.shape))
        return Point(torch.zeros_like(flat), torch.zeros_like(self.outputs))

    def gradient(self, point: Point, precision: Tensor) -> Float[Tensor, " p"]:
        """Of the negative log-joint."""
        return self._pulled(point) + precision * point.flat

    def _pulled(self, point: Point) -> Float[Tensor, " p"]:
        """The gradient of the negative log-likelihood in the weights."""
        return self.jacobian.pull(self.slope(point.outputs).reshape(-1, 1)).squeeze(1)

    def find_mode(
        self,
        precision: Float[Tensor, " p"] | Quadratic,
        form: Form = "full",
        *,
        start: Point | None = None,
        preconditioner: LinearOperator | None = None,
        tolerance: float = 1e-12,
        steps: int = 100,
        iterations: int = 20,
        solver: Callable[[Tensor], Tensor] | None = None,
    ) -> Point:
        """Newton steps with an exact line search in the outputs, which are linear in the weights.

        Args:
            precision: One a weight; or another prior than one around zero with a precision each.
            form: Full or simple.
            start: Where to begin.
            preconditioner: An approximate inverse of ``H + Λ`` for conjugate gradients.
            tolerance: The search ends when a step promises to gain less than this share of the
                log-joint's size.
            steps: Newton steps at most.
            iterations: Of conjugate gradients in each.
            solver: ``(H + Λ)⁻¹`` in double precision, where it is known.
        """
        point = self.start(form) if start is None else start
        zero = torch.zeros_like(point.flat)
        if isinstance(precision, Tensor):
            prior = Quadratic(Diagonal(precision.double()), zero)
        else:
            prior = precision
        # below the rounding of the log-joint there is nothing left to gain
        tolerance = max(tolerance, torch.finfo(point.outputs.dtype).eps)
        for _ in range(steps):
            gradient = self._pulled(point) + prior.slope(point.flat)
            if solver is not None:
                direction = -solver(gradient.double()).to(gradient)
                change = (self.jacobian @ direction).reshape(self.outputs.shape)
            else:
                found = self._step(point, gradient, prior, preconditioner, iterations)
                direction, change = found
            promise = -float((gradient * direction).sum()) / 2
            fit = float(self.log_likelihood(point.outputs))
            size = 1.0 + abs(fit - prior.value(point.flat))
            if not math.isfinite(promise):
                raise CosetError(
                    "got a Newton step that is not finite",
                    "needed finite gradients of the network",
                    "check the inputs, or use float64",
                )
            if promise <= 0:
                return point
            if promise <= tolerance * size:  # the last step is known, and squares the error
                return Point(point.flat + direction, point.outputs + change)
            length = self._length(point, direction, change, prior)
            point = Point(point.flat + length * direction, point.outputs + length * change)
        return replace(point, converged=False)

    def _step(
        self,
        point: Point,
        gradient: Tensor,
        prior: Quadratic,
        preconditioner: LinearOperator | None,
        iterations: int,
    ) -> tuple[Tensor, Tensor]:
        """The Newton direction, and what it does to the outputs."""
        if self.is_small and isinstance(prior.precision, Diagonal):
            system = shift(self.exact_curvature(point.outputs), prior.precision.entries)
            direction = -solve(system, gradient.double().unsqueeze(1)).squeeze(1).to(gradient)
        else:
            direction = -conjugate_gradients(
                self._with_prior(self.product(point.outputs, torch.zeros_like(gradient)), prior),
                gradient.unsqueeze(1),
                preconditioner=preconditioner,
                tolerance=1e-3,
                iterations=iterations,
            ).value.squeeze(1)
        return direction, (self.jacobian @ direction).reshape(self.outputs.shape)

    def _with_prior(self, curvature: FromFunctions, prior: Quadratic) -> FromFunctions:
        def multiply(x: Tensor) -> Tensor:
            return curvature.matmat(x).add_(prior.product(x))

        return FromFunctions(curvature.shape, multiply, multiply)

    def product(self, outputs: Tensor, precision: Float[Tensor, " p"]) -> FromFunctions:
        """``H + Λ`` as products: ``v ↦ Jᵀ B J v + Λ v``, with ``B`` at some outputs."""
        root = self.root(outputs)

        def multiply(x: Tensor) -> Tensor:
            rows = self.jacobian.matmat(x)  # nc k
            weighted = through_root(
                root,
                through_root(root, rows, self.outputs, transpose=True),
                self.outputs,
                transpose=False,
            )
            # in place: a stack of vectors may take most of the memory
            return self.jacobian.pull(weighted).addcmul_(precision.unsqueeze(1), x)

        size = self.layout.size
        return FromFunctions((size, size), multiply, multiply)

    @property
    def is_gaussian(self) -> bool:
        """Whether its posterior is: noise of one covariance, and no search for the mode."""
        return has_constant_curvature(self.likelihood, self.outputs, self.targets)

    @property
    def is_small(self) -> bool:
        """Whether linear algebra with the whole Jacobian is quick."""
        matrix = self.jacobian.matrix
        return matrix is not None and min(self.jacobian.shape) * matrix.numel() <= DIRECT

    def exact_curvature(self, outputs: Tensor | None = None) -> LinearOperator:
        """``H = Jᵀ B J`` from the kept Jacobian, with ``B`` at some outputs or the network's own.

        In double precision: rounding in single leaves eigenvalues below zero that a small prior
        precision does not lift.
        """
        matrix = self.jacobian.matrix
        if matrix is None:
            raise CosetError(
                f"got a tangent model of {self.jacobian.shape[0]:,} outputs and "
                f"{self.jacobian.shape[1]:,} weights, too large for exact linear algebra",
                "needed a Jacobian that fits the memory",
                "use fewer data or Laplace(curvature=KFAC())",
            )
        root = self.root(self.outputs if outputs is None else outputs).double()
        rows = through_root(root, matrix.double(), self.outputs, transpose=True)
        if rows.shape[0] < rows.shape[1]:
            return LowRankPlusDiagonal(rows.new_zeros(rows.shape[1]), rows.mT)
        return Dense(rows.mT @ rows)

    def root(self, outputs: Tensor) -> Tensor:
        """A root of the output Hessian at some outputs."""
        return hessian_root(self.likelihood, outputs, self.targets)

    def curve_along(self, outputs: Tensor, changes: Float[Tensor, "k nc"]) -> Float[Tensor, "k k"]:
        """``C B Cᵀ`` for some changes of the outputs, without all of ``B`` at a time."""
        count = len(changes)
        rows = changes.reshape(count, len(outputs), -1)
        found = []
        for few in self._stretches(outputs):
            root = hessian_root(self.likelihood, outputs[few], self.targets[few])
            flat = rows[:, few].reshape(count, -1)
            seen = through_root(root, flat.mT, outputs[few], transpose=True)
            found.append(seen.mT @ seen)
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    def exact_log_likelihood(self, outputs: Tensor) -> float:
        """Of all data in double precision, without all outputs in it at a time."""
        return sum(
            float(self.likelihood.log_prob(outputs[few].double(), self.targets[few]).sum())
            for few in self._stretches(outputs)
        )

    def _stretches(self, outputs: Tensor) -> list[slice]:
        """Examples whose output Hessians fit the memory together, one stretch after the other."""
        each = outputs[0].numel() * outputs.shape[1]
        rows = max(1, _HESSIANS // each)
        return [slice(start, start + rows) for start in range(0, len(outputs), rows)]

    def slope(self, outputs: Tensor) -> Tensor:
        """Gradient of the negative log-likelihood in the outputs."""
        stretches = self._stretches(outputs)
        if torch.is_grad_enabled() or len(stretches) < 2:  # a noise may want gradients of its own
            return self._slope(outputs, self.targets)
        return torch.cat([self._slope(outputs[few], self.targets[few]) for few in stretches])

    def _slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        leaf = outputs.detach().requires_grad_()
        further = torch.is_grad_enabled()
        with torch.enable_grad():
            value = -self.likelihood.log_prob(leaf, targets).sum()
        slope = torch.autograd.grad(value, leaf, create_graph=further)[0]
        return slope if slope.requires_grad and has_gradients(self.likelihood) else slope.detach()

    def _length(self, point: Point, direction: Tensor, change: Tensor, prior: Quadratic) -> float:
        """How far the minimum lies along a direction."""
        quadratic = 2 * replace(prior, centre=torch.zeros_like(direction)).value(direction)
        linear = float((direction * prior.slope(point.flat)).sum())

        def look(length: float) -> tuple[float, float]:
            outputs = point.outputs + length * change
            slope = float((self.slope(outputs) * change).sum()) + linear + length * quadratic
            return slope, float(self.curve_along(outputs, change.reshape(1, -1))) + quadratic

        return lowest_along(look)

    def _flat(self, precision: Precision) -> Float[Tensor, " p"]:
        like = self.layout.flatten(self.weights)
        if isinstance(precision, Tensor) and precision.shape == like.shape:
            return precision.to(like)
        prior = precision if isinstance(precision, GaussianPrior) else GaussianPrior(precision)
        flat = prior.flat(self.layout, like)
        if not bool((flat > 0).all()):
            raise CosetError("got a prior precision of zero", "needed positive precisions")
        return flat


@torch.no_grad()
def tangent_of(
    problem: Problem, weights: Weights, layout: Layout, *, memory: int = 1 << 30
) -> Tangent:
    """The tangent model of a problem at some weights.

    Args:
        problem: Network, likelihood and data.
        weights: Where the network is linearised.
        layout: The weights of the model.
        memory: Bytes that its Jacobian, or what its products hold at a time, may take.
    """
    outputs, targets = problem.outputs_and_targets(weights)
    kept, activations = memory // 4, memory // 2
    jacobian = Jacobian.of(problem, weights, layout, outputs, kept=kept, memory=activations)
    return Tangent(problem, weights, layout, jacobian, outputs, targets)


@torch.no_grad()
def tangent_by_products(problem: Problem, weights: Weights, layout: Layout) -> Tangent:
    """The same with products that run the network anew, for data beyond memory."""
    return tangent_at(problem, weights, layout, *problem.outputs_and_targets(weights))


@torch.no_grad()
def outputs_along(
    problem: Problem, weights: Weights, layout: Layout, direction: Float[Tensor, " p"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, how they change along a direction in the weights, and targets, in one pass."""
    line = Linearisation(problem.network, weights, layout)
    passed = [(*line.run_and_push(inputs, direction), y) for inputs, y in problem.train]
    outputs, changes, targets = (torch.cat(parts) for parts in zip(*passed, strict=True))
    return outputs, changes, targets


@torch.no_grad()
def tangent_at(
    problem: Problem, weights: Weights, layout: Layout, outputs: Tensor, targets: Tensor
) -> Tangent:
    """The same where the network's outputs are known."""
    jacobian = Jacobian.of(problem, weights, layout, outputs, kept=0)
    return Tangent(problem, weights, layout, jacobian, outputs, targets)
