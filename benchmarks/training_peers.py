"""Sixteen members and SWAG against torch-uncertainty.

    python benchmarks/training_peers.py [mlp] [small] [cnn] [mlp-short] [swag] [swag-cnn] [--cpu]

torch-uncertainty trains its models with lightning, which is not asked for here: its own modules
(``deep_ensembles``, ``SWAG``, the formatting of ``RepeatTarget``) run in the plainest loop that
does the same, all members on one batch with one optimiser, batches cut from tensors in memory.
What lightning would add is left out, in its favour; a second line takes batches from a DataLoader,
as its trainer has to.  Trainings have 200 steps or more, a tenth of the default; from 100 on ours
are recorded and replayed, and the time of recording counts.  Ours is ``DeepEnsemble.fit`` and
``SWAG.fit``, checks and plans included, where every member has its own order of the data.

Both make the same number of steps with batches of the same size and the same optimiser; losses are
printed to show that both have learnt as much (ours of the last epoch, theirs after it).  Throughput
counts examples of all members.  torch-uncertainty is timed with one and with two threads and the
better counts, except with ``--cpu``, which measures processor time of one thread (for a machine
that is not idle).  Its SWAG draws ``num_estimators`` networks after every epoch; it is timed with
its default of 16 and with 1.
"""

import copy
import importlib
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timing import chosen, medians, print_line, with_threads
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from coset import (
    SGD,
    SWAG,
    Adam,
    Categorical,
    Constant,
    DeepEnsemble,
    GaussianPrior,
    MaximumAPosteriori,
    Problem,
    functionalise,
)
from coset.bayes import as_batches
from coset.models import convnet

MEMBERS = 16
RATE = 1e-3


@dataclass(frozen=True)
class Case:
    """What is trained, on what, for how long, and the ratio we want."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    batch: int
    steps: int
    epochs: int
    wanted: float


def perceptron(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, 10),
    )  # fmt: skip


CASES = {
    "mlp": Case("16 MLPs 784-128-128-10, batch 128", perceptron(784, 128), (784,), 128, 10, 20, 2),
    "small": Case("16 MLPs 64-64-64-10, batch 32", perceptron(64, 64), (64,), 32, 40, 10, 2),
    "cnn": Case("16 CNNs of 3 convolutions, batch 16", convnet(), (1, 8, 8), 16, 20, 10, 2),
    "mlp-short": Case("the first, 20 steps only", perceptron(784, 128), (784,), 128, 10, 2, 2),
}
SWAGS = {
    "swag": Case("SWAG, MLP 784-128-128-10", perceptron(784, 128), (784,), 64, 8, 22, 1),
    "swag-cnn": Case(
        "SWAG, CNN with batch norm", convnet(normalisation="batch"), (1, 8, 8), 16, 8, 22, 1
    ),
}


def problem_of(case: Case) -> Problem:
    generator = torch.Generator().manual_seed(0)
    rows = case.batch * case.steps
    targets = torch.randint(10, (rows,), generator=generator)
    inputs = torch.randn(rows, *case.shape, generator=generator)
    inputs.flatten(1)[torch.arange(rows), targets] += 3.0  # something that can be learnt
    data = as_batches((inputs, targets))
    return Problem(functionalise(case.module), Categorical(), GaussianPrior(1.0), data)


def theirs(file: str) -> Any:
    """A file of torch-uncertainty, whose package would ask for lightning and torchvision."""
    for name in ("torch_uncertainty", "torch_uncertainty.methods"):
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(name=name.partition(".")[0])
        package = types.ModuleType(name)
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = package
    return importlib.import_module(f"torch_uncertainty.methods.{file}")


def train(
    model: nn.Module,
    case: Case,
    problem: Problem,
    optimiser: torch.optim.Optimizer,
    *,
    members: int,
    epochs: int,
    on_epoch: Callable[[int], object] = lambda epoch: None,
    loader: DataLoader[Any] | None = None,
) -> None:
    """The training step of its classification routine, without what lightning adds."""
    inputs, targets = problem.train.inputs, problem.train.targets
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(inputs), generator=generator).split(case.batch)
        for batch, labels in loader or ((inputs[index], targets[index]) for index in order):
            optimiser.zero_grad()
            cross_entropy(model(batch), labels.repeat(members)).backward()
            optimiser.step()
        on_epoch(epoch)


def ensembles(case: Case) -> None:
    problem = problem_of(case)
    build = theirs("deep_ensembles").deep_ensembles
    base = MaximumAPosteriori(Adam(RATE), Constant(), case.epochs, case.batch)

    def ours() -> float:
        method = DeepEnsemble(MEMBERS, base)
        fitted = method.fit(problem, generator=torch.Generator().manual_seed(0))
        return fitted.report.diagnostics["loss"]

    def other(loader: DataLoader[Any] | None) -> float:
        model = build(case.module, MEMBERS)
        decay = 1.0 / problem.train.size
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=decay)
        epochs = case.epochs
        train(model, case, problem, optimiser, members=MEMBERS, epochs=epochs, loader=loader)
        return _loss(model, problem)

    data = TensorDataset(problem.train.inputs, problem.train.targets)
    others = {
        "in memory": partial(other, None),
        "loader": partial(other, DataLoader(data, case.batch, shuffle=True)),
    }

    examples = MEMBERS * case.epochs * problem.train.size
    compare(case.name, ours, others, case.wanted, examples)


def _loss(model: nn.Module, problem: Problem) -> float:
    with torch.no_grad():
        logits = model(problem.train.inputs)
        return float(cross_entropy(logits, problem.train.targets.repeat(MEMBERS)))


def swags(case: Case) -> None:
    """Two epochs of training and twenty that are collected; sixteen draws with their statistics."""
    problem = problem_of(case)
    wrapper = theirs("swag").SWAG
    base = MaximumAPosteriori(SGD(RATE), Constant(), 2, case.batch)
    collected = case.epochs - 2

    def ours() -> float:
        method = SWAG(20, base=base, epochs=collected, learning_rate=RATE, members=MEMBERS)
        fitted = method.fit(problem, generator=torch.Generator().manual_seed(0))
        fitted.sample(MEMBERS, generator=torch.Generator().manual_seed(1))
        return fitted.report.diagnostics["loss"]

    def other(draws: int) -> float:
        core = copy.deepcopy(case.module)
        for layer in core.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        model = wrapper(core, cycle_start=1, cycle_length=1, scale=0.5, num_estimators=draws)
        decay = 1.0 / problem.train.size
        optimiser = torch.optim.SGD(core.parameters(), RATE, momentum=0.9, weight_decay=decay)
        epochs = case.epochs
        train(
            core, case, problem, optimiser, members=1, epochs=epochs, on_epoch=model.update_wrapper
        )
        model.samples = [model.sample(0.5) for _ in range(MEMBERS)]
        pairs = zip(problem.train.inputs.split(256), problem.train.targets.split(256), strict=True)
        model.bn_update(list(pairs), None)
        core.eval()
        with torch.no_grad():
            return float(cross_entropy(core(problem.train.inputs), problem.train.targets))

    examples = case.epochs * problem.train.size
    compare(case.name, ours, {f"{n} draws": partial(other, n) for n in (16, 1)}, 1, examples)


def compare(
    name: str,
    ours: Callable[[], float],
    others: dict[str, Callable[[], float]],
    wanted: float,
    examples: int,
) -> None:
    losses = {"ours": ours()} | {label: run() for label, run in others.items()}
    if "--cpu" in sys.argv:
        times = _processor_times({"ours": ours, **others})
        best = {label: times[label] for label in others}
    else:
        runs = {"ours": with_threads(2, ours)}
        for label, run in others.items():
            runs |= {f"{label} {k}": with_threads(k, run) for k in (1, 2)}
        times = medians(runs, repeats=3, warmups=0)
        best = {label: min(times[f"{label} {k}"] for k in (1, 2)) for label in others}
    for label, seconds in best.items():
        print_line(f"{name} ({label})" if len(best) > 1 else name, times["ours"], seconds,
                   wanted=wanted)  # fmt: skip
    told = ", ".join(f"{label} {loss:.3f}" for label, loss in losses.items())
    rate = examples / times["ours"]
    print(f"    {rate:,.0f} examples a second; loss after training: {told}", flush=True)


def _processor_times(runs: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Medians of the processor time of one thread, the contestants in turn."""
    taken: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(3):
        for label, run in runs.items():
            begin = time.process_time()
            with_threads(1, run)()
            taken[label].append(time.process_time() - begin)
    return {label: statistics.median(seconds) for label, seconds in taken.items()}


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    try:
        for name in chosen([*CASES, *SWAGS], words):
            ensembles(CASES[name]) if name in CASES else swags(SWAGS[name])
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: there is nothing to compare with")


if __name__ == "__main__":
    main()
