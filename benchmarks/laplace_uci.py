"""Regression with the default fit on the UCI sets, next to the network with noise of its residuals.

    python benchmarks/laplace_uci.py [boston] [concrete] …

An MLP with 50 hidden units is trained by Adam on the first 2,000 rows of three standard splits, for
200 steps (not to its end) and for 2,000 (beyond it, on small sets).  Printed as a Markdown table:
test log-likelihood loss in standard deviations of the target, means over the splits, how often the
default is below the network, and the share of test targets inside bars of 95 %.  The data come from
``COSET_DATA``; all together take about two minutes.
"""

import math
import statistics
import sys

import torch
from timing import chosen
from torch import Tensor, nn
from torch.nn import functional

from coset import GaussianNoise, data, evaluate, fit

SPLITS, ROWS, STEPS = (0, 1, 2), 2000, (200, 2000)
Pair = tuple[Tensor, Tensor]


def split_of(name: str, split: int) -> tuple[Pair, Pair]:
    whole = data.standardise(data.uci(name, split))
    train = whole.train_inputs[:ROWS], whole.train_targets[:ROWS].reshape(-1, 1)
    return train, (whole.test_inputs, whole.test_targets.reshape(-1, 1))


def trained(train: Pair, steps: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(train[0].shape[1], 50), nn.ReLU(), nn.Linear(50, 1))
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        functional.mse_loss(module(train[0]), train[1]).backward()
        optimiser.step()
    return module


def plain_loss(module: nn.Module, train: Pair, test: Pair) -> float:
    """The network by itself, its noise as large as its training residuals."""
    with torch.no_grad():
        noise, error = (float(functional.mse_loss(module(x), y)) for x, y in (train, test))
    return (math.log(2 * math.pi * noise) + error / noise) / 2


def main(names: list[str]) -> None:
    print("| | " + " | ".join(f"{steps} steps: network, default, 95 %" for steps in STEPS) + " |")
    print("|---|" + "---|" * len(STEPS))
    for name in names:
        cells = []
        for steps in STEPS:
            rows = []
            for seed in SPLITS:
                train, test = split_of(name, seed)
                module = trained(train, steps, seed)
                found = evaluate(fit(module, train, likelihood=GaussianNoise()), test)
                own = found["gaussian_negative_log_likelihood"]
                rows.append((plain_loss(module, train, test), own, found["interval_coverage"]))
            plain, own, inside = (statistics.mean(column) for column in zip(*rows, strict=True))
            below = sum(ours < theirs for theirs, ours, _ in rows)
            cells.append(f"{plain:.3f}, {own:.3f} ({below}/{len(rows)}), {inside:.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(chosen(list(data.UCI), sys.argv[1:]))
