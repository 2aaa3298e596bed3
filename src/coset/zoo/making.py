"""What a recipe describes, made: the network, the data, and the training of one stack."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

from coset import data, models
from coset.bayes.batches import InMemory
from coset.bayes.likelihood import Categorical
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.errors import CosetError, names_like
from coset.inference.beginnings import starting_points
from coset.inference.training.loop import train_stack
from coset.inference.training.optimisers import SGD, Adam, Optimiser
from coset.inference.training.recipe import Recipe, forked
from coset.inference.training.schedules import Constant, Cosine, OneCycle, Schedule, Steps
from coset.inference.training.state import TrainingState
from coset.metrics import accuracy, negative_log_likelihood
from coset.vocabulary import Batch, Weights
from coset.weights.randomness import own_draws, own_randomness
from coset.weights.stacking import unstack
from coset.zoo.recipe import Augmentation, Examples, Training, ZooRecipe

FACTORIES: Mapping[str, Callable[..., nn.Module]] = {
    **models.MODELS,
    "resnet": models.resnet,
    "preactivation_resnet": models.preactivation_resnet,
}
"""Architectures that a recipe may name."""


def run_seed(seed: int, run: int) -> int:
    """The seed of a zoo's run with a number: 62 bits, so that zoos share no run.

    >>> run_seed(0, 0) != run_seed(0, 1) != run_seed(1, 0)
    True
    """
    digest = hashlib.sha256(f"{seed} {run}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def build_module(recipe: ZooRecipe) -> nn.Module:
    """The network of a recipe, always with the same first weights."""
    architecture = recipe.architecture
    if architecture.model not in FACTORIES:
        raise CosetError(
            f"got the model {architecture.model!r} in the recipe {recipe.name}",
            f"needed one of {', '.join(sorted(FACTORIES))}",
            f"close to it: {names_like(architecture.model, FACTORIES)}",
        )
    try:
        with own_randomness(0), own_draws():
            return FACTORIES[architecture.model](**architecture.arguments)
    except TypeError as error:
        raise CosetError(
            f"got arguments of {architecture.model} in the recipe {recipe.name} that it does not "
            f"take ({error})",
            f"needed those of coset.models.{architecture.model}",
        ) from error


@lru_cache(maxsize=2)
def load_examples(settings: Examples) -> tuple[Batch, Batch]:
    """Training and test examples of a recipe, read once a process."""
    found = data.load(settings.set)
    if settings.standardise:
        found = data.standardise(found)
    parts = []
    for what, pair, count in (
        ("train", found.train, settings.train),
        ("test", found.test, settings.test),
    ):
        inputs, targets = pair
        if count > len(targets):
            raise CosetError(
                f"got data.{what} = {count}",
                f"needed at most the {len(targets)} examples of {found}",
            )
        chosen = slice(count or len(targets))
        # where channels lie last, torch 2.13 crashes in gradients of some narrow convolutions
        plain = inputs[chosen].clone(memory_format=torch.contiguous_format)
        parts.append((plain, targets[chosen].clone()))
    return parts[0], parts[1]


@dataclass
class TrainedRun:
    """What became of one seed of a stack.

    Attributes:
        weights: By epoch, ``None`` for the end; empty if the run was dropped.
        metrics: By epoch as well.
        dropped: Why it was given up, or nothing.
    """

    weights: dict[int | None, Weights] = field(default_factory=dict)
    metrics: dict[int | None, dict[str, float]] = field(default_factory=dict)
    dropped: str = ""


class _AllDroppedError(Exception):
    """Raised to leave a training of which nothing will be kept."""


def train_runs(recipe: ZooRecipe, seeds: list[int]) -> list[TrainedRun]:
    """Trains one network a seed, as one stack: a pure function of its arguments."""
    problem, test = _problem(recipe, seeds[0])
    runs = [TrainedRun() for _ in seeds]

    def after_epoch(state: TrainingState) -> None:
        epoch = state.epoch
        kept = epoch in recipe.keep.epochs
        judged = bool(recipe.drop.below) and epoch == recipe.drop.after_epoch
        if not (kept or judged):
            return
        members, losses = unstack(state.weights), state.losses
        if len(members) < len(runs):  # they are one network still
            members, losses = members * len(runs), losses.expand(len(runs))
        for run, weights, loss in zip(runs, members, losses, strict=True):
            metrics = measure(problem, weights, test) | {"training_loss": float(loss)}
            if judged and metrics["accuracy"] < recipe.drop.below:
                run.dropped = (
                    f"accuracy {metrics['accuracy']:.4f} below {recipe.drop.below:g} "
                    f"after epoch {epoch}"
                )
            if kept:
                run.weights[epoch] = {name: w.clone() for name, w in weights.items()}
                run.metrics[epoch] = metrics
        if all(run.dropped for run in runs):
            raise _AllDroppedError

    settings, starts = _settings(recipe.training), starting_points(problem, None, seeds)
    if recipe.training.together:
        settings, starts = forked(settings, starts, recipe.training.together, seeds[0])
    try:
        trained = train_stack(problem, starts, settings, seeds, on_epoch=after_epoch)
    except _AllDroppedError:
        return [TrainedRun(dropped=run.dropped) for run in runs]
    for run, weights, loss in zip(runs, unstack(trained.weights), trained.losses, strict=True):
        if run.dropped:
            run.weights, run.metrics = {}, {}
        else:
            run.weights[None] = weights
            run.metrics[None] = measure(problem, weights, test) | {"training_loss": float(loss)}
    return runs


def first_weights(recipe: ZooRecipe, seed: int, runs: Sequence[int]) -> Weights:
    """The weights that runs of a zoo begin with, as a stack: they follow from their seeds."""
    problem, _ = _problem(recipe, seed)
    size = recipe.training.stack
    begun = [run // size * size if recipe.training.together else run for run in runs]
    return starting_points(problem, None, [run_seed(seed, run) for run in begun])


def measure(problem: Problem, weights: Weights, test: InMemory) -> dict[str, float]:
    """Accuracy and mean negative log-likelihood on the test examples."""
    with torch.no_grad():
        logits = torch.cat([problem.network.apply(weights, inputs) for inputs, _ in test])
    probabilities = logits.softmax(1)
    return {
        "accuracy": float(accuracy(probabilities, test.targets)),
        "negative_log_likelihood": float(negative_log_likelihood(probabilities, test.targets)),
    }


def measure_stack(recipe: ZooRecipe, weights: Weights) -> list[dict[str, float]]:
    """What is measured of each member of a stack, from the weights alone."""
    problem, test = _problem(recipe, 0)
    return [measure(problem, each, test) for each in unstack(weights)]


def check_recipe(recipe: ZooRecipe) -> Problem:
    """Refuses a recipe whose network, data and settings do not fit, before anything is written."""
    problem, _ = _problem(recipe, 0)
    settings = _settings(recipe.training)
    if recipe.training.together:
        settings, _ = forked(settings, {}, recipe.training.together, 0)
    settings.check(problem.train.size)
    problem.check()
    return problem


def _problem(recipe: ZooRecipe, seed: int) -> tuple[Problem, InMemory]:
    train, test = load_examples(recipe.data)
    plain, how = InMemory(*train), recipe.augmentation
    shown: InMemory | data.Augmented = plain
    if how != Augmentation():
        random = torch.Generator().manual_seed(seed)
        pictures, labels = train
        assert isinstance(pictures, Tensor), "one input"
        shown = data.Augmented(pictures, labels, generator=random, crop=how.crop, flip=how.flip)
    prior = GaussianPrior(recipe.training.weight_decay * plain.size)
    module = build_module(recipe)
    base = Problem.of(module, plain, likelihood=Categorical(), prior=prior)
    return Problem(base.network, base.likelihood, prior, shown), InMemory(*test)


def _settings(training: Training) -> Recipe:
    optimiser: Optimiser
    if training.optimiser == "sgd":
        optimiser = SGD(training.learning_rate, training.momentum, training.nesterov)
    else:
        optimiser = Adam(training.learning_rate)
    return Recipe(optimiser, _schedule(training), training.epochs, training.batch_size)


def _schedule(training: Training) -> Schedule:
    if training.schedule == "steps":
        at = tuple(epoch / training.epochs for epoch in training.drop_at)
        return Steps(at, training.drop_by)
    named: dict[str, Schedule] = {
        "constant": Constant(),
        "cosine": Cosine(),
        "one-cycle": OneCycle(),
    }
    return named[training.schedule]
