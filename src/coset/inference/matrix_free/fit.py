"""Linearised Laplace with the exact curvature, through samples (Antorán et al. 2023)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.defaults import with_noise
from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.curvature.checks import check_finite
from coset.curvature.matrix_free import ConjugateGradients, MatrixFree, StochasticDescent
from coset.curvature.products import Linearisation
from coset.curvature.tangent import Form, Mean, Tangent, tangent_by_products
from coset.errors import CosetError
from coset.inference.doubts import beaten_by_tangent, switched_off_warning, unfinished
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.groups import Groups, group_weights, prior_of
from coset.inference.laplace.noise import residual_noise
from coset.inference.matrix_free.loop import Found, Loop, check_mean, first_state
from coset.inference.matrix_free.model import Model, estimate_diagonal
from coset.inference.matrix_free.preconditioning import preconditioner_bytes
from coset.inference.run_fingerprint import described, digest
from coset.inference.run_record import Checkpoint, RunRecord
from coset.inference.training.noise import is_learnt
from coset.posterior.families import FitReport
from coset.posterior.tangent_samples import TangentSamples
from coset.vocabulary import Progress, Weights
from coset.weights.inputs import count_rows
from coset.weights.layout import Layout

_STACKS = 9
"""Stacks of the size of all samples that are alive together, at most."""

_FEW = 0.01
"""Effective weights below which a group is switched off."""


@torch.no_grad()
def fit_matrix_free(
    problem: Problem,
    weights: Weights,
    layout: Layout,
    curvature: MatrixFree,
    tuning: ByEvidence | None,
    *,
    generator: torch.Generator,
    tell: Progress,
    checkpoint: Checkpoint | None = None,
) -> TangentSamples:
    """Samples of ``N(θ̃, (H + Λ)⁻¹)`` with the exact ``H``, and precisions tuned by them.

    Args:
        problem: Network, likelihood, prior and data.
        weights: ``θ̃``.
        layout: What is uncertain.
        curvature: How samples are found.
        tuning: How precisions are found; ``None`` keeps the prior and a given noise.
        generator: Where one seed comes from.
        tell: Told how far it is.
        checkpoint: Where the run is written down, to be taken up again.
    """
    solver = curvature.settled(problem.train.size)
    settings = None if tuning is None else tuning.settled(problem.link())
    learn = is_learnt(problem.likelihood)
    noise = None
    if learn and settings is not None and not settings.noise:
        noise = residual_noise(problem, weights)
        problem, learn = problem.with_likelihood(noise), False
    seed = int(torch.randint(2**62, (), generator=generator))
    unit = problem.with_noise(1.0) if learn else problem
    tangent = tangent_by_products(unit, weights, layout)
    check_finite(tangent.outputs)
    model = _model(tangent, curvature, settings, learn, seed)
    _check_memory(model, curvature, solver)
    model = _with_features(model, curvature, tell)
    found = _loop(model, curvature, solver, settings, checkpoint, tell)
    tell(1.0, "done")
    return _posterior(found, model, settings, noise)


def _with_features(model: Model, curvature: MatrixFree, tell: Progress) -> Model:
    if curvature.features == "raw":
        return model
    tell(0.0, "features")
    tangent = model.tangent
    options = {"probes": curvature.samples, "seed": model.seed}
    return replace(model, features=estimate_diagonal(tangent, tangent.outputs, **options))


def _loop(
    model: Model,
    curvature: MatrixFree,
    solver: ConjugateGradients | StochasticDescent,
    settings: ByEvidence | None,
    checkpoint: Checkpoint | None,
    tell: Progress,
) -> Found:
    tangent = model.tangent
    gaussian = tangent.is_gaussian
    mean: Mean = "network" if settings is None else settings.mean
    if settings is None:
        refresh, updates = False, 0
        precision = _given(tangent)[0]
    else:
        check_mean(settings.mean, solver)
        refresh = settings.hessian == "tangent" and not gaussian
        updates = settings.steps if settings.steps is not None else (20 if gaussian else 5)
        precision = model.start_precision()
    start = tangent.start(model.form, at_network=mean == "network")
    first = first_state(model, solver, precision, start)

    def told() -> Mapping[str, Any]:
        return {
            "kind": "matrix-free",
            "settings": described(replace(curvature, solver=solver)),
            "tuning": described(settings and replace(settings, validation=None)),
            "seed": model.seed,
            "weights": [list(tangent.layout.names), tangent.layout.size],
            "targets": digest({"": tangent.targets}),
        }

    starts = {name: weight.unsqueeze(0) for name, weight in tangent.weights.items()}
    record = RunRecord.of(checkpoint, tangent.problem, starts, told)
    loop = Loop(model, solver, mean, refresh, updates, 1e-2, curvature.evidence, record, tell)
    return loop.run(first)


def _posterior(
    found: Found, model: Model, settings: ByEvidence | None, noise: Likelihood | None
) -> TangentSamples:
    tangent, state = model.tangent, found.state
    layout = tangent.layout
    prior = None
    if settings is not None:
        network, own = tangent.problem.network, tangent.problem.prior
        given = {n: own.of(n, network.weights[n]) for n in network.layout.names}
        prior = prior_of(layout, model.flat(state.precision).double(), given)
    learnt = noise
    if model.learn_noise:
        learnt = with_noise(tangent.likelihood, float(state.noise) ** -0.5)
    evidence = None if found.half_logdet is None else found.log_joint - found.half_logdet.value
    report = FitReport(
        likelihood=learnt,
        prior=prior,
        log_evidence=evidence,
        diagnostics=_diagnostics(found, model),
        warnings=(*model.groups.notes, *found.notes, *_doubts(found, model)),
    )
    mean = {name: tangent.weights[name].clone() for name in layout.names}
    deviations = layout.unflatten(found.solved.samples.mT.contiguous())
    return TangentSamples(mean, deviations, report)


def _diagnostics(found: Found, model: Model) -> dict[str, float]:
    state = found.state
    diagnostics = {
        "effective_weights": float(found.effective.sum()),
        "effective_weights_error": float(found.error.square().sum().sqrt()),
        "groups": float(len(found.effective)),
        "median_precision": float(state.precision.median()),
        "residual": found.solved.residual,
        "iterations": float(found.solved.iterations),
        "updates": float(state.step),
    }
    if model.learn_noise:
        diagnostics["noise"] = float(state.noise) ** -0.5
    if found.half_logdet is not None:
        diagnostics["log_evidence_error"] = found.half_logdet.standard_error
    return diagnostics


def _doubts(found: Found, model: Model) -> list[str]:
    effective = float(found.effective.sum())
    if model.learn_noise:
        own = model.residuals.precision(model.tangent.outputs)
        doubts = unfinished(own, model.residuals.precision(found.state.outputs, effective))
    else:
        doubts = beaten_by_tangent(model.tangent, found.state.outputs, effective)
    off = [
        name for name, few in zip(model.groups.names, found.effective < _FEW, strict=True) if few
    ]
    return doubts + switched_off_warning(off, len(found.effective))


def _model(
    tangent: Tangent,
    curvature: MatrixFree,
    settings: ByEvidence | None,
    learn: bool,
    seed: int,
) -> Model:
    problem, layout, like = tangent.problem, tangent.layout, tangent.outputs
    form: Form = "full"
    if settings is None:
        groups = Groups(layout, *_given(tangent)[1:])
    else:
        assert settings.form != "auto"
        form = settings.form
        groups = group_weights(problem, layout, settings.groups, rows=False)
    ones = torch.ones(layout.size, dtype=like.dtype, device=like.device)
    return Model(tangent, groups, ones, form, learn, seed, curvature.samples)


def _given(
    tangent: Tangent,
) -> tuple[Float[Tensor, " g"], Int[Tensor, " p"], tuple[str, ...]]:
    """The different precisions of a prior that is kept, and which weights have each."""
    like = tangent.layout.flatten(tangent.weights).double()
    each = tangent.problem.prior.flat(tangent.layout, like)
    if not bool((each > 0).all()):
        raise CosetError("got a prior precision of zero", "needed positive precisions")
    precision, labels = each.unique(return_inverse=True)
    return precision, labels, tuple(f"precision {value:.3g}" for value in precision.tolist())


def _check_memory(
    model: Model, curvature: MatrixFree, solver: ConjugateGradients | StochasticDescent
) -> None:
    """Refuses what would not fit, with what would."""
    tangent = model.tangent
    size = _STACKS * tangent.layout.size + 4 * tangent.outputs.numel()
    each = size * model.features.element_size()
    rest = _work_bytes(model) + preconditioner_bytes(solver, model)
    total = rest + each * curvature.samples
    if total <= curvature.memory:
        return
    fitting = (curvature.memory - rest) // each
    advice = (
        f"use MatrixFree(samples={fitting})"
        if fitting >= 1
        else "use subset=LastLayer(), or ConjugateGradients(preconditioner=DiagonalOnly())"
    )
    raise CosetError(
        f"got {tangent.layout.size:,} weights and {curvature.samples} samples, which take "
        f"{total / 2**30:.2f} GiB",
        f"needed at most {curvature.memory / 2**30:.2f} GiB",
        advice + ", or give more memory",
    )


def _work_bytes(model: Model) -> int:
    """Activations of one chunk, at most; and what is kept of all data and weights."""
    tangent = model.tangent
    kept = 8 * (12 * tangent.layout.size + 8 * tangent.outputs.numel())
    line = Linearisation(tangent.problem.network, tangent.weights, tangent.layout)
    inputs, _ = next(iter(tangent.problem.train))
    return kept + min(line.memory, count_rows(inputs) * line.row_bytes(inputs, model.samples))
