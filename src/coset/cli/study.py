"""``coset study``: published comparisons, run again."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from coset.studies.study import Cell

study = App(name="study", help="Published comparisons that can be run again.")


@study.command(name="list")
def list_studies() -> None:
    """Lists the studies, with the cells and CPU time of each scale."""
    from rich.console import Console
    from rich.table import Table

    from coset.studies.registry import names, study_named
    from coset.studies.study import SCALES

    table = Table(box=None, pad_edge=False)
    for column in ("study", "asks", *SCALES):
        table.add_column(column)
    for name in names():
        each = study_named(name)
        costs = [_cost(each.cells.get(scale, ()), each.seeds.get(scale, ())) for scale in SCALES]
        table.add_row(name, each.title, *costs)
    Console().print(table)


def _cost(cells: "Sequence[Cell]", seeds: tuple[int, ...]) -> str:
    """CPU time of all cells and seeds, in words."""
    seconds = len(seeds) * sum(cell.seconds for cell in cells)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.0f} h"


@study.command
def run(
    *names: str,
    scale: str = "demo",
    out: Path = Path("coset-run"),
    engine: str = "process",
    seeds: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (),
) -> None:
    """Runs studies, or goes on where they stopped, and writes a record for each cell and seed.

    Args:
        names: Which studies; all of them if none is named.
        scale: tiny (seconds), demo, small (up to an hour a study), or paper, which only lists
            cells, data and hours.
        out: Folder of the run; it holds one scale.
        engine: Who computes the cells: serial, process or ray.
        seeds: The repetitions, if not those of the scale.
    """
    from coset.studies.registry import check_scale, study_named
    from coset.studies.registry import names as all_names

    chosen = [study_named(name) for name in dict.fromkeys(names or all_names())]
    check_scale(scale)

    from rich.console import Console

    console = Console()
    if scale == "paper":
        for each in chosen:
            for cell in each.cells["paper"]:
                hours = cell.seconds * len(each.seeds["paper"]) / 3600
                data = cell.parameters.get("data", "made up")
                line = f"{each.name}  {cell.name}  {data}  {hours:,.1f} h"
                console.print(line, highlight=False, soft_wrap=True)
        return
    from coset.studies.running import engine_named
    from coset.studies.running import run as run_study

    computing = engine_named(engine)
    for each in chosen:
        found = run_study(
            each.name, out, scale=scale, engine=computing, seeds=seeds or None, progress=True
        )
    console.print(f"Records: {len(found.records)} in {out}", highlight=False, soft_wrap=True)
    console.print(f"Page: coset report {out}", highlight=False, soft_wrap=True)


@study.command
def show(folder: Path, /) -> None:
    """Shows what the records of a run say about each published claim.

    Args:
        folder: Of the run.
    """
    from rich.console import Console
    from rich.table import Table

    from coset.studies.page import plain_claims
    from coset.studies.runs import Run

    opened = Run.open(folder)
    console = Console()
    console.print(f"{opened!r}", highlight=False, soft_wrap=True)
    for each in opened.studies:
        table = Table(title=f"\n{each.name}", title_justify="left", box=None, pad_edge=False)
        for column in ("claim", "published", "ours", "95 % interval", "verdict"):
            table.add_column(column, overflow="fold")
        for row in plain_claims(opened, each):
            table.add_row(*row)
        console.print(table)
        reasons = [
            f"{verdict.verdict}: {verdict.why}"
            for verdict in opened.verdicts
            if verdict.study == each.name and verdict.verdict != "reproduced"
        ]
        for line in (*dict.fromkeys(reasons), *opened.cautions(each)):
            console.print(line, highlight=False, soft_wrap=True)
