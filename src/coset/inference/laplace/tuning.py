"""Prior precisions and noise by the evidence of the tangent model."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.batches import Batches
from coset.bayes.defaults import link_of, with_noise
from coset.curvature.columns import column_count
from coset.curvature.kfac import KFAC
from coset.curvature.low_rank import LowRank
from coset.curvature.measure import Curvature, Cuts, Measured
from coset.curvature.sampled import MonteCarloFisher, plain
from coset.curvature.structures import Full
from coset.curvature.subspace import Span, approach
from coset.curvature.tangent import Form, Point, Tangent
from coset.inference.doubts import beaten_by_tangent, switched_off_warning, unfinished
from coset.inference.laplace.budget import Work
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.evidence import (
    Spectrum,
    best_precision,
    bounds,
    spectrum_of,
    switched_off,
)
from coset.inference.laplace.groups import Groups
from coset.inference.laplace.noise import Residuals
from coset.inference.laplace.written import (
    is_corrected,
    measured_in_stretches,
    written_measured,
    written_point,
    written_span,
)
from coset.inference.passes import Stage
from coset.inference.run_record import Steps
from coset.linalg import (
    LinearOperator,
    LowRankPlusDiagonal,
    Shifts,
    nearly_inverse,
    scale,
    shift,
    shifts_of,
    solve,
)
from coset.printing import several

_FIRST, _AGAIN = 8, 3
"""Directions in which a mode is sought at most: at first, and after a change of precisions."""

_REFRESHED, _DRAWS = 3, 2
"""Steps with new curvature at the mode, and its random columns in them; at the end it has all."""


_NAMED = 8
"""Classes that are named in a warning."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        precision: Of each group.
        noise_precision: ``1 / σ²``; one where nothing was learnt.
        curvature: At unit noise, with the output Hessian where it was asked for.
        log_evidence: With all constants.
        structure: The curvature whose determinant is in it.
        diagnostics: Named numbers.
        warnings: What a reader should know.
    """

    precision: Float[Tensor, " g"]
    noise_precision: float
    curvature: Measured
    log_evidence: float
    structure: str
    diagnostics: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _State:
    """Between two steps of tuning."""

    precision: Float[Tensor, " g"]
    noise: float
    measured: Measured
    spectrum: Spectrum
    point: Point | None = None
    span: Span | None = None


@dataclass(frozen=True)
class NewtonStep:
    """A step with the *same* curvature ``K`` on both sides: ``θ = (K + Λ)⁻¹ (K θ̃ - d)``.

    Attributes:
        model: The tangent model.
        start: The network ``θ̃``.
        curvature: ``K``.
        precision: ``Λ``, one a weight.
        kept: A curvature of low rank, to whose directions the gradient ``d`` of the data is held:
            along others nothing but the prior would hold a step back, which has no end as that
            shrinks.
    """

    model: Tangent
    start: Point
    curvature: LinearOperator
    precision: Float[Tensor, " p"]
    kept: LinearOperator | None = None

    @cached_property
    def point(self) -> Point:
        """Where it leads."""
        start = self.start
        target = self.curvature.matmat(start.flat.double().unsqueeze(1)) - self._slope
        flat = solve(self._system, target).squeeze(1).to(start.flat)
        change = (self.model.jacobian @ (flat - start.flat)).reshape(start.outputs.shape)
        return Point(flat, start.outputs + change)

    @property
    def gain(self) -> float:
        """What it promises: ``½ gᵀ (K + Λ)⁻¹ g`` with ``g = d + Λ θ̃``."""
        pull = (self.precision * self.start.flat.double()).unsqueeze(1)
        gradient = self._slope + pull
        return float((gradient * solve(self._system, gradient)).sum()) / 2

    @cached_property
    def _system(self) -> LinearOperator:
        return shift(self.curvature, self.precision)

    @cached_property
    def _slope(self) -> Float[Tensor, "p 1"]:
        zero = torch.zeros_like(self.start.flat)
        slope = self.model.gradient(self.start, zero).double().unsqueeze(1)
        if self.kept is None:
            return slope
        assert isinstance(self.kept, LowRankPlusDiagonal)
        basis: Tensor = torch.linalg.qr(self.kept.factor).Q
        return basis @ (basis.mT @ slope)


def missed_classes(some: Tangent, every: Tangent) -> list[str]:
    """A warning where classes are in the data and not among the rows that precisions are from."""
    if link_of(every.likelihood, every.outputs) != "softmax":
        return []
    known, seen = every.targets.unique().tolist(), set(some.targets.unique().tolist())
    void = getattr(every.likelihood, "ignore", None)
    missed = [str(label) for label in known if label not in seen and label != void]
    if not missed:
        return []
    named = ", ".join(missed[:_NAMED]) + (" …" if len(missed) > _NAMED else "")
    return [
        f"mode and precisions come from {len(some.targets):,} rows without "
        f"{several(len(missed), 'class', 'classes')} of the data: {named}; "
        "Laplace(effort=…) draws more"
    ]


@dataclass(frozen=True)
class Tuner:
    """One tuning.

    Attributes:
        settings: Of the search.
        tangent: The model.
        curvature: What stands for the Gauss-Newton matrix.
        groups: Which weights share a precision.
        learn_noise: Whether noise is found too.
        cuts: Where groups cut through layers.
        work: Forward passes of a row.
        steps: Where passes and searches are written down.
        stretches: Of a pass over all rows.
    """

    settings: ByEvidence
    tangent: Tangent
    curvature: Curvature
    groups: Groups
    learn_noise: bool
    cuts: Cuts
    work: Work
    steps: Steps = field(default_factory=Steps)
    stretches: int = 1

    @property
    def form(self) -> Form:
        """The settled form."""
        assert self.settings.form != "auto"
        return self.settings.form

    def run(self, measured: Measured, tell: Callable[[int], None] = lambda _: None) -> Tuned:
        """Finds mode and precisions in turn, and the curvature there.

        A regression that is small enough is tuned with the exact curvature of the tangent model,
        whatever structure its posterior has: there the evidence is exact.

        Args:
            measured: The curvature to begin with.
            tell: Is told which of :attr:`stages` begins.
        """
        state = self._search(measured, tell)
        tell(len(self.stages) - 1)
        if self.settings.hessian == "tangent":
            # the mode has moved since: posterior and evidence are those of where it is now
            state = self._refreshed(state, rough=False)
        tuned = self._result(state)
        return replace(tuned, curvature=measured) if self._exact else tuned

    def run_on_some(
        self,
        measured: Measured,
        whole: Callable[[Tensor], tuple[Tangent, Tensor]],
        curvature: Curvature,
        directions: int,
        tell: Callable[[int], None] = lambda _: None,
    ) -> Tuned:
        """Precisions by the rows of this tangent model, curvature and evidence by all rows.

        All rows may want the mode of some rows longer or shorter, and moved along a few directions
        more; there the output Hessian is taken, and the evidence.

        Args:
            measured: The curvature to begin with.
            whole: Makes the same tangent model over all rows, with how a direction in the weights
                changes its outputs.
            curvature: What is measured on all rows, in the eigenbasis found on some.
            directions: In which the mode of all rows is sought.
            tell: As in :meth:`run`; the pass over all rows, its search and its curvature follow.
        """
        state = self._search(measured, tell)
        last = len(self.stages) - 1
        tell(last)
        known = measured if self._exact else state.measured
        assert state.point is not None
        base = self.tangent.start(self.form, at_network=self.settings.mean != "tangent")
        ahead = state.point.flat - (0 if self.form == "simple" else base.flat)
        tangent, change = whole(ahead)
        every = replace(self, tangent=tangent, curvature=curvature)
        noise = min(state.noise, every._residuals.most_certain) if self.learn_noise else 1.0
        start = tangent.outputs if self.form == "full" else torch.zeros_like(change)
        point = Point(state.point.flat, start + change)
        tell(last + 1)
        if self.settings.mean == "tangent":
            span = Span.at(Point(base.flat, start)).with_direction(ahead, change)
            span = replace(span, place=torch.ones_like(span.place))
            more = scale(known.operator, noise * len(change) / len(self.tangent.targets))
            near = nearly_inverse(more, state.precision[self.groups.labels], ahead.dtype)
            state = replace(state, noise=noise)
            model, flat = every._model(state), every._flat(state)
            point = written_span(
                self.steps, lambda: approach(model, flat, span, near, directions=directions)
            ).point
        state = replace(state, noise=noise, point=point, span=None, measured=known)
        tell(last + 2)
        found = every._result(every._remeasured(state, point, curvature))
        return replace(found, warnings=(*found.warnings, *missed_classes(self.tangent, tangent)))

    def _search(self, measured: Measured, tell: Callable[[int], None]) -> _State:
        exact = Measured(self.tangent.exact_curvature()) if self._exact else measured
        state = self._first(exact)
        steps = self._steps()
        best: tuple[float, _State] | None = None
        for step in range(steps):
            tell(2 * step)
            state = self._with_mode(state)
            tell(2 * step + 1)
            rough = self._has_many_columns and step < _REFRESHED
            if self.settings.hessian == "tangent" and step < _REFRESHED:
                state = self._refreshed(state, rough=rough)
                best = None
            value = self._log_evidence(state)
            if best is not None and value < best[0] - 1e-9 * abs(best[0]) and step + 1 < steps:
                # the fixed point went too far: go back half the way
                middle = (best[1].precision * state.precision).sqrt()
                state = replace(
                    state, precision=middle, noise=math.sqrt(best[1].noise * state.noise)
                )
                best = (value, state)
                continue
            best = (value, state)
            fresh = self._updated(state)
            change = self._change(state, fresh)
            state = fresh
            if change < (1e-6 if self._exact else 1e-3) and not rough:
                break
        tell(2 * steps)
        return self._with_mode(state)

    @property
    def _structure(self) -> str:
        return Full.__name__ if self._exact else type(plain(self.curvature)).__name__

    @cached_property
    def _gaussian(self) -> bool:
        return self.tangent.is_gaussian

    @property
    def _exact(self) -> bool:
        return self.settings.mean == "tangent" and self._gaussian and self.tangent.is_small

    @property
    def _has_many_columns(self) -> bool:
        """Whether random columns, until the last step, are a saving."""
        if self.settings.hessian != "tangent" or not isinstance(self.curvature, KFAC):
            return False
        return column_count(self.tangent.likelihood, self.tangent.outputs[:1]) > 2 * _DRAWS

    @cached_property
    def stages(self) -> list[Stage]:
        """Of the search: a mode and a look at the curvature in each step, and the last ones."""
        text, steps = "mode and precisions", self._steps()
        moving, turning = self.settings.mean == "tangent", self.settings.hessian == "tangent"

        def mode(directions: int) -> Stage:
            cost = self.work.search(self.tangent, directions) if moving else 0.0
            return Stage(text, cost, 2.0 * directions)

        def look(columns: int | None) -> Stage:
            return Stage(text, self.work.look(columns) if turning else 0.0)

        found: list[Stage] = []
        for step in range(steps):
            rough = look(_DRAWS if self._has_many_columns else None)
            found += [
                mode(_AGAIN if step else _FIRST + 1),
                rough if step < _REFRESHED else Stage(text, 0.0),
            ]
        return [*found, mode(_AGAIN), look(None)]

    def _steps(self) -> int:
        if self.settings.steps is not None:
            return self.settings.steps
        if self.settings.mean == "network" and self.settings.hessian == "network":
            return 100
        if self._gaussian:
            return 200 if self.tangent.is_small else 10
        return 5

    def _first(self, measured: Measured) -> _State:
        """The natural precisions: the only start that follows every rescaling of a group."""
        spectrum = spectrum_of(measured.operator, self.groups.labels, len(self.groups.names))
        noise = self._residuals.most_certain if self.learn_noise else 1.0
        return _State(self._natural, noise, measured, spectrum)

    @cached_property
    def _natural(self) -> Float[Tensor, " g"]:
        return self.groups.natural(self._norms(self.tangent.layout.flatten(self.tangent.weights)))

    @cached_property
    def _residuals(self) -> Residuals:
        return Residuals(self.tangent)

    def _norms(self, flat: Float[Tensor, " p"]) -> Float[Tensor, " g"]:
        return self.groups.sums(flat.double().square())

    def _model(self, state: _State) -> Tangent:
        if not self.learn_noise:
            return self.tangent
        return self.tangent.with_likelihood(with_noise(self.tangent.likelihood, state.noise**-0.5))

    def _flat(self, state: _State) -> Float[Tensor, " p"]:
        like = self.tangent.outputs
        return state.precision[self.groups.labels].to(like)

    def _scaled(self, state: _State) -> LinearOperator:
        """The curvature under the present noise."""
        operator = state.measured.operator
        return operator if state.noise == 1 else scale(operator, state.noise)

    def _with_mode(self, state: _State) -> _State:
        """The weights at which the evidence is taken, for the present precisions."""
        model, mean = self._model(state), self.settings.mean
        if mean == "network":
            return replace(state, point=model.start(self.form, at_network=True))
        if mean == "newton":
            return replace(state, point=self._newton(model, state).point)
        start = state.point
        if self.tangent.is_small:
            flat, solver = self._flat(state), self._solver(state)
            found = model.find_mode(flat, self.form, start=start, tolerance=1e-11, solver=solver)
            return replace(state, point=found)
        precision = state.precision[self.groups.labels]
        near = nearly_inverse(self._scaled(state), precision, self.tangent.outputs.dtype)
        span = written_span(
            self.steps,
            lambda: approach(
                model,
                self._flat(state),
                Span.at(model.start(self.form)) if state.span is None else state.span,
                near,
                # precisions hardly change beyond a tenth of the way left: a few directions suffice
                directions=_FIRST if state.span is None else _AGAIN,
            ),
        )
        return replace(state, span=span, point=span.point)

    def _solver(self, state: _State) -> Callable[[Tensor], Tensor] | None:
        """All systems of one precision and one noise have the same eigenvectors."""
        if not self._gaussian or len(self.groups.names) > 1 or self._shifts is None:
            return None
        return partial(self._shifts.solve, state.noise, float(state.precision))

    @cached_property
    def _shifts(self) -> Shifts | None:
        return shifts_of(self.tangent.exact_curvature())

    def _newton(self, model: Tangent, state: _State) -> NewtonStep:
        precision = state.precision[self.groups.labels]
        start = model.start(self.form, at_network=True)
        kept = state.measured.operator if isinstance(self.curvature, LowRank) else None
        return NewtonStep(model, start, self._scaled(state), precision, kept)

    def _refreshed(self, state: _State, *, rough: bool) -> _State:
        """The curvature with the output Hessian at the mode; from random columns where rough."""
        point = state.point
        if self.settings.mean != "tangent":
            model, small = self._model(state), self.tangent.is_small
            point = written_point(
                self.steps,
                lambda: model.find_mode(
                    self._flat(state),
                    self.form,
                    tolerance=1e-11 if small else 1e-3,
                    steps=100 if small else 5,
                ),
            )
        recipe = MonteCarloFisher(self.curvature, draws=_DRAWS) if rough else self.curvature
        return self._remeasured(state, point, recipe)

    def _remeasured(self, state: _State, point: Point | None, recipe: Curvature) -> _State:
        """The curvature at some outputs of the model, in the eigenbasis that is known."""
        assert point is not None
        outputs = point.outputs if self.settings.hessian == "tangent" else None

        def measure(train: Batches, rows: slice, recipe: Curvature) -> Measured:
            return recipe.build(
                replace(self.tangent.problem, train=train),
                self.tangent.weights,
                self.tangent.layout,
                outputs=None if outputs is None else outputs[rows],
                previous=state.measured,
                cuts=self.cuts,
            )

        train, steps = self.tangent.problem.train, self.steps
        if is_corrected(recipe):
            known, rough = state.measured, recipe != self.curvature
            count = 1 if rough else self.stretches
            measured = measured_in_stretches(steps, count, train, recipe, known, measure)
        else:
            measured = written_measured(steps, lambda: measure(train, slice(None), recipe))
        spectrum = spectrum_of(measured.operator, self.groups.labels, len(self.groups.names))
        return replace(state, measured=measured, spectrum=spectrum)

    def _updated(self, state: _State) -> _State:
        """MacKay's updates of precisions and noise, for fixed weights and curvature."""
        assert state.point is not None
        norms = self._norms(state.point.flat)
        precision, noise = state.precision, state.noise
        spectrum = state.spectrum if noise == 1 else state.spectrum.scaled(noise)
        # where the mode moves with the precision, one step of the fixed point; else its end
        # (operators that groups cut across cost a factorisation a sweep: a few, in every step)
        sweeps = 1 if self._exact else (3 if spectrum.rest else 200)
        precision = best_precision(spectrum, norms, precision, natural=self._natural, sweeps=sweeps)
        if self.learn_noise:
            gamma = float(spectrum.effective(precision).sum())
            free = self._residuals.precision(state.point.outputs, gamma)
            noise = min(free, self._residuals.most_certain)
        return replace(state, precision=precision, noise=noise)

    def _change(self, before: _State, after: _State) -> float:
        low, high = bounds(after.spectrum.scaled(after.noise), self._natural)
        inside = (after.precision > 2 * low) & (after.precision < high / 2)
        moved = (after.precision / before.precision).log().abs()[inside]
        noise = abs(math.log(after.noise / before.noise))
        return max(noise, float(moved.max()) if len(moved) else 0.0)

    def _log_evidence(self, state: _State) -> float:
        assert state.point is not None
        model, flat = self._model(state), self._flat(state).double()
        point = state.point
        spectrum = state.spectrum.scaled(state.noise)
        volume = float(spectrum.half_logdet(state.precision))
        if self.settings.mean == "newton":
            step = self._newton(model, state)
            return self._joint(model, step.start, flat) + step.gain - volume
        return self._joint(model, point, flat) - volume

    @staticmethod
    def _joint(model: Tangent, point: Point, precision: Tensor) -> float:
        fit = float(model.log_likelihood(point.outputs.double()))
        return fit - float((precision * point.flat.double().square()).sum()) / 2

    def _result(self, state: _State) -> Tuned:
        spectrum = state.spectrum.scaled(state.noise)
        gamma = spectrum.effective(state.precision)
        off = [self.groups.names[group] for group in switched_off(spectrum, state.precision)]
        warnings = [*self.groups.notes, *switched_off_warning(off, len(gamma))]
        if state.point is not None and not state.point.converged:
            warnings.append("the mode of the tangent model was not found to full accuracy")
        diagnostics = {
            "effective_weights": float(gamma.sum()),
            "groups": float(len(gamma)),
            "median_precision": float(state.precision.median()),
        }
        if self.learn_noise:
            diagnostics["noise"] = state.noise**-0.5
            assert state.point is not None
            free = self._residuals.precision(state.point.outputs, float(gamma.sum()))
            warnings.extend(unfinished(self._residuals.most_certain, free))
        elif state.point is not None and self.settings.mean != "network":
            effective = float(gamma.sum())
            warnings.extend(beaten_by_tangent(self.tangent, state.point.outputs, effective))
        return Tuned(
            state.precision,
            state.noise,
            state.measured,
            self._log_evidence(state),
            self._structure,
            diagnostics,
            tuple(warnings),
        )
