"""What a fit within a budget loses: the 36 cells of real data by effort, against everything.

    python benchmarks/laplace_effort.py [mnist] [fashion_mnist] [cifar10]
    python benchmarks/laplace_effort.py --table

Networks, data and seeds are those of ``laplace_real_data.py``.  Each cell is fitted by
``Laplace()``, by everything on all rows (``effort=math.inf``), and within explicit efforts, which
know no floor and so take few of the 1,000 rows.  It becomes one JSON file in
``records/laplace_effort`` with the test losses, and the standard errors of their differences from
everything, input by input; it is not run again while that exists.
"""

import json
import math
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
from laplace_real_data import NETWORKS, SEEDS, SETS, split_of, train
from timing import chosen
from torch import Tensor, nn

from coset import Laplace, fit

RECORDS = Path(__file__).parent / "records" / "laplace_effort"
EFFORTS = {"everything": math.inf, "default": None, "effort=16": 16.0, "effort=4": 4.0}


def losses_of(mean: Tensor, targets: Tensor) -> Tensor:
    """Of each test input."""
    return -mean[torch.arange(len(targets)), targets].clamp_min(1e-12).double().log()


def run(name: str, network: str, seed: int) -> dict[str, object]:
    split = split_of(name, network, seed)
    module: nn.Module = train(network, split, seed)
    # scalar multipliers and biases of FixUp are no layers: they stay as they are
    names = tuple(n for n, p in module.named_parameters() if p.dim() > 1)
    subset = names if network == "fixup" else None
    inputs, targets = split.test
    with torch.no_grad():
        rows = {"network": {"nll": float(losses_of(module(inputs).softmax(1), targets).mean())}}
    whole: Tensor | None = None
    for label, effort in EFFORTS.items():
        begin = time.process_time()
        fitted = fit(module, split.train, method=Laplace(subset=subset, effort=effort))
        seconds = time.process_time() - begin
        losses = losses_of(fitted(inputs).mean, targets)
        whole = losses if whole is None else whole
        change = losses - whole
        rows[label] = {
            "nll": float(losses.mean()),
            "change": float(change.mean()),
            "standard_error": float(change.std()) / math.sqrt(len(change)),
            "tuning_rows": fitted.posterior.report.diagnostics["tuning_rows"],
            "fit_seconds": round(seconds, 2),
        }
    return {"data": name, "network": network, "seed": seed, "rows": rows}


def file_of(name: str, network: str, seed: int) -> Path:
    return RECORDS / f"{name}-{network}-{seed}.json"


def print_table() -> None:
    """Changes of the test loss, over all cells that there are."""
    cells = [
        json.loads(file.read_text())["rows"]
        for name in SETS
        for network in NETWORKS
        for seed in SEEDS
        if (file := file_of(name, network, seed)).exists()
    ]
    if not cells:
        raise SystemExit("no cell has been run yet")
    print(f"{len(cells)} cells")
    print("| | rows for the precisions | mean change | largest | beyond 3 se | seconds |")
    print("|---|---|---|---|---|---|")
    for label in EFFORTS:
        found = [cell[label] for cell in cells]
        changes = [row["change"] for row in found]
        worse = sum(row["change"] > 3 * row["standard_error"] + 1e-9 for row in found)
        error = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else 0.0
        print(
            f"| {label} | {statistics.median(row['tuning_rows'] for row in found):.0f} | "
            f"{statistics.mean(changes):+.4f} ± {error:.4f} | {max(changes):+.4f} | {worse} | "
            f"{statistics.median(row['fit_seconds'] for row in found):.1f} |"
        )


def main() -> None:
    if "--table" in sys.argv:
        print_table()
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    RECORDS.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for network in NETWORKS:
            for name in chosen(SETS, sys.argv[1:]):
                file = file_of(name, network, seed)
                if file.exists():
                    continue
                record = run(name, network, seed)
                fresh = file.with_suffix(".part")
                fresh.write_text(json.dumps(record, indent=1) + "\n")
                fresh.rename(file)
                told = {label: round(row["nll"], 4) for label, row in record["rows"].items()}
                print(file.stem, told, flush=True)


if __name__ == "__main__":
    main()
