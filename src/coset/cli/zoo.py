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
        recipe: One that comes along, such as tiny, or a TOML file.
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
    from coset.engines import Process, Serial
    from coset.engines.process import processors

    if workers is not None and name != "process":
        raise CosetError(f"got --workers {workers} with --engine {name}", "needed --engine process")
    if address is not None and name != "ray":
        raise CosetError(f"got --address {address} with --engine {name}", "needed --engine ray")
    if name == "serial":
        return Serial(), "one after the other"
    count = workers or processors()
    return Process(count), f"by {count} worker process{'es' if count > 1 else ''}"


def _show(found: "Zoo", lines: list[tuple[str, str]]) -> None:
    """A table of what was found."""
    width = max(len(name) for name, _ in lines)
    print()
    for name, value in lines:
        print(f"{name:<{width}}  {value}")
    print(f"\nOpen it with: coset.zoo.Zoo.open({str(found.folder)!r})")
