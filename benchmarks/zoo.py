"""What a zoo costs: networks trained a minute, and its files beside a thousand single ones.

    python benchmarks/zoo.py [train] [read] [verify] [--folder scratch]

*train*: the recipe optunet-mnist-small on 2,000 pictures for one epoch, one by one, as stacks, and
as stacks by two worker processes, whose start is left out.  Networks a minute of processor time.

*read*: 1,000 networks of 269,722 weights (a ResNet-20), in shards and, for comparison, in one
safetensors file each.  Medians of nine, of processor time, with the files in the system's cache.
Wanted: 50 random members in 0.1 s, one tensor of all in a third of the time of single files.

*verify*: the whole check of these shards.  Wanted: 300 MB a second for the files.

Set OMP_NUM_THREADS=1.  Two gigabytes of disk are used, and given back unless a folder is named.
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from timing import chosen

from coset.engines import Process
from coset.store import write_text
from coset.weights.layout import Layout
from coset.weights.network import weights_of
from coset.zoo import Zoo, pack, populate, read_recipe
from coset.zoo.files import Row, digest, write_rows
from coset.zoo.folder import Folder
from coset.zoo.making import build_module, load_examples, run_seed, train_runs
from coset.zoo.recipe import parse_recipe
from coset.zoo.verifying import check_files, check_twins

MEMBERS, TENSOR = 1000, "layer3.0.conv2.weight"
RECIPE = """
about = "Fresh weights of a ResNet-20."
[architecture]
model = "resnet20"
normalisation = "filter_response"
activation = "silu"
[data]
set = "cifar10"
train = 50
test = 50
[training]
epochs = 1
batch_size = 10
learning_rate = 0.1
"""


def train(folder: Path) -> None:
    """Networks a minute, three ways."""
    recipe = read_recipe("optunet-mnist-small")
    recipe = replace(
        recipe,
        data=replace(recipe.data, train=2000, test=200),
        training=replace(recipe.training, epochs=1),
        keep=replace(recipe.keep, epochs=()),
        drop=replace(recipe.drop, below=0.0),
    )
    load_examples(recipe.data)
    for stack, count in ((1, 4), (8, 16), (32, 32)):
        settings = replace(recipe, training=replace(recipe.training, stack=stack))
        begin = time.process_time()
        for first in range(0, count, stack):
            train_runs(settings, [run_seed(0, run) for run in range(first, first + stack)])
        tell_rate(f"one process, stacks of {stack}", count, time.process_time() - begin)
    stacked = replace(recipe, training=replace(recipe.training, stack=32))
    spent = []
    for count in (64, 192):  # the difference leaves out what a start costs
        before = children_seconds()
        populate(stacked, folder / f"{count}", count, engine=Process(workers=2), progress=False)
        spent.append(children_seconds() - before)
    tell_rate("two worker processes, stacks of 32", 128, spent[1] - spent[0])


def tell_rate(case: str, count: int, seconds: float) -> None:
    print(f"{case:<40} {60 * count / seconds:8.1f} networks a minute of a processor", flush=True)


def children_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def make(folder: Path) -> Zoo:
    """A zoo of random weights in shards, and the same weights as single safetensors files."""
    recipe = parse_recipe(RECIPE, where="RECIPE", name="resnet20")
    place, singles = Folder(folder / "zoo"), folder / "singles"
    if place.shards.exists():
        return Zoo.open(place.path)
    for each in (place.members, singles):
        each.mkdir(parents=True)
    facts = {"recipe": recipe.as_json(), "seed": 0}
    write_text(place.description, json.dumps(facts))
    layout = Layout.of(weights_of(build_module(recipe)))
    generator = torch.Generator().manual_seed(0)
    for run in range(MEMBERS):
        flat = torch.randn(1, layout.size, generator=generator)
        row = Row(run, run_seed(0, run), None, {"accuracy": 0.1}, digest(flat[0]))
        write_rows(place.member(run), flat, [row], layout, recipe.digest)
        named = {n: w[0].contiguous() for n, w in layout.unflatten(flat).items()}
        save_file(named, singles / f"{run:04d}.safetensors")
    begin = time.process_time()
    zoo = pack(place.path)
    size = sum(path.stat().st_size for path in place.files()) / 1e6
    print(f"packed {size:,.0f} MB in {time.process_time() - begin:.2f} s of a processor")
    return zoo


def read(folder: Path) -> None:
    """Parts of a zoo, from shards and from single files."""
    zoo, files = make(folder), sorted((folder / "singles").iterdir())
    some = torch.randperm(MEMBERS, generator=torch.Generator().manual_seed(1))[:50].tolist()

    def singles(names: list[str], numbers: list[int]) -> dict[str, torch.Tensor]:
        found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        for number in numbers:
            with safe_open(files[number], framework="pt") as file:
                for name in names:
                    found[name].append(file.get_tensor(name))
        return {name: torch.stack(tensors) for name, tensors in found.items()}

    every, names = list(range(MEMBERS)), list(zoo.layout.names)
    same = torch.equal(zoo.weights(some)[TENSOR], singles([TENSOR], some)[TENSOR])
    assert same, "both hold the same weights"
    compare("50 random members", lambda: zoo.weights(some), lambda: singles(names, some))
    compare(
        "one tensor of all members",
        lambda: zoo.weights(names=[TENSOR]),
        lambda: singles([TENSOR], every),
    )
    compare(
        "a small tensor of all members",
        lambda: zoo.weights(names=["linear.bias"]),
        lambda: singles(["linear.bias"], every),
    )


def compare(case: str, ours: Callable[[], object], other: Callable[[], object]) -> None:
    shards, files = (statistics.median(map(seconds, [run] * 9)) for run in (ours, other))
    print(
        f"{case:<32} shards {shards:8.4f} s   single files {files:8.4f} s   "
        f"{files / shards:6.1f} times as fast",
        flush=True,
    )


def seconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def verify(folder: Path) -> None:
    """Megabytes a second of the parts of a check."""
    zoo = make(folder)
    size = sum(path.stat().st_size for path in Folder(zoo.folder).files()) / 1e6
    checks = {
        "files": lambda: check_files(Folder(zoo.folder), zoo.recipe),
        "members that are there twice": lambda: list(check_twins(zoo)),
    }
    for what, check in checks.items():
        found: list[object] = []
        spent = seconds(lambda check=check, found=found: found.extend(check()))
        assert not found
        print(f"{what:<32} {spent:6.2f} s, {size / spent:7.0f} MB a second", flush=True)


CASES = {"train": train, "read": read, "verify": verify}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen(list(CASES), given.cases):
            CASES[name](given.folder or Path(scratch))
