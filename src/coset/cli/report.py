"""``coset report``: the page of a run."""

from pathlib import Path


def report(folder: Path, /, *, out: Path | None = None) -> None:
    """Writes the page of a run of studies: one file that loads nothing, made from records alone.

    Args:
        folder: Of the run, as coset study run made it.
        out: The page; report.html in the folder if not given.
    """
    from coset.cli.places import check_file
    from coset.studies.page import write_report
    from coset.studies.runs import Run

    if out is not None:
        check_file("--out", out)
    run = Run.open(folder)
    print(f"Page: {write_report(run, out)}")
