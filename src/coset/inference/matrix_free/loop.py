"""Expectation maximisation: samples for given precisions, then precisions from the samples."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.curvature.matrix_free import ConjugateGradients, LanczosQuadrature, StochasticDescent
from coset.curvature.subspace import Span, approach
from coset.curvature.tangent import Mean, Point, Tangent
from coset.errors import CosetError
from coset.inference.matrix_free.model import Model
from coset.inference.matrix_free.preconditioning import Near, Rough, rough_curvature
from coset.inference.matrix_free.randomness import source
from coset.inference.matrix_free.solving import (
    Round,
    Solved,
    by_conjugate_gradients,
    by_descent,
)
from coset.inference.matrix_free.state import Descent, State, last_state, number
from coset.inference.run_record import RunRecord
from coset.linalg import FromFunctions, LinearOperator
from coset.linalg.lanczos import Estimate, stochastic_logdet
from coset.linalg.operators import Iterate
from coset.vocabulary import Progress

_SPAN, _JUMP = 1e8, 100.0
"""How far a precision may go from its start in all, and in one update."""

_LEAST = 1e-3
"""Effective weights of a group below which nothing is known of its precision."""

_DIRECTIONS = 500
"""Directions in which the mode is sought at most."""


@dataclass(frozen=True)
class Found:
    """The end of a fit."""

    state: State
    solved: Solved
    effective: Float[Tensor, " g"]
    error: Float[Tensor, " g"]
    log_joint: float
    half_logdet: Estimate | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """One fit.

    Attributes:
        model: The tangent model and its random numbers.
        solver: How samples are found.
        mean: Where the evidence is taken.
        refresh: Whether the output curvature is taken at the mode, and anew in every step.
        updates: Of the precisions; zero keeps them.
        settle: Updates stop when no precision moves by more than this share.
        quadrature: How the log-determinant is found, if at all.
        record: Where the run is written down.
        tell: Told how far it is.
    """

    model: Model
    solver: ConjugateGradients | StochasticDescent
    mean: Mean
    refresh: bool
    updates: int
    settle: float
    quadrature: LanczosQuadrature | None
    record: RunRecord
    tell: Progress

    def run(self, first: State) -> Found:
        """Goes on from the record, or from ``first``."""
        state = last_state(self.record, first)
        rough: Rough | None = None
        while True:
            if not state.busy:  # nothing is written before samples begin: the mode is sought once
                state = self._with_mode(state, rough)
            if rough is None or self.refresh:
                rough = rough_curvature(self.solver, self.model, state.curved)
            state, solved, near = self._with_samples(state, rough)
            gamma, error = self.model.effective(solved.samples, solved.bent)
            if int(state.step) >= self.updates:
                return self._end(state, solved, near, (gamma, error), rough.notes)
            fresh = self._updated(state, gamma, first)
            settled = self._change(state, fresh) < self.settle
            step = number(self.updates if settled else int(state.step) + 1)
            state = replace(fresh, step=step, solving=number(0))
            self.record.write(state)

    def _near(self, state: State, rough: Rough) -> Near:
        return rough.near(self.model, float(state.noise), self.model.flat(state.precision))

    def _with_mode(self, state: State, rough: Rough | None) -> State:
        """The weights at which the evidence is taken, for the present precisions."""
        if self.mean == "network" and not self.refresh:
            return state
        if isinstance(self.solver, StochasticDescent):
            return state  # it finds the mode beside the samples, with the curvature at the last one
        self._say(state, "mode")
        rough = rough or rough_curvature(self.solver, self.model, state.curved)
        found = self._mode(state, self._near(state, rough).inverse)
        if self.mean != "network":
            state = replace(state, mode=found.flat, outputs=found.outputs)
        return replace(state, curved=found.outputs) if self.refresh else state

    def _mode(self, state: State, near: LinearOperator) -> Point:
        tangent, flat = self.model.at(float(state.noise)), self.model.flat(state.precision)
        assert isinstance(self.solver, ConjugateGradients)
        if self.mean == "newton":
            return tangent.find_mode(
                flat,
                self.model.form,
                start=self.model.network_point(),
                preconditioner=near,
                steps=1,
                iterations=self.solver.iterations,
            )
        tolerance = max(self.solver.tolerance**2, 1e-14)
        span = Span.at(_point(state))
        return approach(
            tangent, flat, span, near, tolerance=tolerance, directions=_DIRECTIONS
        ).point

    def _with_samples(self, state: State, rough: Rough) -> tuple[State, Solved, Near]:
        near = self._near(state, rough)
        turn = Round(
            self.model,
            self.model.at(float(state.noise)),
            self.model.flat(state.precision),
            near,
            state.curved,
            self.record,
            lambda line: self._say(state, line),
        )
        if isinstance(self.solver, ConjugateGradients):
            state, solved = by_conjugate_gradients(self.solver, turn, state)
            return state, solved, near
        with_mode = self.mean == "tangent" and self.updates > 0
        state, solved = by_descent(self.solver, turn, state, with_mode=with_mode)
        if solved.mode is not None:
            state = replace(state, mode=solved.mode.flat, outputs=solved.mode.outputs)
            # the next round takes the curvature there; the last keeps what its samples used
            if self.refresh and int(state.step) < self.updates:
                state = replace(state, curved=solved.mode.outputs)
        return state, solved, near

    def _say(self, state: State, line: str) -> None:
        done = int(state.step)
        self.tell(done / (self.updates + 1), f"step {done + 1} of {self.updates + 1}: {line}")

    def _updated(self, state: State, gamma: Float[Tensor, " g"], first: State) -> State:
        """MacKay's updates ``λ ← γ / |θ|²`` and ``1/σ² ← (n c - γ) / Σ residual²``.

        The noise is never smaller than the network's own residuals, the first guess.  A group of
        which the data tell nothing (a filter that is dead on all of them) keeps its precision: a
        new input may wake it.
        """
        norms = self.model.norms(state.mode)
        wanted = gamma.minimum(self.model.groups.sizes) / norms.clamp_min(1e-300)
        told = (norms > 0) & (gamma > _LEAST)
        near = wanted.clamp(state.precision / _JUMP, state.precision * _JUMP)
        precision = near.clamp(first.precision / _SPAN, first.precision * _SPAN)
        precision = torch.where(told, precision, state.precision)
        if not self.model.learn_noise:
            return replace(state, precision=precision)
        noise = self.model.residuals.precision(state.outputs, float(gamma.sum()))
        return replace(state, precision=precision, noise=first.noise.clamp_max(noise))

    def _change(self, before: State, after: State) -> float:
        moved = (after.precision / before.precision).log().abs().max()
        return max(float(moved), abs(math.log(float(after.noise) / float(before.noise))))

    def _end(
        self,
        state: State,
        solved: Solved,
        near: Near,
        gamma: tuple[Float[Tensor, " g"], Float[Tensor, " g"]],
        notes: tuple[str, ...],
    ) -> Found:
        self.record.write(state)
        precision = self.model.flat(state.precision)
        tangent = self.model.at(float(state.noise))
        fit = float(tangent.log_likelihood(state.outputs.double()))
        joint = fit - float((precision.double() * state.mode.double().square()).sum()) / 2
        volume = None
        if self.quadrature is not None:
            self._say(state, "log-determinant")
            volume = self._half_logdet(tangent, state, near, precision)
        return Found(state, solved, *gamma, joint, volume, notes)

    def _half_logdet(
        self, tangent: Tangent, state: State, near: Near, precision: Float[Tensor, " p"]
    ) -> Estimate:
        """``½ log det(I + Λ⁻¹ H)``, split at the preconditioner so that little is left to chance.

        ``log det(H + Λ) = log det(K + Λ) + log det(Rᵀ (H + Λ) R)`` with ``R Rᵀ = (K + Λ)⁻¹``.
        """
        assert self.quadrature is not None
        whole, half = tangent.product(state.curved, precision), near.half

        def middle(x: Tensor) -> Tensor:
            return half.adjoint().matmat(whole.matmat(half.matmat(x)))

        found = stochastic_logdet(
            FromFunctions(whole.shape, middle, middle),
            probes=self.quadrature.probes,
            steps=self.quadrature.steps,
            like=precision,
            generator=source(self.model.seed, "probes"),
            together=self.model.samples,
        )
        known = near.log_determinant - float(precision.double().log().sum())
        return Estimate((found.value + known) / 2, found.standard_error / 2)


def first_state(
    model: Model,
    solver: ConjugateGradients | StochasticDescent,
    precision: Float[Tensor, " g"],
    point: Point,
) -> State:
    """Before anything is known."""
    noise = 1.0
    if model.learn_noise:
        noise = model.residuals.precision(model.tangent.outputs)
    nothing = model.features.new_empty(0)
    work: Iterate | Descent
    if isinstance(solver, ConjugateGradients):
        work = Iterate(nothing, nothing, nothing, nothing, nothing, number(0))
    else:
        work = Descent(nothing, nothing, nothing, number(0))
    return State(
        number(0),
        precision,
        torch.tensor(noise, dtype=torch.float64),
        point.flat,
        point.outputs,
        model.tangent.outputs,
        number(0),
        work,
    )


def _point(state: State) -> Point:
    return Point(state.mode, state.outputs)


def check_mean(mean: Mean, solver: ConjugateGradients | StochasticDescent) -> None:
    """Refuses a mean that the solver cannot find."""
    if mean == "newton" and isinstance(solver, StochasticDescent):
        raise CosetError(
            'got ByEvidence(mean="newton") with StochasticDescent()',
            "needed a solver that can take one Newton step",
            'use ConjugateGradients() or mean="tangent"',
        )
