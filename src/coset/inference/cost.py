"""What a fit will take, counted before it begins, and what would be cheaper.

Work is counted in forward passes and in gradients of single rows; what one of them takes is
measured on a few rows.  The numbers are for people to read: no choice depends on them.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, inf

import torch

from coset.bayes.problem import Problem
from coset.inference.ensemble import DeepEnsemble
from coset.inference.laplace.method import Laplace
from coset.inference.laplace.part import LastLayer
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.mean_field import MeanField
from coset.inference.method import Method
from coset.inference.monte_carlo_dropout import MCDropout
from coset.inference.multi_mode import MultiMode
from coset.inference.rebased import RebasedGaussian
from coset.inference.sghmc import SGHMC
from coset.inference.sgld import SGLD
from coset.inference.swag import SWAG
from coset.printing import several
from coset.progress import duration
from coset.vocabulary import Batch
from coset.weights.randomness import own_randomness

_PROBED = 0.1
"""Seconds after which a measurement of speed is long enough."""

_LONG = 60.0
"""Seconds of work from which it is said what would be cheaper."""

_LITTLE = 3.0
"""Epochs of training that a fit of all layers can do with."""


@dataclass(frozen=True)
class Cost:
    """Passes over single rows.

    Attributes:
        forward: Runs of the network on a row.
        gradients: Gradients of a row, each with its run.

    >>> Cost(2, 3) + Cost(1, 1)
    Cost(forward=3, gradients=4)
    """

    forward: float = 0
    gradients: float = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Both after each other."""
        return Cost(self.forward + other.forward, self.gradients + other.gradients)

    def __mul__(self, times: float) -> "Cost":
        """So many times the same."""
        return Cost(times * self.forward, times * self.gradients)

    def seconds(self, speed: "Cost") -> float:
        """How long it takes where one pass takes ``speed``."""
        return self.forward * speed.forward + self.gradients * speed.gradients


def cost_of(method: Method, problem: Problem) -> Cost | None:
    """Counts the work of a fit; ``None`` where that is not known before (NUTS, one's own).

    >>> from torch import nn
    >>> problem = Problem.of(nn.Linear(2, 3), (torch.zeros(100, 2), torch.arange(100) % 3))
    >>> cost_of(DeepEnsemble(5, MaximumAPosteriori(epochs=4)), problem)
    Cost(forward=0, gradients=2000)
    """
    size = problem.train.size
    match method:
        case Laplace():
            found = _laplace(method, problem)
        case MaximumAPosteriori() if method.precision is None:
            found = Cost(0, method.recipe.passes(size) * size)
        case MCDropout():
            found = cost_of(method.base, problem)
        case DeepEnsemble():
            found = _times(cost_of(method.base, problem), method.members)
        case SWAG():
            found = _plus(cost_of(method.base, problem), Cost(0, method.collected * size))
        case MeanField():
            before = Cost() if method.base is None else cost_of(method.base, problem)
            found = _plus(before, Cost(0, method.recipe.passes(size) * size))
        case SGHMC() | SGLD():
            cycles = getattr(method, "schedule", None)
            steps = method.burn_in + method.draws * method.thinning
            steps = steps if cycles is None else cycles.cycles * cycles.length
            found = Cost(0, method.chains * steps * min(method.batch_size, size))
        case MultiMode():
            found = _times(cost_of(method.inner, problem), method.modes)
        case RebasedGaussian():
            found = cost_of(method.inner, problem)
        case _:
            found = None
    return found


def _times(cost: Cost | None, times: int) -> Cost | None:
    return None if cost is None else cost * times


def _plus(first: Cost | None, second: Cost) -> Cost | None:
    return None if first is None else first + second


def _laplace(method: Laplace, problem: Problem) -> Cost | None:
    """Passes as the fit itself counts them."""
    plan = method.planned(problem)
    return None if plan is None else Cost(ceil(plan.passes * problem.train.size))


def speed_of(problem: Problem) -> Cost:
    """Seconds that a forward pass and a gradient take a row, measured on up to a batch of rows."""
    with own_randomness(0):
        return Cost(_time(problem, _forward), _time(problem, _gradient))


def _time(problem: Problem, run: Callable[[Problem, Batch], object]) -> float:
    """Seconds a row; the rows double until there are enough of them to measure."""
    rows, most = 1, min(problem.train.batch_size, problem.train.size)
    run(problem, problem.train.rows(torch.arange(1)))  # what is made once, is made here
    least = inf
    while True:
        batch = problem.train.rows(torch.arange(rows))
        before = time.perf_counter()
        run(problem, batch)
        taken = time.perf_counter() - before
        least = min(least, taken / rows)
        if taken > _PROBED or rows == most:
            return least
        rows = min(2 * rows, most)


def _forward(problem: Problem, batch: Batch) -> object:
    with torch.no_grad():
        return problem.network.apply(problem.network.weights, batch[0])


def _gradient(problem: Problem, batch: Batch) -> object:
    network = problem.network
    leaves = {n: network.weights[n].detach().requires_grad_() for n in network.layout.names}
    with torch.enable_grad():
        outputs = network.apply({**network.weights, **leaves}, batch[0])
        return torch.autograd.grad(outputs.sum(), list(leaves.values()), allow_unused=True)


def foretell(method: Method, problem: Problem, *, least: float) -> Iterator[str]:
    """Lines that say what a fit will take, and from a minute on what would be cheaper.

    Args:
        method: How it is fitted.
        problem: What is fitted.
        least: Seconds of work below which nothing is said.
    """
    cost = cost_of(method, problem)
    if cost is None:
        return
    speed, size = speed_of(problem), problem.train.size
    seconds = cost.seconds(speed)
    if seconds < least:
        return
    counts = {"run": ceil(cost.forward / size), "gradient": ceil(cost.gradients / size)}
    work = " and ".join(several(count, what) for what, count in counts.items() if count)
    plan = method.planned(problem) if isinstance(method, Laplace) else None
    chosen = "" if plan is None or not plan.choice else f"; {plan.choice}"
    yield (
        f"{type(method).__name__}() on {several(size, 'row')}: about {duration(seconds)}, "
        f"for some {work} of each row{chosen}"
    )
    if seconds >= _LONG:
        yield f"cheaper: {'; '.join(_cheaper(method, problem, seconds, speed))}"


def _cheaper(method: Method, problem: Problem, seconds: float, speed: Cost) -> Iterator[str]:
    """Other settings, each with its time."""
    if isinstance(method, Laplace) and method.subset is None:
        last = cost_of(replace(method, subset=LastLayer()), problem)
        if last is not None:
            yield f"Laplace(subset=LastLayer()), about {duration(last.seconds(speed))}"
        less = cost_of(replace(method, effort=_LITTLE), problem)
        if less is not None and less.seconds(speed) < seconds / 2:
            yield f"Laplace(effort={_LITTLE:g}), about {duration(less.seconds(speed))}"
    elif isinstance(method, DeepEnsemble | MultiMode):
        field = "members" if isinstance(method, DeepEnsemble) else "modes"
        yield f"{field}=2, about {duration(2 * seconds / max(2, getattr(method, field)))}"
    elif isinstance(method, SGHMC | SGLD):
        yield f"chains=1, about {duration(seconds / method.chains)}"
    else:
        yield "fewer epochs"
