"""Barriers between networks trained on real data, before and after alignment.

    python benchmarks/rebasin_barriers.py [mlp] [resnet20] [resnet20x4] [--folder checkpoints]

Pairs are trained from different weights and in different orders, kept as safetensors in the folder
and trained again only if they are not there.  The data come from ``COSET_DATA`` or are downloaded.
Results are printed as a table and drawn to ``barriers.svg`` in the folder.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from timing import chosen
from torch import nn

from coset import (
    SGD,
    Adam,
    ByActivations,
    ByWeights,
    LossPath,
    MaximumAPosteriori,
    OneCycle,
    barrier,
    data,
    discover,
    fit,
    match,
    models,
)

RESET = ", norms reset"


@dataclass(frozen=True)
class Pair:
    """What is trained, and how much of the data the barrier is measured on."""

    module: nn.Module
    source: str
    train: int
    base: MaximumAPosteriori
    test: int
    points: int
    norm: int = 0


def resnet(width: int, train: int, epochs: int, *, test: int, points: int, norm: int) -> Pair:
    base = MaximumAPosteriori(SGD(0.1), OneCycle(), epochs=epochs, batch_size=128)
    module = models.resnet20(width=width, in_channels=1)
    return Pair(module, "fashion_mnist", train, base, test, points, norm)


PAIRS = {
    "mlp": lambda: Pair(
        models.mlp(784, (512, 512, 512), 10),
        "mnist",
        60_000,
        MaximumAPosteriori(Adam(0.001), epochs=15, batch_size=500),
        10_000,
        25,
    ),
    "resnet20": lambda: resnet(1, 10_000, 8, test=2000, points=13, norm=1000),
    "resnet20x4": lambda: resnet(4, 5_000, 4, test=1000, points=7, norm=500),
}


def networks(name: str, pair: Pair, train: tuple, folder: Path) -> list[dict]:
    """Two networks from different seeds, each kept as soon as it is trained."""
    found = []
    for k in range(2):
        file = folder / f"{name}-{k}.safetensors"
        if not file.exists():
            begin = time.process_time()
            generator = torch.Generator().manual_seed(k)
            fitted = fit(pair.module, train, method=pair.base, generator=generator)
            weights = fitted.posterior.weights
            save_file({n: w.contiguous() for n, w in weights.items()}, file)
            print(f"{name}-{k}: trained in {time.process_time() - begin:.0f} s", flush=True)
        found.append(load_file(file))
    return found


def run(name: str, folder: Path) -> dict[str, LossPath]:
    pair = PAIRS[name]()
    whole = data.standardise(data.load(pair.source))
    train = tuple(part[: pair.train] for part in whole.train)
    test = tuple(part[: pair.test] for part in whole.test)
    a, b = networks(name, pair, train, folder)
    group = discover(pair.module, train[0][:1])
    ways = {
        "by weights, hard": ByWeights(soft=0),
        "by weights": ByWeights(),
        "by activations": ByActivations(pair.module, train[0][:1000]),
    }
    moved = {"not aligned": b}
    for way, by in ways.items():
        begin = time.perf_counter()
        result = match(group, b, to=a, by=by)
        taken = time.perf_counter() - begin
        print(f"{name} {way}: {taken:.2f} s, objective {result.objective:.1f}, ", end="")
        print(f"{result.transpositions} transpositions, {result.ties} ties")
        moved[way] = result.weights
    statistics = tuple(part[: pair.norm] for part in train) if pair.norm else None
    paths = {}
    for way, weights in moved.items():
        for reset in (False, True) if pair.norm else (False,):
            path = barrier(
                pair.module,
                a,
                weights,
                test,
                points=pair.points,
                reset_norm=reset,
                norm_data=statistics,
            )
            label = way + RESET if reset else way
            paths[label] = path
            middle = float(path.loss[pair.points // 2])
            ends = f"{float(path.error[0]):.4f} and {float(path.error[-1]):.4f}"
            print(f"{name} | {label} | loss barrier {path.height:.4f} | error barrier ", end="")
            print(f"{path.error_height:.4f} | loss half-way {middle:.4f} | error of ends {ends}")
            sys.stdout.flush()
    return paths


TITLES = {
    "mlp": "MLP 784-512×3-10, MNIST",
    "resnet20": "ResNet-20, Fashion-MNIST",
    "resnet20x4": "ResNet-20 width 4, Fashion-MNIST",
}
COLOURS = {
    "not aligned": "#718096",
    "by weights, hard": "#90cdf4",
    "by weights": "#2b6cb0",
    "by activations": "#dd6b20",
}


def draw(found: dict[str, dict[str, LossPath]], file: Path) -> None:
    """A panel a pair; one legend below them all."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "coset", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.2 * len(found), 3.6), layout="constrained")
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for panel, (name, paths) in zip(panels, found.items(), strict=True):
            for label, path in paths.items():
                kind = label.removesuffix(RESET)
                style = "-" if kind == label else "--"
                panel.plot(path.t, path.loss, style, color=COLOURS[kind], label=label)
            panel.set(title=TITLES.get(name, name), xlabel="from A (0) to B (1)")
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("test loss")
        lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
        figure.legend(
            lines.values(), lines.keys(), loc="outside lower center", ncols=3, frameon=False
        )
        figure.savefig(file, metadata={"Date": None})


def folder_of(words: list[str]) -> tuple[Path, list[str]]:
    """The folder for checkpoints, made where there is none, and the other words."""
    place = Path("rebasin-checkpoints")
    if "--folder" in words:
        k = words.index("--folder")
        place, words = Path(words[k + 1]), [*words[:k], *words[k + 2 :]]
    place.mkdir(parents=True, exist_ok=True)
    return place, words


if __name__ == "__main__":
    place, words = folder_of(sys.argv[1:])
    draw({name: run(name, place) for name in chosen(list(PAIRS), words)}, place / "barriers.svg")
