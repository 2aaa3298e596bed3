"""How high trained networks are matched: ours against the best of ten published loops.

    python benchmarks/rebasin_trained.py [resnet20] [stream] [perceptron] [--seed 100]

*resnet20*: pairs trained from different seeds on 2,500 pictures of Fashion-MNIST (``COSET_DATA``)
for three epochs; *stream*: residual perceptrons with three blocks of 64 units on a stream of 64,
trained on 5,000 digits of MNIST for five; *perceptron*: 784-256-256-256-10, on 10,000 for four.  A
pair is matched in both directions, by permutations and signs alone.  Printed are objectives and
processor seconds of ours with no, three (the default) and twelve soft rounds; met is at least the
best of the ten loops, by the default.  Then, in the first direction, the barriers of the loss on
held-out pictures (norms reset), not aligned, after the best of the ten loops, and after ours.
Networks are trained from the seeds 0, 1, …, or from a later one on.  Set OMP_NUM_THREADS=1.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from published_loop import objective, reference_loop, seconds_of
from timing import chosen
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coset import ByWeights, barrier, discover, match, models, weights_of
from coset.alignment.plans import matched_tensors
from coset.data import fashion_mnist, mnist
from coset.symmetry.group import SymmetryGroup

Data = tuple[tuple[Tensor, Tensor], Tensor, Tensor]
"""Inputs for training and for testing, targets of both."""

LOOPS = 10
TESTED = 1000
ROUNDS = (0, ByWeights().soft, 12)


class ResidualStream(nn.Module):
    """A perceptron whose blocks add to a stream."""

    def __init__(self, inputs: int = 784, stream: int = 64, units: int = 64, blocks: int = 3):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, stream), nn.Linear(stream, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(stream, units), nn.ReLU(), nn.Linear(units, stream))
            for _ in range(blocks)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        stream = self.first(inputs)
        for block in self.blocks:
            stream = stream + block(stream)
        return self.last(stream)


@dataclass(frozen=True)
class Case:
    """Networks and what they are trained on."""

    build: Callable[[], nn.Module]
    data: Callable[[], Data]
    epochs: int
    rate: float
    pairs: int


def garments() -> Data:
    data = fashion_mnist()
    inputs, test = data.train_inputs[:2500], data.test_inputs[:TESTED]
    return standardised(inputs, test), data.train_targets[:2500], data.test_targets[:TESTED]


def digits(count: int) -> Data:
    data = mnist()
    inputs, test = data.train_inputs[:count].flatten(1), data.test_inputs[:TESTED].flatten(1)
    return standardised(inputs, test), data.train_targets[:count], data.test_targets[:TESTED]


def standardised(inputs: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    centre, size = inputs.mean(), inputs.std()
    return (inputs - centre) / size, (test - centre) / size


CASES = {
    "resnet20": Case(partial(models.resnet20, in_channels=1), garments, 3, 0.1, 2),
    "stream": Case(ResidualStream, partial(digits, 5000), 5, 0.05, 6),
    "perceptron": Case(
        partial(models.mlp, 784, (256, 256, 256), 10), partial(digits, 10_000), 4, 0.05, 2
    ),
}


def trained(case: Case, inputs: Tensor, targets: Tensor, seed: int, batch: int = 125) -> nn.Module:
    torch.manual_seed(seed)
    module, steps = case.build(), case.epochs * len(inputs) // batch
    optimiser = torch.optim.SGD(module.parameters(), lr=case.rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, case.rate, total_steps=steps)
    for _ in range(case.epochs):
        for rows in torch.randperm(len(inputs)).split(batch):
            optimiser.zero_grad()
            cross_entropy(module(inputs[rows]), targets[rows]).backward()
            optimiser.step()
            schedule.step()
    return module.eval()


def run(name: str, seed: int) -> None:
    case = CASES[name]
    (inputs, test), targets, labels = case.data()
    for pair in range(case.pairs):
        one, other = (trained(case, inputs, targets, seed + 2 * pair + k) for k in range(2))
        group = discover(one, inputs[:1])
        there, back = weights_of(one), weights_of(other)
        aligned = {"not aligned": back, **matched(f"{name} {pair}", group, there, back)}
        matched(f"{name} {pair}", group, back, there)
        norms = any("running" in tensor for tensor in there)
        for way, weights in aligned.items():
            path = barrier(one, there, weights, (test, labels), points=5, reset_norm=norms)
            print(f"  barrier, {way}: {path.height:.3f}", end="")
        print(flush=True)


def matched(
    label: str, group: SymmetryGroup, to: dict[str, Tensor], weights: dict[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Aligned weights by the best of the loops and by ours."""
    names = matched_tensors(group)
    loops = [seconds_of(partial(reference_loop, group, weights, to, seed)) for seed in range(LOOPS)]
    found = {
        f"best of {LOOPS} loops": max((w for _, w in loops), key=partial(objective, names, to))
    }
    best = objective(names, to, *found.values())
    spent = sum(seconds for seconds, _ in loops)
    print(f"{label}: best of {LOOPS} loops {best:.2f} in {spent:.3f} s;", end="")
    for soft in ROUNDS:
        by = ByWeights(scales="keep", soft=soft)
        spent, result = seconds_of(partial(match, group, weights, to=to, by=by))
        found[f"soft={soft}"] = result.weights
        print(f" soft={soft} {objective(names, to, result.weights):.2f} in {spent:.3f} s;", end="")
    reached = objective(names, to, found[f"soft={ByWeights().soft}"])
    print(" met" if reached >= best else " NOT MET", flush=True)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    words, _, first = " ".join(sys.argv[1:]).partition("--seed")
    for choice in chosen(list(CASES), words.split()):
        run(choice, int(first or 0))
