"""What ``laplace_real_data.py`` has found so far, as Markdown tables and a figure.

python benchmarks/laplace_tables.py [--figure file.svg]
"""

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from laplace_real_data import HELD_OUT, NETWORKS, SEEDS, SETS, file_of

NAMES = {
    "network": "the network by itself",
    "temperature": f"its temperature, tuned on {HELD_OUT} images",
    "default": "**the default** (theta* simple)",
    "default + validation": f"**the default with `validation`** ({HELD_OUT} images)",
    "oracle": f"one precision, best of a grid on {HELD_OUT} images",
    "laplace-torch": "laplace-torch's default",
}
"""Rows of the tables that have longer names."""

COLOURS = {"mlp": "#2b6cb0", "cnn": "#dd6b20", "resnet": "#718096", "fixup": "#2f855a"}
TITLES = {
    "default": "the default",
    "default + validation": f"with validation ({HELD_OUT} images)",
}
MARKS = dict(zip(SETS, "osD", strict=True))


def print_tables() -> None:
    """For each data set the networks side by side."""
    for name in SETS:
        cells = {
            network: [json.loads(file.read_text()) for file in files if file.exists()]
            for network in NETWORKS
            for files in [[file_of(name, network, seed) for seed in SEEDS]]
        }
        print_table(name, {network: found for network, found in cells.items() if found})


def print_table(name: str, cells: Mapping[str, list[dict]]) -> None:
    """Loss, half its range over the seeds, how often the network was beaten; ECE; AUROC."""
    heads = [f"{network} (T = {_span(found, 'temperature')})" for network, found in cells.items()]
    print(f"\n| {name} | " + " | ".join(heads) + " |")
    print("|---" * (1 + len(cells)) + "|")
    labels = dict.fromkeys(label for found in cells.values() for label in found[0]["rows"])
    for label in labels:
        print(
            f"| {NAMES.get(label, label)} | "
            + " | ".join(entry(found, label) for found in cells.values())
            + " |"
        )


def _span(cells: list[dict], key: str) -> str:
    values = [cell[key] for cell in cells]
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def entry(cells: list[dict], label: str) -> str:
    if label not in cells[0]["rows"]:
        return ""
    scores = [cell["rows"][label] for cell in cells]
    means = {key: statistics.mean(found[key] for found in scores) for key in scores[0]}
    losses = [found["nll"] for found in scores]
    spread = f" ±{(max(losses) - min(losses)) / 2:.3f}" if len(cells) > 1 else ""
    own = [cell["rows"]["network"]["nll"] for cell in cells]
    wins = sum(loss < base - 1e-4 for loss, base in zip(losses, own, strict=True))
    won = "" if label == "network" else f", {wins}/{len(cells)}"
    return f"{means['nll']:.3f}{spread}{won}; {means['ece']:.3f}; {means['auroc']:.2f}"


def draw(file: Path) -> None:
    """How the loss of each network changes, by the temperature that held-out data ask for."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    cells = [
        json.loads(found.read_text())
        for name in SETS
        for network in NETWORKS
        for seed in SEEDS
        if (found := file_of(name, network, seed)).exists()
    ]
    with mpl.rc_context({"svg.hashsalt": "coset", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8.8, 4.0), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for panel, row in zip(panels, TITLES, strict=True):
            for cell in cells:
                change = cell["rows"][row]["nll"] - cell["rows"]["network"]["nll"]
                key = cell["data"], cell["network"]
                style = {"marker": MARKS[key[0]], "color": COLOURS[key[1]], "alpha": 0.8}
                panel.plot(cell["temperature"], change, linestyle="", label=", ".join(key), **style)
            panel.axhline(0, color="#cbd5e0", zorder=0)
            panel.axvline(1, color="#cbd5e0", zorder=0)
            panel.set_yscale("symlog", linthresh=0.02)
            panel.set_xscale("log")
            panel.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"], minor=False)
            panel.set_xticks([], minor=True)
            panel.set_yticks([-1, -0.1, -0.02, 0, 0.02, 0.1], minor=False)
            panel.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
            panel.spines[["top", "right"]].set_visible(False)
            panel.set(title=TITLES[row], xlabel="best temperature on held-out data")
        panels[0].set_ylabel("change of the test loss")
        lines = {
            line.get_label(): line for line in panels[0].get_lines() if "," in line.get_label()
        }
        figure.legend(
            lines.values(), lines.keys(), loc="outside right upper", frameon=False, fontsize=8
        )
        figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    if "--figure" in sys.argv:
        draw(Path(sys.argv[sys.argv.index("--figure") + 1]))
    else:
        print_tables()
