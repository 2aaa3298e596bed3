"""Table 1 of Xiao, Liu and Bamler (2023) at a size two cores can do: MNIST, MLP 784-h-10, HMC.

    python benchmarks/compact_posteriors.py --images 5000 --hidden 50 --out records.json

Rows: samples themselves, Gaussians fitted to them without alignment (q_d), aligned to the first
sample (q_r, as published), aligned to their mean, with a covariance, and unit by unit; ensemble and
mean field for comparison.  Agreement and total variation are to the HMC samples on the test images.
Fewer images and units, shorter chains than published: numbers are comparable in order, not in size.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from coset import (
    HMC,
    Adam,
    Categorical,
    Checkpoint,
    DeepEnsemble,
    GaussianPrior,
    MaximumAPosteriori,
    MeanField,
    Problem,
    RebasedGaussian,
    functionalise,
)
from coset.bayes import as_batches
from coset.data import mnist
from coset.metrics import accuracy, agreement, total_variation
from coset.posterior.predict import MonteCarlo
from coset.store import write_text


def problem_of(images: int, hidden: int) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    data = mnist()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    (inputs, targets), test = data.train, data.test
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train = (inputs[order[:images]], targets[order[:images]])
    problem = Problem(functionalise(net), Categorical(), GaussianPrior(1.0), as_batches(train))
    return problem, *test


def predict(posterior, problem, inputs, draws=100):
    generator = torch.Generator().manual_seed(5)
    rule = MonteCarlo(draws=draws)
    return rule(posterior, problem.network, problem.likelihood, inputs, generator=generator).mean


def row(name, posterior, problem, inputs, targets, reference, records):
    probabilities = predict(posterior, problem, inputs)
    found = {
        "row": name,
        "agreement": float(agreement(probabilities, reference)),
        "total_variation": float(total_variation(probabilities, reference)),
        "accuracy": float(accuracy(probabilities, targets)),
    }
    mean = getattr(posterior, "mean", None)
    if mean is not None:
        outputs = problem.network.apply(mean, inputs)
        found["accuracy_of_mean"] = float(accuracy(outputs.softmax(1), targets))
        stds = getattr(posterior, "std", None)
        if stds:
            flat = torch.cat([tensor.flatten() for tensor in stds.values()])
            found["median_std"] = float(flat.median())
    found |= {
        key: value
        for key, value in posterior.report.diagnostics.items()
        if "transpositions" in key or key in ("rounds", "r_hat_aligned_weights")
    }
    records.append(found)
    print(json.dumps(found), flush=True)


def fits(name, samples, problem, inputs, targets, reference, records, rank):
    """The Gaussians of one set of samples."""
    first = RebasedGaussian(reference="first")
    variants = {
        "q_d": replace(first, align=None),
        "q_d, covariance": replace(first, align=None, rank=rank),
        "q_r, first sample": first,
        "q_r, mean": replace(first, reference="mean"),
        "q_r, mean, covariance": replace(first, reference="mean", rank=rank),
        "q_r, mean, unit blocks": replace(first, reference="mean", per_unit=True),
    }
    for label, method in variants.items():
        generator = torch.Generator().manual_seed(7)
        fitted = method.compact(problem, samples, generator=generator)
        row(f"{name} {label}", fitted, problem, inputs, targets, reference, records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    problem, inputs, targets = problem_of(options.images, options.hidden)
    inputs, targets = inputs[: options.test], targets[: options.test]
    records: list[dict[str, object]] = []
    begin = time.perf_counter()
    base = MaximumAPosteriori(epochs=20, batch_size=100, optimiser=Adam(1e-3))
    ensemble = DeepEnsemble(5, base).fit(problem, generator=torch.Generator().manual_seed(1))
    starts = {name: tensor[: options.chains] for name, tensor in ensemble.stack.items()}
    checkpoint = Checkpoint(options.checkpoint, every=10) if options.checkpoint else None
    sampler = HMC(
        max_steps=options.steps,
        warmup=options.warmup,
        draws=options.draws,
        chains=options.chains,
        checkpoint=checkpoint,
    )
    print(f"ensemble trained in {time.perf_counter() - begin:.0f} s", flush=True)
    chains = sampler.fit(
        problem,
        start=starts,
        generator=torch.Generator().manual_seed(2),
        progress=lambda done, line: print(f"\r{line}", end="", flush=True),
    )
    seconds = time.perf_counter() - begin
    print(f"\nHMC after {seconds:.0f} s: {dict(chains.report.diagnostics)}", flush=True)
    print("\n".join(chains.report.warnings), flush=True)
    reference = predict(chains, problem, inputs)
    row("HMC samples", chains, problem, inputs, targets, reference, records)
    count = options.draws * options.chains
    fits("HMC", chains, problem, inputs, targets, reference, records, rank=count - 1)
    row("ensemble samples", ensemble, problem, inputs, targets, reference, records)
    fits("ensemble", ensemble, problem, inputs, targets, reference, records, rank=4)
    field = MeanField(epochs=20, batch_size=100, optimiser=Adam(3e-3))
    variational = field.fit(problem, generator=torch.Generator().manual_seed(3))
    row("mean field", variational, problem, inputs, targets, reference, records)
    if options.out:
        facts = {
            "settings": {key: str(value) for key, value in vars(options).items()},
            "hmc": dict(chains.report.diagnostics),
            "warnings": chains.report.warnings,
            "seconds": time.perf_counter() - begin,
            "rows": records,
        }
        write_text(options.out, json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
