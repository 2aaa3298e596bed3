"""Training a stack against training the same members one by one in plain torch.

Both train the same members from the same weights on the same batches.  Plain torch is timed with
one and with two threads and the better of the two counts.

    python benchmarks/training.py [mlp] [cnn] [cnn28] [resnet]
"""

import copy
import sys
from dataclasses import dataclass

import torch
from timing import chosen, medians, peak_memory_of, print_line, with_threads
from torch import nn

from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.inference import SGD, Constant, DeepEnsemble, MaximumAPosteriori
from coset.inference.beginnings import member_seeds
from coset.models import convnet, resnet20
from coset.weights import functionalise, stack, unstack

SEED = 0


@dataclass(frozen=True)
class Case:
    """What is trained, on what, for how long, and the ratio we want."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    members: int
    batch: int
    steps: int
    wanted: float
    repeats: int = 5


def cases() -> dict[str, Case]:
    perceptron = nn.Sequential(
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    return {
        "mlp": Case("64 MLPs 784-128-128-10, batch 128", perceptron, (784,), 64, 128, 10, 5.0),
        "cnn": Case(
            "64 CNNs of 3 convolutions, batch 16, 8×8", convnet(), (1, 8, 8), 64, 16, 10, 4.0
        ),
        "cnn28": Case("the same on 28×28", convnet(), (1, 28, 28), 64, 16, 10, 4.0),
        "resnet": Case("8 ResNet-20, batch 32", resnet20(), (3, 32, 32), 8, 32, 2, 1.0, 3),
    }


def plainly(case: Case, problem: Problem, starts: list, seeds: list[int]) -> list[nn.Module]:
    """The members one by one, as one would write it without us."""
    size, trained = problem.train.size, []
    inputs, targets = problem.train.inputs, problem.train.targets
    for start, seed in zip(starts, seeds, strict=True):
        module = copy.deepcopy(case.module).train()
        module.load_state_dict(start, strict=False)
        optimiser = torch.optim.SGD(
            module.parameters(), lr=0.01, momentum=0.9, weight_decay=1.0 / size
        )
        generator = torch.Generator().manual_seed(seed)
        for index in torch.randperm(size, generator=generator).split(case.batch):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(inputs[index]), targets[index])
            loss.backward()
            optimiser.step()
        trained.append(module)
    return trained


def method_of(case: Case) -> MaximumAPosteriori:
    return MaximumAPosteriori(SGD(0.01), Constant(), epochs=1, batch_size=case.batch)


def run(case: Case) -> None:
    rows = case.batch * case.steps
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, *case.shape, generator=generator)
    targets = torch.randint(10, (rows,), generator=generator)
    network = functionalise(case.module)
    problem = Problem(network, Categorical(), GaussianPrior(1.0), as_batches((inputs, targets)))
    seeds = member_seeds(case.members, torch.Generator().manual_seed(SEED))
    starts = [network.initialise(generator) for _ in seeds]
    stacked = stack(starts)

    def ours() -> dict[str, torch.Tensor]:
        method = DeepEnsemble(case.members, base=method_of(case))
        return method.fit(
            problem, start=stacked, generator=torch.Generator().manual_seed(SEED)
        ).stack

    def other() -> list[nn.Module]:
        return plainly(case, problem, starts, seeds)

    agree(unstack(ours()), other())
    times = medians(
        {
            "ours": with_threads(2, ours),
            "one thread": with_threads(1, other),
            "two threads": with_threads(2, other),
        },
        repeats=case.repeats,
        warmups=0,  # comparing the results was one
    )
    best = min(times["one thread"], times["two threads"])
    print_line(case.name, times["ours"], best, wanted=case.wanted)
    one, two = times["one thread"], times["two threads"]
    ours_peak, other_peak = peak_memory_of(ours), peak_memory_of(other)
    print(
        f"    other: 1 thread {one:.4f} s, 2 threads {two:.4f} s; "
        f"peak memory ours {ours_peak:.0f} MiB, other {other_peak:.0f} MiB",
        flush=True,
    )


def agree(stacked: list, modules: list[nn.Module]) -> None:
    """A benchmark of something else would be worth nothing."""
    for ours, module in zip(stacked, modules, strict=True):
        state = module.state_dict()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-2, atol=1e-3)


if __name__ == "__main__":
    table = cases()
    for name in chosen(list(table), sys.argv[1:]):
        run(table[name])
