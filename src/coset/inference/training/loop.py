"""The training loop: all members of a stack, step by step.

There is one loop.  A single network is a stack of one, and members that cannot be vectorised are
evaluated in turn inside a step (:mod:`coset.inference.training.gradients`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.batches import Batches
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.run_fingerprint import data_fingerprint, described
from coset.inference.run_record import Checkpoint, RunRecord
from coset.inference.training.gradients import (
    Evaluate,
    Objective,
    choose,
    evaluation_losses,
    one_by_one,
)
from coset.inference.training.noise import (
    Noise,
    half_squares,
    is_learnt,
    residuals_per_example,
)
from coset.inference.training.recipe import Recipe
from coset.inference.training.snapshots import Kept
from coset.inference.training.state import Trained, TrainingState, join
from coset.inference.training.stopping import Best
from coset.inference.training.updates import Updates, clip
from coset.vocabulary import Batch, Progress, Weights
from coset.weights.denormals import denormals_as_zeros
from coset.weights.randomness import own_randomness
from coset.weights.refusals import is_mask

_REPORTS_PER_SECOND = 4
_MASKS = 0x5DEECE66D  # sets the seeds of dropout apart from those of the data order


@dataclass(frozen=True)
class _Run:
    """Everything that stays as it is during training."""

    problem: Problem
    recipe: Recipe
    objective: Objective
    evaluate: Evaluate
    validation: Batches | None
    record: RunRecord
    seeds: tuple[int, ...]
    first: int
    progress: Callable[[TrainingState], None]

    @property
    def numbers(self) -> list[int]:
        """All members."""
        return list(range(self.first, self.first + len(self.seeds)))

    @property
    def epochs(self) -> int:
        return self.recipe.passes(self.problem.train.size)

    @property
    def batches(self) -> int:
        return self.recipe.batches(self.problem.train.size)

    def losses(self, weights: Weights, data: Batches) -> Float[Tensor, " m"]:
        vectorised = self.evaluate is not one_by_one
        return evaluation_losses(self.objective, weights, data, vectorised=vectorised)


def train_stack(
    problem: Problem,
    starts: Weights,
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    progress: Progress | None = None,
    on_epoch: Callable[[TrainingState], None] | None = None,
    checkpoint: Checkpoint | None = None,
    kind: str = "training",
) -> Trained:
    """Trains all members of a stack, each as if it were alone.

    Args:
        problem: What to fit.
        starts: The members' first weights, as a stack; they are not changed.
        recipe: How to train.
        seeds: One a member, for the order of its data and for its dropout.
        progress: Told a few times a second how far training is.
        on_epoch: Called with the state after every epoch, to collect iterates.
        checkpoint: Where the run is written down, to be taken up again.
        kind: What else tells its record from others: what is collected, say.

    Raises:
        CosetError: If the data do not fit the network, a loss stops being finite, or the folder
            of the checkpoint holds another run.
    """
    check_data(problem, recipe)
    with own_randomness(seeds[0]):
        return train_in_thread(
            problem,
            starts,
            recipe,
            seeds,
            progress=progress,
            on_epoch=on_epoch,
            record=training_record(checkpoint, kind, problem, recipe, seeds, starts),
        )


def training_record(
    checkpoint: Checkpoint | None,
    kind: Any,
    problem: Problem,
    recipe: Recipe,
    seeds: Sequence[int],
    starts: Weights,
) -> RunRecord:
    """The record of a training of some kind from these beginnings."""

    def settings() -> Mapping[str, Any]:
        held_out = recipe.held_out(problem.network)
        return {
            "kind": kind,
            "recipe": described(replace(recipe, validation=None)),
            "members of a stack": len(seeds),
            "seeds": [int(seed) for seed in seeds],
            "validation data": None if held_out is None else data_fingerprint(held_out),
        }

    return RunRecord.of(checkpoint, problem, starts, settings)


def check_data(problem: Problem, recipe: Recipe) -> None:
    """Refuses data, for training or held out, that do not fit the network."""
    problem.check()
    held_out = recipe.held_out(problem.network)
    if held_out is not None:
        replace(problem, train=held_out).check()


@denormals_as_zeros()
def train_in_thread(
    problem: Problem,
    starts: Weights,
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    record: RunRecord,
    first: int = 0,
    progress: Progress | None = None,
    on_epoch: Callable[[TrainingState], None] | None = None,
) -> Trained:
    """The loop of :func:`train_stack`, without its checks; messages count members from ``first``.

    What the networks and data draw by themselves comes from the thread's own generator.
    """
    recipe.check(problem.train.size)
    run, state = _begin(problem, starts, recipe, seeds, progress)
    run = replace(run, record=record, first=first)
    state.numbers = run.numbers[: len(state.numbers)]
    device = next(iter(state.weights.values())).device
    record.resume(lambda saved: state.take_up(saved, recipe, problem), device=device)
    before = state.epoch
    if state.step == 0:
        _keep_snapshot(run, state)
    while state.epoch < run.epochs and state.numbers:
        _train_epoch(run, state)
        _keep_snapshot(run, state)
        if run.validation is not None:
            _validate(run, state)
        if on_epoch is not None:
            on_epoch(state)
    if state.epoch > before:
        run.record.write(state.snapshot())
    if progress is not None and state.epoch < run.epochs:
        progress(1.0, f"stopped after epoch {state.epoch}")
    _finish(run, state, torch.arange(len(state.numbers)))
    found = join([state.finished[number] for number in run.numbers])
    ended = {number: each.weights for number, each in state.finished.items()}
    kept = {epoch: each.complete(ended) for epoch, each in state.kept.items()}
    return replace(found, collected=state.collected, snapshots=kept)


def _begin(
    problem: Problem,
    starts: Weights,
    recipe: Recipe,
    seeds: Sequence[int],
    progress: Progress | None,
) -> tuple[_Run, TrainingState]:
    network = problem.network
    weights = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in starts.items()
    }
    learnt = is_learnt(problem.likelihood)
    log_prob = problem.likelihood.log_prob
    if learnt:
        log_prob = partial(half_squares, likelihood=problem.likelihood)
    objective = Objective(network, log_prob)
    validation = recipe.held_out(network)
    first = problem.train.rows(torch.arange(min(2, problem.train.size)).expand(len(seeds), -1))
    evaluate = choose(objective, weights, first)
    steps = recipe.passes(problem.train.size) * recipe.batches(problem.train.size)
    told = _throttled(progress, steps)
    run = _Run(problem, recipe, objective, evaluate, validation, RunRecord(), tuple(seeds), 0, told)
    if recipe.fork is not None:
        weights = {name: tensor[:1].clone() for name, tensor in weights.items()}
        seeds = [recipe.fork.seed]
    orders, masks = _randomness(seeds)
    state = TrainingState(
        numbers=list(range(len(seeds))),
        weights=weights,
        updates=Updates.of(recipe.optimiser, problem, network.layout.restrict(weights)),
        orders=orders,
        masks=masks,
        noise=_first_noise(run, weights) if learnt else None,
        losses=torch.full((len(seeds),), torch.nan),
    )
    return run, state


def _first_noise(run: _Run, weights: Weights) -> Noise:
    inputs, targets = next(iter(run.problem.train))
    vectorised = run.evaluate is not one_by_one
    losses = evaluation_losses(run.objective, weights, [(inputs, targets)], vectorised=vectorised)
    return Noise.first(losses, residuals_per_example(run.problem))


def _train_epoch(run: _Run, state: TrainingState) -> None:
    """An epoch, or what is left of it."""
    size = run.problem.train.size
    if state.order is None:
        state.order = torch.stack([torch.randperm(size, generator=g) for g in state.orders])
        state.total = torch.zeros(())
    done = state.step - state.epoch * run.batches
    batches = state.order.tensor_split(run.batches, dim=1)
    for number in range(done, run.batches):
        if run.recipe.fork is not None and state.step == run.recipe.fork.step:
            state.order = _part(run, state, sum(batch.shape[1] for batch in batches[:number]))
            batches = state.order.tensor_split(run.batches, dim=1)
        index = batches[number]
        losses = _train_step(run, state, run.problem.train.rows(index))
        state.total = state.total + losses * index.shape[1]
        if run.record.due(state.step):
            run.record.write(state.snapshot())
        run.progress(state)
    losses = state.total / size
    if state.noise is not None:
        state.noise = state.noise.updated(losses)
        losses = state.noise.losses(losses)
    state.losses, state.order = losses, None
    state.epoch += 1


def _train_step(run: _Run, state: TrainingState, batch: Batch) -> Float[Tensor, " m"]:
    recipe = run.recipe
    done = state.step / (run.epochs * run.batches)
    rate = recipe.optimiser.learning_rate * recipe.schedule.factor(done)
    first = next(iter(state.weights.values()))
    scale = first.new_ones(len(first)) if state.noise is None else 1 / state.noise.variance
    evaluation = run.evaluate(run.objective, state.weights, batch, scale, state.masks)
    _require_finite(evaluation.losses, state, rate)
    gradients = evaluation.gradients
    if recipe.clip is not None:
        gradients = clip(gradients, recipe.clip)
    state.updates.apply(gradients, rate)
    state.weights.update(evaluation.buffers)
    state.step += 1
    return evaluation.losses


def _require_finite(losses: Float[Tensor, " m"], state: TrainingState, rate: float) -> None:
    finite = losses.isfinite()
    if bool(finite.all()):
        return
    row = int((~finite).nonzero()[0])
    raise CosetError(
        f"got a loss of {float(losses[row])} at step {state.step + 1} (epoch {state.epoch + 1}) "
        f"with a learning rate of {rate:g}, in member {state.numbers[row]}",
        "needed finite losses",
        "lower the learning rate, clip the gradient, or look for such numbers in the data",
    )


def require_finite_weights(weights: Weights, members: Sequence[int], step: int) -> None:
    """Refuses a stack with weights that are not finite after ``step`` steps."""
    for name, tensor in weights.items():
        finite = tensor.isfinite().flatten(1).all(1) if tensor.dim() > 1 else tensor.isfinite()
        if not bool(finite.all()) and not is_mask(tensor):
            raise CosetError(
                f"got weights {name!r} that are not finite after step {step}, in member "
                f"{members[int((~finite).nonzero()[0])]}",
                "needed finite weights: a gradient was not finite where the loss was",
                "look for roots and quotients of zero in the network, or lower the learning rate",
            )


def _validate(run: _Run, state: TrainingState) -> None:
    """Keeps the best weights of each member and lets go of those that have lost patience."""
    assert run.validation is not None
    losses = run.losses(state.weights, run.validation)
    if state.noise is not None:
        losses = state.noise.losses(losses)
    if state.best is None:
        state.best = Best.first(losses, state.weights)
    else:
        state.best = state.best.updated(losses, state.weights)
    stops = state.best.stale >= run.recipe.patience
    if bool(stops.any()):
        _finish(run, state, stops.nonzero().flatten())
        _keep(run, state, (~stops).nonzero().flatten())


def _part(run: _Run, state: TrainingState, seen: int) -> Int[Tensor, "m n"]:
    """Makes members of the one network, and gives the order in which each goes on in this epoch.

    Args:
        run: What is trained.
        state: What changes.
        seen: Examples of this epoch that they have seen together.
    """
    assert state.order is not None
    rows = torch.zeros(len(run.seeds), dtype=torch.long)
    state.total = state.total.reshape(-1)[rows]
    state.orders, state.masks = _randomness(run.seeds)
    _choose(run, state, rows)
    state.numbers = run.numbers
    together, left = state.order[0, :seen], state.order[0, seen:]
    own = [left[torch.randperm(len(left), generator=g)] for g in state.orders]
    return torch.stack([torch.cat([together, each]) for each in own])


def _keep_snapshot(run: _Run, state: TrainingState) -> None:
    """Writes down the weights, if this is an epoch after which they are kept."""
    asked = run.recipe.snapshots
    if asked is None or state.epoch not in asked.epochs:
        return
    weights = {name: tensor.detach().clone() for name, tensor in state.weights.items()}
    numbers = state.numbers
    fork = run.recipe.fork
    if fork is not None and state.step <= fork.step:  # all members are this network
        numbers = run.numbers
        weights = {name: torch.cat([w] * len(numbers)) for name, w in weights.items()}
    state.kept[state.epoch] = Kept(tuple(numbers), weights)


def _keep(run: _Run, state: TrainingState, rows: Tensor) -> None:
    """Shrinks the stack to some of its rows."""
    chosen = rows.tolist()
    state.numbers = [state.numbers[row] for row in chosen]
    state.orders = [state.orders[row] for row in chosen]
    state.masks = [state.masks[row] for row in chosen]
    _choose(run, state, rows)


def _choose(run: _Run, state: TrainingState, rows: Tensor) -> None:
    """Takes some rows of all that is a stack; one may be taken again and again."""
    state.losses = state.losses[rows]
    state.noise = None if state.noise is None else state.noise.select(rows)
    state.best = None if state.best is None else state.best.select(rows)
    state.updates = state.updates.select(run.recipe.optimiser, run.problem, rows)
    state.weights = {
        name: state.updates.parameters.get(name, tensor[rows])
        for name, tensor in state.weights.items()
    }


def _randomness(seeds: Sequence[int]) -> tuple[list[torch.Generator], list[torch.Generator]]:
    """For each member, what its order of the data and its dropout are drawn from."""
    orders = [torch.Generator().manual_seed(seed) for seed in seeds]
    return orders, [torch.Generator().manual_seed(seed ^ _MASKS) for seed in seeds]


def _finish(run: _Run, state: TrainingState, rows: Tensor) -> None:
    """Writes down what training found for some rows."""
    if not len(rows):
        return
    kept, losses = state.weights, state.losses
    if state.best is not None:
        kept, losses = state.best.weights, state.best.losses
    weights = {name: tensor[rows] for name, tensor in kept.items()}
    numbers = [state.numbers[row] for row in rows.tolist()]
    require_finite_weights(weights, numbers, state.step)  # no loss has seen the last step's
    losses, variances = losses[rows], None
    if state.noise is not None:
        # held-out residuals where we have them: those of the training data flatter the network
        half = run.losses(weights, run.validation or run.problem.train)
        noise = state.noise.select(rows).updated(half)
        losses, variances = noise.losses(half), noise.variance
    for place, number in enumerate(numbers):
        part = slice(place, place + 1)
        state.finished[number] = Trained(
            {name: tensor[part] for name, tensor in weights.items()},
            losses[part],
            None if variances is None else variances[part],
            (state.epoch,),
            state.step,
        )


def _throttled(progress: Progress | None, steps: int) -> Callable[[TrainingState], None]:
    """Passes on a few reports a second."""
    last = 0.0

    def report(state: TrainingState) -> None:
        nonlocal last
        now = time.monotonic()
        if progress is not None and (now - last >= 1 / _REPORTS_PER_SECOND or state.step == steps):
            last = now
            progress(state.step / steps, f"epoch {state.epoch + 1}, step {state.step} of {steps}")

    return report
