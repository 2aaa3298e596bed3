"""Laplace at the sizes of practice: seconds, memory and test loss, next to laplace-torch.

    python benchmarks/laplace_sizes.py [CASE ...] [--methods NAME ...] [--again]
    python benchmarks/laplace_sizes.py --table | --figure FILE

Cases: ``mlp`` (60,000 pictures), ``cnn`` (10,000), ``resnet20`` with batch norm (300), ``resnet18``
(500), ``resnet18-5000``, ``resnet18-15000``, ``regression`` (927 rows), and ``rows-1000`` to
``rows-60000``, the cost of the perceptron's default fit against rows.

Methods: ``default``, ``whole`` (everything on all rows, which was the default before it adapted),
``last`` (``LastLayer()``) and ``laplace-torch`` (last layer, Kronecker factors, evidence).

One case with one method is a JSON file in ``records/laplace_sizes`` and is not run again while that
exists, so a killed run goes on where it stopped.  Each method runs in a process of its own, forked
from one that holds the trained network and the data: the processor seconds are its own, and its
memory is what it takes beyond both.  One thread; the load of the machine stands beside.  Training
is short: fits do not become cheaper by it.  laplace-torch imports all its back ends: it needs
``asdfghjkl`` and ``backpack-for-pytorch`` beside what it uses.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from timing import peak_memory_of
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from coset import Categorical, GaussianNoise, Laplace, LastLayer, data, fit, models

RECORDS = Path(__file__).parent / "records" / "laplace_sizes"
CURVE = (1000, 2000, 5000, 10_000, 30_000, 60_000)
TEST = 500
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """What is fitted; ``methods`` are those that take minutes, not hours, on one core."""

    title: str
    build: Callable[[], nn.Module]
    source: str
    rows: int
    steps: int
    methods: tuple[str, ...] = ("default", "whole", "last", "laplace-torch")
    likelihood: Any = Categorical()  # noqa: RUF009


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1568, 28),
        nn.ReLU(),
        nn.Linear(28, 10),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), models.mlp(784, (256, 256), 10))


CASES = {
    "mlp": Case("MLP 270k, 60,000 pictures", perceptron, "mnist", 60_000, 600),
    "cnn": Case("CNN 49k, 10,000 pictures", small_cnn, "mnist", 10_000, 300),
    "resnet20": Case("ResNet-20 with batch norm, 300", models.resnet20, "cifar10", 300, 40),
    "resnet18": Case(
        "ResNet-18, 500", models.resnet18, "cifar10", 500, 8, ("last", "laplace-torch")
    ),
    "resnet18-5000": Case("ResNet-18, 5,000", models.resnet18, "cifar10", 5000, 8, ("last",)),
    "resnet18-15000": Case("ResNet-18, 15,000", models.resnet18, "cifar10", 15_000, 8, ("last",)),
    "regression": Case(
        "regression, 3k weights, 927 rows",
        lambda: models.mlp(8, (50, 50), 1),
        "concrete",
        927,
        1500,
        likelihood=GaussianNoise(),
    ),
    **{
        f"rows-{rows}": Case(
            f"MLP 270k, {rows:,} pictures", perceptron, "mnist", rows, 600, ("default",)
        )
        for rows in CURVE
    },
}


def data_of(case: Case) -> tuple[Pair, Pair]:
    """Training and test rows, standardised where they are numbers of their own units."""
    if case.source == "concrete":
        found = data.standardise(data.uci("concrete"))
    else:
        found = data.load(case.source)
    rows = torch.randperm(len(found.test_inputs), generator=torch.Generator().manual_seed(0))[:TEST]
    train = found.train_inputs[: case.rows], found.train_targets[: case.rows]
    return train, (found.test_inputs[rows], found.test_targets[rows])


@cache
def trained(build: Callable[[], nn.Module], source: str, rows: int, steps: int) -> nn.Module:
    """A network after some steps of Adam on batches of 64, its batch-norm statistics settled."""
    case = Case("", build, source, rows, steps)
    (inputs, targets), _ = data_of(case)
    torch.manual_seed(0)
    module = build()
    optimiser = torch.optim.Adam(module.parameters(), 2e-3)
    classes = not targets.is_floating_point()
    for _ in range(steps):
        few = torch.randint(len(inputs), (64,))
        outputs = module(inputs[few])
        loss = functional.cross_entropy if classes else functional.mse_loss
        optimiser.zero_grad()
        loss(outputs, targets[few]).backward()
        optimiser.step()
    return module.eval()


def loss_of(mean: Tensor, variance: Tensor | None, targets: Tensor) -> float:
    """Mean negative log-density of test targets."""
    if variance is None:
        return float(functional.nll_loss(mean.clamp_min(1e-12).log(), targets))
    terms = (mean - targets).square() / variance + (2 * math.pi * variance).log()
    return float(terms.mean() / 2)


def by_coset(name: str, module: nn.Module, case: Case, train: Pair) -> tuple[Any, dict]:
    method = {
        "default": Laplace(),
        "whole": Laplace(effort=math.inf),
        "last": Laplace(subset=LastLayer()),
    }[name]
    predictor = fit(module, train, method=method, likelihood=case.likelihood, progress=False)
    report = predictor.posterior.report
    told = {key: report.diagnostics.get(key) for key in ("rows", "tuning_rows", "passes")}

    def predict(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        said = predictor(inputs)
        return said.mean, said.variance if case.source == "concrete" else None

    return predict, told | {"log_evidence": report.log_evidence}


def by_laplace_torch(module: nn.Module, case: Case, train: Pair) -> tuple[Any, dict]:
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]  # this folder has a laplace.py
    from laplace import Laplace as Other

    regression = case.source == "concrete"
    found = Other(module, "regression" if regression else "classification")  # last layer, kron
    found.fit(DataLoader(TensorDataset(*train), batch_size=256))
    if regression:  # prior and noise together, as its documentation does
        prior, noise = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        optimiser = torch.optim.Adam([prior, noise], 0.1)
        for _ in range(100):
            optimiser.zero_grad()
            (-found.log_marginal_likelihood(prior.exp(), noise.exp())).backward()
            optimiser.step()
    else:
        found.optimize_prior_precision(method="marglik")

    def predict(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        said = found(inputs)
        if not regression:
            return said.detach(), None
        mean, variance = said
        return mean.detach(), variance.detach().squeeze(-1) + found.sigma_noise.detach() ** 2

    return predict, {"log_evidence": float(found.log_marginal_likelihood())}


def measure(name: str, case: Case, module: nn.Module, train: Pair, test: Pair) -> dict[str, Any]:
    """One fit and its predictions, in this process."""
    held: dict[str, Any] = {}

    def work() -> None:
        begin = time.process_time()
        run = by_laplace_torch if name == "laplace-torch" else None
        found = run(module, case, train) if run else by_coset(name, module, case, train)
        held["predict"], held["told"] = found
        held["seconds"] = time.process_time() - begin

    before = peak_memory_of(lambda: None)
    peak = peak_memory_of(work)
    begin = time.process_time()
    parts = [held["predict"](rows) for rows in test[0].split(100)]
    predicting = time.process_time() - begin
    mean = torch.cat([part[0] for part in parts])
    variance = None if parts[0][1] is None else torch.cat([part[1] for part in parts])
    with torch.no_grad():
        own = module(test[0])
    record = {
        "fit_seconds": round(held["seconds"], 2),
        "peak_mebibytes": round(peak - before),
        "milliseconds_an_input": round(1000 * predicting / len(test[0]), 2),
        "test_nll": round(loss_of(mean, variance, test[1]), 4),
        **held["told"],
    }
    if variance is None:
        record["network_nll"] = round(loss_of(own.softmax(1), None, test[1]), 4)
    return record


def in_a_process(name: str, case: Case, file: Path) -> None:
    """Runs one method in a process that is forked from this one, and writes its record."""
    train, test = data_of(case)
    module = trained(case.build, case.source, case.rows, case.steps)

    def child() -> None:
        record = {
            "case": case.title,
            "method": name,
            "load": round(os.getloadavg()[0], 1),
            **measure(name, case, module, train, test),
        }
        fresh = file.with_suffix(".part")
        fresh.write_text(json.dumps(record, indent=1) + "\n")
        fresh.rename(file)
        print(json.dumps(record), flush=True)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    if process.exitcode:
        print(f"{case.title}, {name}: failed ({process.exitcode})", flush=True)


def records() -> dict[tuple[str, str], dict]:
    found = {}
    for name, case in CASES.items():
        for method in case.methods:
            file = RECORDS / f"{name}-{method}.json"
            if file.exists():
                found[name, method] = json.loads(file.read_text())
    return found


def print_table() -> None:
    """The table of the documentation."""
    found = records()
    print("| | default | whole | `LastLayer()` | laplace-torch, last layer | network alone |")
    print("|---|---|---|---|---|---|")
    for name, case in CASES.items():
        if name.startswith("rows-"):
            continue
        entries = []
        for method in ("default", "whole", "last", "laplace-torch"):
            row = found.get((name, method))
            entries.append(
                ""
                if row is None
                else f"{row['fit_seconds']:.1f} s, {row['peak_mebibytes']:,} MiB, "
                f"{row['test_nll']:.3f}"
            )
        own = [row["network_nll"] for (which, _), row in found.items()
               if which == name and "network_nll" in row]  # fmt: skip
        alone = f"{statistics.mean(own):.3f}" if own else ""
        print(f"| {case.title} | {' | '.join(entries)} | {alone} |")
    loads = [row["load"] for row in found.values()]
    if loads:
        print(f"\nload of the machine: {min(loads)} to {max(loads)}")


def draw(file: Path) -> None:
    """Processor seconds and memory of the default fit against rows."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    found = records()
    rows = [count for count in CURVE if (f"rows-{count}", "default") in found]
    kept = [found[f"rows-{count}", "default"] for count in rows]
    with mpl.rc_context({"svg.hashsalt": "coset", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8.8, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(rows, [row["fit_seconds"] for row in kept], "o-", color="#2b6cb0")
        left.set(xlabel="rows", ylabel="processor seconds", title="time of a default fit")
        right.plot(rows, [row["peak_mebibytes"] for row in kept], "o-", color="#2b6cb0")
        right.set(xlabel="rows", ylabel="MiB", title="memory beyond network and data")
        for panel in (left, right):
            panel.set_xscale("log")
            panel.set_xticks(CURVE, [f"{count // 1000}k" for count in CURVE])
            panel.set_xticks([], minor=True)
            panel.set_ylim(bottom=0)
            panel.spines[["top", "right"]].set_visible(False)
        figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    methods = ("default", "whole", "last", "laplace-torch")
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument("--again", action="store_true", help="run what has a record already")
    parser.add_argument("--table", action="store_true", help="print the records as a table")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw cost against rows")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.cases if name not in CASES]
    if unknown:
        parser.error(f"got {', '.join(unknown)}; needed some of {', '.join(CASES)}")
    if chosen.table or chosen.figure:
        if chosen.table:
            print_table()
        if chosen.figure:
            draw(chosen.figure)
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    RECORDS.mkdir(parents=True, exist_ok=True)
    for name in chosen.cases or CASES:
        for method in CASES[name].methods:
            file = RECORDS / f"{name}-{method}.json"
            if method in chosen.methods and (chosen.again or not file.exists()):
                in_a_process(method, CASES[name], file)


if __name__ == "__main__":
    main()
