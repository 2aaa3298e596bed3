"""Samples as solutions: conjugate gradients over all data, or descent on batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import hessian_root
from coset.curvature.matrix_free import ConjugateGradients, StochasticDescent
from coset.curvature.products import Linearisation
from coset.curvature.tangent import Point, Tangent
from coset.errors import CosetError
from coset.inference.matrix_free.model import Model
from coset.inference.matrix_free.preconditioning import Near
from coset.inference.matrix_free.randomness import source
from coset.inference.matrix_free.state import Descent, State, as_columns, number
from coset.inference.run_record import RunRecord
from coset.linalg import LinearOperator
from coset.linalg.operators import Iterate, advance, begin

_POWER_BATCHES, _POWER_STEPS = 3, 8
"""Batches, and products with each, that the largest curvature is found from."""


@dataclass(frozen=True)
class Round:
    """One round of samples: the model at fixed precisions, noise and output curvature."""

    model: Model
    tangent: Tangent
    precision: Float[Tensor, " p"]
    near: Near
    curved: Tensor
    record: RunRecord
    tell: Callable[[str], None]


@dataclass(frozen=True)
class Solved:
    """Samples ``z``, their ``H z``, how well they were found, and the mode if it came along."""

    samples: Float[Tensor, "p m"]
    bent: Float[Tensor, "p m"]
    residual: float
    iterations: int
    mode: Point | None = None


def by_conjugate_gradients(
    solver: ConjugateGradients, turn: Round, state: State
) -> tuple[State, Solved]:
    """Solves for what the data change of prior samples, from where the last round ended.

    With ``d = Jᵀ R e`` and a prior sample ``z₀`` that is ``(H + Λ) c = d - H z₀``.  Solved for
    ``z₀ + c`` as a whole, a residual that is small beside all the weights of a large network may
    be large beside the few directions that its data know of; so it is measured against ``d``.

    Raises:
        CosetError: If the tolerance is not reached.
    """
    operator = turn.tangent.product(turn.curved, turn.precision)
    near = turn.near.inverse
    pulled = turn.model.pulled_noise(turn.tangent, turn.curved)
    work = state.work
    assert isinstance(work, Iterate)
    if not state.busy:
        work = _begun(turn, operator, pulled, work)
        state = replace(state, solving=number(1), work=work)
        turn.record.write(state)
    while work.relative > solver.tolerance:
        done = int(work.count)
        if done >= solver.iterations:
            raise CosetError(
                f"got a residual of {work.relative:.1e} after {done} iterations of conjugate "
                "gradients",
                f"needed {solver.tolerance:.1e}",
                "give ConjugateGradients(…) more iterations, a larger tolerance or the "
                "preconditioner KFAC(), raise the prior precision, or use StochasticDescent()",
            )
        turn.tell(f"iteration {done + 1}, residual {work.relative:.1e}")
        work = advance(work, operator, near)
        if turn.record.due(int(work.count), at_most=20):
            turn.record.write(replace(state, work=work))
    # H z = d - r - Λ c: no further product
    bent = pulled.sub_(work.residual).sub_(turn.precision.unsqueeze(1) * work.value)
    samples = turn.model.prior_samples(turn.precision).add_(work.value)
    return replace(state, work=work), Solved(samples, bent, work.relative, int(work.count))


def _begun(
    turn: Round, operator: LinearOperator, pulled: Float[Tensor, "p m"], work: Iterate
) -> Iterate:
    """Before the first iteration of a round: from the last round's changes, or from none."""
    flat = turn.tangent.product(turn.curved, torch.zeros_like(turn.precision))
    target = pulled - flat.matmat(turn.model.prior_samples(turn.precision))
    start = work.value if work.value.numel() else None
    begun = begin(operator, target, turn.near.inverse, start, beside=pulled)
    return replace(begun, direction=as_columns(begun.direction))


def by_descent(
    solver: StochasticDescent, turn: Round, state: State, *, with_mode: bool
) -> tuple[State, Solved]:
    """Descends on batches, from where the last round ended, and averages the last steps."""
    pulled = turn.model.pulled_noise(turn.tangent, turn.curved)
    target = _whole(turn, pulled)
    # whole batches only: a small last one would weigh its examples too much
    batches = max(1, turn.tangent.problem.train.size // solver.batch)
    total = solver.epochs * batches
    work = state.work
    assert isinstance(work, Descent)
    if not state.busy:
        work = _first(turn, state, target, with_mode)
        state = replace(state, solving=number(1), work=work)
        turn.record.write(state)
    scales = turn.near.inverse.matmat(torch.ones_like(turn.precision).unsqueeze(1)).squeeze(1)
    rate = solver.rate or 1 / _largest(solver, turn, scales)
    from_step = min(int((1 - solver.averaged) * total), total - 1)
    order = _order(turn, int(state.step), int(work.count) // batches)
    for count in range(int(work.count), total):
        epoch, place = divmod(count, batches)
        if place == 0:
            turn.tell(f"pass {epoch + 1} of {solver.epochs}")
            order = _order(turn, int(state.step), epoch)
        index = order[place * solver.batch :][: solver.batch]
        gradient = _gradient(turn, index, work.value, target)
        work.velocity.mul_(solver.momentum).add_(gradient)
        step = rate * (1 - 0.9 * count / total)
        work.value.addcmul_(
            gradient.add_(work.velocity, alpha=solver.momentum), scales, value=-step
        )
        if count >= from_step:
            work.average.lerp_(work.value, 1 / (count - from_step + 1))
        work = replace(work, count=number(count + 1))
        if turn.record.due(count + 1, at_most=200):
            turn.record.write(replace(state, work=work))
    if not bool(work.average.isfinite().all()):
        raise CosetError(
            f"got samples that are not finite at a rate of {rate:.1e}",
            "needed a descent that does not diverge",
            "give StochasticDescent(rate=…) a smaller one, or a larger batch",
        )
    state = replace(state, work=replace(work, value=work.average.clone()))
    solved = _measured(turn, work.average, target, pulled, scales)
    mode = _point(turn, work.average[-1]) if with_mode else None
    return state, replace(solved, iterations=total, mode=mode)


def _whole(turn: Round, pulled: Float[Tensor, "p m"]) -> Float[Tensor, "m p"]:
    """The right-hand sides ``Jᵀ R e + Λ^½ ε`` of whole samples."""
    prior = turn.model.prior_samples(turn.precision)
    return torch.addcmul(pulled, prior, turn.precision.unsqueeze(1)).mT


def _measured(
    turn: Round,
    found: Tensor,
    target: Float[Tensor, "m p"],
    pulled: Float[Tensor, "p m"],
    scales: Float[Tensor, " p"],
) -> Solved:
    """One product over all data: how well the samples solve their systems, and ``H z``."""
    samples = found[: turn.model.samples].mT
    operator = turn.tangent.product(turn.curved, turn.precision)
    product = operator.matmat(samples)
    residual = target.mT - product
    rest = (scales.unsqueeze(1) * residual.square()).sum(0) / (
        scales.unsqueeze(1) * pulled.square()
    ).sum(0)
    bent = product - turn.precision.unsqueeze(1) * samples
    return Solved(samples, bent, float(rest.max().sqrt()), 0)


def _first(turn: Round, state: State, target: Float[Tensor, "m p"], with_mode: bool) -> Descent:
    """From the last round, or from the prior's share of the right-hand sides."""
    work = state.work
    assert isinstance(work, Descent)
    if work.value.numel():
        value = work.value.clone()
    else:
        value = turn.near.inverse.matmat(target.mT).mT
        if with_mode:
            value = torch.cat([value, state.mode.unsqueeze(0)])
    return Descent(value, torch.zeros_like(value), torch.zeros_like(value), number(0))


def _order(turn: Round, step: int, epoch: int) -> Tensor:
    random = source(turn.model.seed, "order", 100_003 * step + epoch)
    return torch.randperm(turn.tangent.problem.train.size, generator=random)


def _gradient(
    turn: Round, index: Tensor, value: Float[Tensor, "k p"], target: Float[Tensor, "m p"]
) -> Float[Tensor, "k p"]:
    """Of every sample's quadratic, and of the mode's loss in the last row."""
    tangent, samples = turn.tangent, turn.model.samples
    inputs, labels = tangent.problem.train.rows(index)
    line = Linearisation(tangent.problem.network, tangent.weights, tangent.layout)
    with_mode = len(value) > samples
    full = turn.model.form == "full"
    directions = value
    if with_mode and full:
        directions = value.clone()
        directions[-1] -= tangent.layout.flatten(tangent.weights)
    changes = line.push(inputs, directions)
    root = hessian_root(tangent.likelihood, turn.curved[index], labels)
    cotangents = _weigh(root, changes)
    if with_mode:
        base = tangent.outputs[index] if full else torch.zeros_like(tangent.outputs[index])
        leaf = (base + changes[-1]).detach().requires_grad_()
        with torch.enable_grad():
            loss = -tangent.likelihood.log_prob(leaf, labels).sum()
        cotangents[-1] = torch.autograd.grad(loss, leaf)[0]
    share = tangent.problem.train.size / len(index)
    gradient = line.pull(inputs, cotangents).mul_(share).addcmul_(value, turn.precision)
    gradient[:samples] -= target
    return gradient


def _weigh(root: Tensor, changes: Float[Tensor, "k n c ..."]) -> Tensor:
    """``B J z`` with ``B = R Rᵀ``."""
    last = changes.movedim(2, -1).unsqueeze(-1)
    return (root @ (root.mT @ last)).squeeze(-1).movedim(-1, 2)


def _largest(solver: StochasticDescent, turn: Round, scales: Float[Tensor, " p"]) -> float:
    """The largest curvature of a batch, in coordinates with unit diagonal.

    For classes also where all are equally likely: the mode may pass there.
    """
    tangent, half = turn.tangent, scales.sqrt()
    line = Linearisation(tangent.problem.network, tangent.weights, tangent.layout)
    order, found = _order(turn, -1, 0), 0.0
    random = source(turn.model.seed, "power")
    for place in range(_POWER_BATCHES):
        index = order[place * solver.batch :][: solver.batch]
        if not len(index):
            break
        inputs, labels = tangent.problem.train.rows(index)
        share = tangent.problem.train.size / len(index)
        for outputs in (turn.curved[index], torch.zeros_like(turn.curved[index])):
            root = hessian_root(tangent.likelihood, outputs, labels)
            vector = torch.randn(scales.shape, generator=random, dtype=scales.dtype).to(scales)
            for _ in range(_POWER_STEPS):
                vector = vector / vector.norm()
                changes = line.push(inputs, (half * vector).unsqueeze(0))
                pulled = line.pull(inputs, _weigh(root, changes))[0] * share
                vector = half * (pulled + turn.precision * half * vector)
            found = max(found, float(vector.norm()))
    return found


def _point(turn: Round, flat: Float[Tensor, " p"]) -> Point:
    tangent = turn.tangent
    full = turn.model.form == "full"
    direction = flat - tangent.layout.flatten(tangent.weights) if full else flat
    change = (tangent.jacobian @ direction).reshape(tangent.outputs.shape)
    return Point(flat.clone(), tangent.outputs + change if full else change)
