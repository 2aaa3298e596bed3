"""``coset demo``: from nothing to a first honest result."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coset.cli.numbers import whole_number
from coset.cli.places import check_folder

if TYPE_CHECKING:
    from coset.demo import Result


def demo(
    *,
    out: Path = Path("coset-demo"),
    seed: Annotated[int, whole_number(0, 2**63 - 1)] = 0,
    members: Annotated[int, whole_number(2, 1000)] = 10,
    epochs: Annotated[int, whole_number(1, 10_000)] = 60,
    studies: bool = False,
) -> None:
    """Trains one network and an ensemble on handwritten digits and writes a report.

    Two of the ten digits are kept away from training: a good posterior is unsure about them. The
    page shows how often the networks are right, whether their confidence can be believed, and
    whether they notice what they have never seen. The same seed gives the same numbers.

    Args:
        out: Folder for report.html; made when missing.
        seed: Where every random number comes from.
        members: Networks of the ensemble.
        epochs: Passes over the training pictures.
        studies: Whether published results are run again as well, about ten CPU minutes; the page
            is there after the digits, and grows.
    """
    path = out / "report.html"
    check_folder("--out", out, path.name)

    import torch
    from rich.console import Console
    from rich.table import Table

    from coset.demo import Settings, run_demo, write_report
    from coset.progress import reporting

    torch.set_num_threads(1)  # faster for networks this small, and the same sums on every machine
    console = Console()
    with reporting(True) as progress:
        result = run_demo(Settings(seed=seed, members=members, epochs=epochs), progress=progress)
    table = Table(title=result.title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(result.columns):
        table.add_column(column, justify="right" if 0 < index < 3 else "left")
    for row in result.rows():
        table.add_row(*row)
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    write_report(path, result)
    if studies:
        console.print(f"\nThe page is there, and grows: {path}", highlight=False, soft_wrap=True)
        _run_studies(out, path, result)
    console.print(f"\nReport: {path}", highlight=False, soft_wrap=True)


def _run_studies(out: Path, path: Path, result: "Result") -> None:
    """Runs every study at its demo scale, and writes the page anew after each."""
    from coset.demo import write_report
    from coset.studies import names, run

    for name in names():
        found = run(name, out / "studies", scale="demo", progress=True)
        write_report(path, result, found)
