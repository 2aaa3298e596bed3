"""``coset zoo``: networks by the thousand, trained, packed, checked and shared."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from coset.cli.numbers import whole_number
from coset.cli.places import check_folder
from coset.errors import CosetError

if TYPE_CHECKING:
    from coset.engines import Engine
    from coset.zoo import Zoo

zoo = App(name="zoo", help="Networks by the thousand, trained alike from different seeds.")

Place = Annotated[Path, Parameter(name="FOLDER", show_default=False)]


@zoo.command
def train(
    recipe: Annotated[str, Parameter(name="RECIPE", show_default=False)],
    folder: Place,
    /,
    *,
    count: Annotated[int, whole_number(1, 10_000_000)] = 64,
    seed: Annotated[int, whole_number(0, 2**63 - 1)] = 0,
    engine: Literal["serial", "process", "ray"] = "process",
    workers: Annotated[int | None, whole_number(1, 10_000)] = None,
    address: str | None = None,
) -> None:
    """Trains networks alike from different seeds, as many as are missing.

    Networks are written one by one, so that a second call goes on where the first was ended.

    Args:
        recipe: One that comes along (coset zoo recipes lists them), or a TOML file.
        folder: Where the zoo is, or will be.
        count: How many networks it will have.
        seed: Where the seeds of all networks come from.
        engine: process: worker processes; serial: this process; ray: a cluster.
        workers: Worker processes; as many as there are processors when missing.
        address: Of a Ray cluster that runs already; a private one is started when missing.
    """
    from coset.zoo.recipe import read_recipe

    settings = read_recipe(recipe)
    chosen, told = _engine(engine, workers, address)
    check_folder("FOLDER", folder, "zoo.json")
    print(
        f"Training {count} networks of the recipe {settings.name} in {folder}, {told}", flush=True
    )

    from coset.zoo.populating import populate
    from coset.zoo.summary import summarise

    found = populate(settings, folder, count, engine=chosen, seed=seed, progress=True)
    _show(found, summarise(found))


def _engine(name: str, workers: int | None, address: str | None) -> "tuple[Engine, str]":
    from coset.engines import Process, Ray, Serial
    from coset.engines.process import processors

    if workers is not None and name != "process":
        raise CosetError(f"got --workers {workers} with --engine {name}", "needed --engine process")
    if address is not None and name != "ray":
        raise CosetError(f"got --address {address} with --engine {name}", "needed --engine ray")
    if name == "serial":
        return Serial(), "one after the other"
    if name == "ray":
        told = f"by the Ray cluster {address}" if address else "by Ray, which starts in ten seconds"
        return Ray(address), told
    count = workers or processors()
    return Process(count), f"by {count} worker process{'es' if count > 1 else ''}"


def _show(found: "Zoo", lines: list[tuple[str, str]]) -> None:
    """A table of what was found."""
    width = max(len(name) for name, _ in lines)
    print()
    for name, value in lines:
        print(f"{name:<{width}}  {value}")
    print(f"\nOpen it with: coset.zoo.Zoo.open({str(found.folder)!r})")


@zoo.command
def recipes() -> None:
    """Lists the recipes that come along."""
    from coset.zoo import recipe

    width = max(map(len, recipe.recipes()))
    for name in recipe.recipes():
        print(f"{name:<{width}}  {recipe.read_recipe(name).about}")


@zoo.command
def pack(
    folder: Place, /, *, dtype: Literal["float32", "float16", "bfloat16"] | None = None
) -> None:
    """Puts the files of single networks into shards of at most 512 networks and a gigabyte.

    Args:
        folder: The zoo.
        dtype: What weights are stored as; as they are when missing.
    """
    from coset.zoo import packing

    found = packing.pack(folder, dtype=dtype)
    shards = sorted((folder / "shards").glob("*.safetensors"))
    size = sum(path.stat().st_size for path in shards)
    plural = "" if len(shards) == 1 else "s"
    told = f"{len(shards)} shard{plural}, {size / 1e6:.1f} MB"
    print(f"{len(found)} networks in {told}, in {folder}")


@zoo.command
def export(
    folder: Place, target: Annotated[str, Parameter(name="TARGET", show_default=False)], /
) -> None:
    """Copies a zoo into the layout of a Hugging Face data set, to be shared.

    Args:
        folder: The zoo.
        target: A new folder, or hf://datasets/OWNER/NAME.
    """
    from coset.zoo.sharing import export_hub

    print(f"The zoo {folder} is in {export_hub(folder, target)}")


@zoo.command(name="import")
def import_zoo(
    source: Annotated[str, Parameter(name="SOURCE", show_default=False)], folder: Place, /
) -> None:
    """Takes in a zoo that was exported, and checks every file and member of it.

    Args:
        source: A folder that coset zoo export made, or hf://datasets/OWNER/NAME.
        folder: Where the zoo will be: new or empty.
    """
    from coset.zoo.sharing import import_hub

    found = import_hub(source, folder)
    print(f"{len(found)} networks of the recipe {found.recipe.name} in {folder}")


@zoo.command
def verify(folder: Place, /, *, measure: bool = False) -> int:
    """Checks bytes, shapes and numbers of a zoo, and that no network is there twice.

    Faults are printed one a line, and the exit code is 1.

    Args:
        folder: The zoo.
        measure: Measure accuracies again.
    """
    from coset.zoo import verifying
    from coset.zoo.reading import Zoo

    faults = verifying.verify(folder, measure=measure)
    for fault in faults:
        print(fault)
    if faults:
        return 1
    print(f"{len(Zoo.open(folder))} networks in {folder}, no faults")
    return 0


@zoo.command(name="list")
def list_members(
    folder: Place,
    /,
    *,
    where: str | None = None,
    limit: Annotated[int, whole_number(1, 10**9)] = 20,
) -> None:
    """Lists the networks of a zoo and what was measured of them.

    Args:
        folder: The zoo.
        where: Only those of which this is true, such as "accuracy > 0.9 and step is null".
        limit: How many lines at most.
    """
    from coset.zoo.reading import Zoo

    found = Zoo.open(folder)
    chosen = found.members if where is None else found.select(where)
    metrics = sorted(chosen[0].metrics) if chosen else []
    lines = [("number", "seed", "step", *metrics)]
    for member in chosen[:limit]:
        values = [
            f"{member.metrics[name]:.4f}" if name in member.metrics else "" for name in metrics
        ]
        step = "end" if member.step is None else str(member.step)
        lines.append((str(member.number), str(member.seed), step, *values))
    print(f"{len(chosen)} of {len(found.members)} weights of {len(found)} networks in {folder}")
    if chosen:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)))
    if len(chosen) > limit:
        print(f"and {len(chosen) - limit} more: see --limit")
