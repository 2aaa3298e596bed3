"""Table 1 of Xiao, Liu and Bamler (2023) at a size two cores can do: MNIST, MLP 784-h-10, HMC.

    python benchmarks/compact_posteriors.py --folder runs/compact --out records.json

Seven minutes with the defaults on two idle cores.  Everything is written down in the folder as
it goes, trainings, chains and finished rows: a run that was killed goes on with the same command,
and the result is the same.

The poster's columns are the samples themselves, Gaussians without alignment (q_d), Gaussians
aligned to the first sample by activations (q_r, as published), and mean field (VI).  Below are
ours: aligned to the mean with weights compared by the outputs they cause, with a diagonal (also
aligned for the highest density), unit by unit, and with the sample covariance.  Agreement and total
variation are to the HMC samples on the test images; Gaussians are fitted to at most ``--fitted`` of
the same samples.  Fewer images and units and shorter chains than published: numbers are comparable
in order, not in size.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset import (
    HMC,
    Adam,
    ByActivations,
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
from coset.posterior.families import Samples
from coset.posterior.predict import MonteCarlo
from coset.store import write_text

DRAWS = 100
POSTER = ("samples", "q_d", "q_r")
MEASURES = {
    "agreement": "Agreement with HMC",
    "total_variation": "Total variation to HMC",
    "accuracy": "Accuracy of draws",
    "accuracy_of_mean": "Accuracy of the mean",
}


def problem_of(images: int, hidden: int, precision: float) -> tuple[Problem, Tensor, Tensor]:
    data = mnist()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    (inputs, targets), test = data.train, data.test
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train = (inputs[order[:images]], targets[order[:images]])
    problem = Problem(
        functionalise(net), Categorical(), GaussianPrior(precision), as_batches(train)
    )
    return problem, *test


def predict(posterior: Any, problem: Problem, inputs: Tensor, draws: int = DRAWS) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    rule = MonteCarlo(draws=draws)
    return rule(posterior, problem.network, problem.likelihood, inputs, generator=generator).mean


@dataclass
class Table:
    """The rows measured so far, kept in a file."""

    path: Path
    settings: dict[str, str]
    problem: Problem
    inputs: Tensor
    targets: Tensor
    rows: dict[str, dict[str, float]] = field(default_factory=dict)

    def take_up(self) -> None:
        if not self.path.exists():
            return
        found = json.loads(self.path.read_text())
        if found["settings"] != self.settings:
            sys.exit(f"{self.path} belongs to a run with other settings: give another --folder")
        self.rows = found["rows"]

    def measure(self, name: str, make: Any, reference: Tensor) -> None:
        """A row, unless it is there."""
        if name in self.rows:
            return
        begin = time.perf_counter()
        posterior = make()
        probabilities = predict(posterior, self.problem, self.inputs)
        row = {
            "agreement": float(agreement(probabilities, reference)),
            "total_variation": float(total_variation(probabilities, reference)),
            "accuracy": float(accuracy(probabilities, self.targets)),
        }
        if hasattr(posterior, "mean"):
            outputs = self.problem.network.apply(posterior.mean, self.inputs)
            row["accuracy_of_mean"] = float(accuracy(outputs.softmax(1), self.targets))
        row |= {
            key: value
            for key, value in posterior.report.diagnostics.items()
            if "transpositions" in key or key in ("rounds", "r_hat_aligned_weights")
        }
        self.rows[name] = row | {"seconds": time.perf_counter() - begin}
        write_text(self.path, json.dumps({"settings": self.settings, "rows": self.rows}, indent=1))
        print(name, json.dumps(self.rows[name]), flush=True)

    def print(self) -> None:
        """The poster's table, and ours with one line a fit."""
        poster = [f"{source} {kind}" for source in ("HMC", "ensemble") for kind in POSTER]
        poster.append("mean field")
        print(f"| | {' | '.join(poster)} |\n{'|---' * (len(poster) + 1)}|")
        for key, label in MEASURES.items():
            print(f"| {label} | {' | '.join(self._cell(name, key) for name in poster)} |")
        print(f"\n| | {' | '.join(MEASURES.values())} |\n{'|---' * (len(MEASURES) + 1)}|")
        for name in self.rows:
            if name not in poster:
                print(f"| {name} | {' | '.join(self._cell(name, key) for key in MEASURES)} |")

    def _cell(self, name: str, key: str) -> str:
        value = self.rows[name].get(key)
        return "" if value is None else f"{value:.4f}"


def fits(problem: Problem, rank: int) -> dict[str, RebasedGaussian]:
    """The Gaussians of one set of samples."""
    module = problem.network.module
    few = problem.train.rows(torch.arange(min(problem.train.size, 2000)))[0]
    assert module is not None
    published = RebasedGaussian(reference="first", align=ByActivations(module, few, "inner"))
    ours = RebasedGaussian(by_outputs=True)
    return {
        "q_d": RebasedGaussian(align=None),
        "q_r": published,
        "q_d, covariance": RebasedGaussian(align=None, rank=rank),
        "mean, by weights": RebasedGaussian(),
        "mean, by outputs": ours,
        "Gaussian, by outputs": replace(ours, reference="gaussian"),
        "mean, by outputs, unit blocks": replace(ours, per_unit=True),
        "mean, by outputs, covariance": replace(ours, rank=rank),
    }


def thinned(samples: Samples, most: int) -> Samples:
    count = len(next(iter(samples.stack.values())))
    index = torch.linspace(0, count - 1, min(count, most)).long()
    return Samples({name: tensor[index] for name, tensor in samples.stack.items()})


def told(done: float, line: str) -> None:
    print(f"\r{line:<60}", end="", flush=True)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(options: argparse.Namespace) -> dict[str, Any]:
    problem, inputs, targets = problem_of(options.images, options.hidden, options.precision)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    settings = {k: str(v) for k, v in vars(options).items() if k not in ("folder", "out")}
    inputs, targets = inputs[: options.test], targets[: options.test]
    table = Table(folder / "rows.json", settings, problem, inputs, targets)
    table.take_up()
    base = MaximumAPosteriori(Adam(1e-3), epochs=options.epochs, batch_size=100)
    ensemble = DeepEnsemble(5, base, checkpoint=Checkpoint(folder / "ensemble", 500)).fit(
        problem, generator=seeded(1)
    )
    starts = {name: tensor[: options.chains] for name, tensor in ensemble.stack.items()}
    sampler = HMC(
        max_steps=options.steps,
        warmup=options.warmup,
        draws=options.draws,
        chains=options.chains,
        checkpoint=Checkpoint(folder / "hmc", 10),
    )
    chains = sampler.fit(problem, start=starts, generator=seeded(2), progress=told)
    print(f"\nHMC: {dict(chains.report.diagnostics)}", *chains.report.warnings, sep="\n")
    reference = predict(chains, problem, inputs)
    field_of = MeanField(
        epochs=options.epochs, batch_size=100, optimiser=Adam(3e-3),
        checkpoint=Checkpoint(folder / "mean_field", 500),
    )  # fmt: skip
    for name, samples in (("HMC", chains), ("ensemble", ensemble)):
        table.measure(f"{name} samples", lambda samples=samples: samples, reference)
        few = thinned(samples, options.fitted)
        rank = len(next(iter(few.stack.values()))) - 1
        for label, method in fits(problem, rank).items():

            def fitted(method: RebasedGaussian = method, few: Samples = few) -> Any:
                return method.compact(problem, few, generator=seeded(7))

            table.measure(f"{name} {label}", fitted, reference)
    table.measure("mean field", lambda: field_of.fit(problem, generator=seeded(3)), reference)
    table.print()
    return {
        "settings": settings,
        "hmc": dict(chains.report.diagnostics),
        "warnings": chains.report.warnings,
        "rows": table.rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--precision", type=float, default=10.0, help="of the prior")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--steps", type=int, default=64, help="leapfrog steps of a draw at most")
    parser.add_argument("--epochs", type=int, default=20, help="of the ensemble and of mean field")
    parser.add_argument(
        "--fitted", type=int, default=150, help="samples that Gaussians are fitted to"
    )
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, required=True, help="where the run is kept")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.perf_counter()
    found = run(options)
    seconds = time.perf_counter() - begin
    print(f"{seconds:.0f} s")
    if options.out:
        write_text(options.out, json.dumps({**found, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
