"""What is published of a run: its records, its figures, its verdicts, and the table of papers."""

import json
from datetime import date
from pathlib import Path
from typing import Any

from coset.files import write_text
from coset.report.charts import as_csv, draw_charts
from coset.report.drawing import on_paper
from coset.studies.exhibits import charts_of, shown_by
from coset.studies.page import plain_verdict, published_in_words
from coset.studies.published import (
    published,
    published_date,
    published_entries,
    published_seeds,
)
from coset.studies.records import write_record
from coset.studies.registry import names, study_named
from coset.studies.runs import Run, begin
from coset.studies.settings import ANTORAN, LAURENT, OVADIA, TOMOGRAPHY, XIAO
from coset.studies.study import Exhibit, ExplorerExhibit, Study, TableExhibit

NOT_HERE: tuple[tuple[str, str, str, str], ...] = (
    (LAURENT, "table, calibration and detection columns", "ten columns of ten posteriors",
     "comes with the comparison of all methods"),
    (LAURENT, "data set of checkpoints", "20,000 published networks",
     "`coset.zoo` makes its own; the published archives of 23 GB are not fetched here"),
    (XIAO, "figure 1", "a drawing of the idea", "a drawing, not a result"),
)  # fmt: skip
"""What the papers show and the studies do not, and why."""

ELSEWHERE: tuple[tuple[str, str, str, str, str], ...] = (
    (LAURENT, "poster, identities of scaling and permutation",
     "Scaling and permuting hidden units leaves the function as it is.",
     "`coset inspect`", "checked in double precision for every symmetry that is found"),
    (LAURENT, "poster, section 'min-mass'",
     "There is one smallest network, and convex optimisation finds it.",
     "`coset study run min-mass --scale small`",
     "a control of the study: two random starts meet"),
)  # fmt: skip
"""What the papers state and other parts of the library show."""


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def publish(run: Run, results: Path, verdicts: Path) -> None:
    """Writes records, figures with their numbers, and the verdicts of a run of scale small.

    Studies that were published before and are not in the run stay as they are.

    Args:
        run: The run.
        results: Folder for records and figures.
        verdicts: The file with the verdicts that comes along with the library.
    """
    (results / "figures").mkdir(parents=True, exist_ok=True)
    if not (results / "run.json").exists():
        begin(results / "run", run.scale, names())
        (results / "run" / "run.json").rename(results / "run.json")
        (results / "run").rmdir()
    for study in run.studies:
        _write_study(run, study, results)
    whole = Run.open(results)
    today = date.today().isoformat()
    drawn_anew = run.folder.resolve() == results.resolve()  # nothing was run
    dates = _dates(verdicts) | ({} if drawn_anew else {s.name: today for s in run.studies})
    facts = {
        "date": max(dates.values(), default=today),
        "scale": run.scale,
        "dates": {s.name: dates.get(s.name, today) for s in whole.studies},
        "seeds": {s.name: sorted({r.seed for r in whole.of(s.name)}) for s in whole.studies},
        "seconds": {s.name: round(sum(r.seconds for r in whole.of(s.name))) for s in whole.studies},
        "verdicts": [plain_verdict(verdict) for verdict in whole.verdicts],
    }
    write_text(verdicts, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def _dates(verdicts: Path) -> dict[str, str]:
    """When each study was published, as far as that is known."""
    if not verdicts.is_file():
        return {}
    known = json.loads(verdicts.read_text())
    return {**{name: known["date"] for name in known["seeds"]}, **known.get("dates", {})}


def _write_study(run: Run, study: Study, results: Path) -> None:
    """The records and figures of one study, in place of those published before."""
    written = {write_record(results, record) for record in run.of(study.name)}
    for path in (results / "records" / study.name).glob("*.json"):
        if path not in written:
            path.unlink()
    for path in (results / "figures").glob(f"{study.name}-*"):
        path.unlink()
    for exhibit in study.exhibits:
        if isinstance(exhibit, Exhibit):
            _write_figure(run, study, exhibit, results / "figures")


def _write_figure(run: Run, study: Study, exhibit: Exhibit, folder: Path) -> None:
    records = run.of(study.name)
    charts = charts_of(exhibit, records)
    if not charts:
        return
    name = f"{study.name}-{exhibit.name}"
    shown = shown_by(exhibit, records)
    facts = {"study": study.name, "revision": study.revision, "records": shown}
    drawn = on_paper(draw_charts(charts, name=name, facts=facts))
    write_text(folder / f"{name}.svg", drawn + "\n")
    write_text(folder / f"{name}.csv", as_csv(charts))


def papers() -> str:
    """The page that lists every figure, table and claim of the papers: what runs it, what came out.

    Made from the declarations of the studies and the published verdicts.
    """
    known = published_entries()
    lines = [
        "# The papers, row by row",
        "",
        "Every figure, table and claim of the papers behind this library: the command that runs it "
        "again, and what came of it at scale `small` "
        f"({published()['date']}), or the reason why it is not here.",
        "Made from the claims that the studies declare; `coset study list` lists the studies.",
        "",
        "A claim is *reproduced* if the whole 95 % interval over the seeds lies where the paper "
        "says; *not comparable* claims are about sizes that only the papers' own networks have.",
    ]
    for source in (LAURENT, XIAO, ANTORAN, TOMOGRAPHY, OVADIA):
        lines += [
            "",
            f"## {source}",
            "",
            "| Where | What | Command | Outcome |",
            "|---|---|---|---|",
        ]
        for name in names():
            study = study_named(name)
            if study.source != source:
                continue
            command = f"`coset study run {name} --scale small`"
            for exhibit in study.exhibits:
                shown = _shown(name, exhibit)
                where = exhibit.where or "ours"
                lines.append(f"| {where} | {exhibit.title} | {command} | {shown} |")
            for claim in study.claims:
                entry = known.get((name, claim.name))
                outcome = "not run yet" if entry is None else _outcome(entry)
                lines.append(
                    f"| {claim.where or 'ours'} | {study.wording(claim)} | {command} | {outcome} |"
                )
        for paper, where, what, how, shown in ELSEWHERE:
            if paper == source:
                lines.append(f"| {where} | {what} | {how} | {shown} |")
        for paper, where, what, why in NOT_HERE:
            if paper == source:
                lines.append(f"| {where} | {what} | – | {why} |")
    lines += [
        "",
        "## How scale small was made smaller",
        "",
        "CPU time of the published run, all seeds together, on one thread of a busy machine.",
        "",
        "| Study | Seeds | CPU time | In place of the papers' own sizes |",
        "|---|---|---|---|",
    ]
    for name in names():
        seeds, seconds = published()["seeds"].get(name), published()["seconds"].get(name)
        run = ("–", "–") if seeds is None else (f"{len(seeds)}", f"{seconds} s")
        lines.append(f"| `{name}` | {' | '.join(run)} | {study_named(name).shrunk} |")
    return "\n".join(lines) + "\n"


def results() -> str:
    """The page that says in words what came out of each study, and why, with one picture."""
    known = published()
    lines = [
        "# What came out",
        "",
        "Published results, run again at scale `small` on one core of a small machine. Claims and "
        "tolerances were written down before the first run; a verdict needs three seeds and a "
        "95 % interval that lies wholly where the paper says, or wholly elsewhere. Every row of "
        "the papers, with its numbers, is in [the papers, row by row](papers.md); records and "
        "figures are in `docs/results/`.",
    ]
    for study in map(study_named, names()):
        if study.name not in known["seeds"]:
            continue
        picture = next(e for e in study.exhibits if isinstance(e, Exhibit))
        count, seconds = published_seeds(study.name), known["seconds"][study.name]
        lines += [
            "",
            f"## {study.title}",
            "",
            study.question,
            "",
            f"![{picture.title}](results/figures/{study.name}-{picture.name}.svg)",
            "",
            f"*{picture.title}.* {picture.caption}",
            "",
            published_in_words(study.name),
            *(("", study.learnt) if study.learnt else ()),
            "",
            f"`coset study run {study.name} --scale small`: {count} seeds, {seconds} CPU seconds, "
            f"{published_date(study.name)}. {study.shrunk}",
        ]
    missing = [f"`{name}`" for name in names() if name not in known["seeds"]]
    if missing:
        lines += ["", f"Not run at scale `small` yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _shown(name: str, exhibit: Exhibit | TableExhibit | ExplorerExhibit) -> str:
    """Where an exhibit can be seen."""
    if isinstance(exhibit, ExplorerExhibit):
        return "to try, on the page of `coset report`"
    if isinstance(exhibit, TableExhibit):
        return "table, on the page of `coset report`"
    if name not in published()["seeds"]:
        return "picture, on the page of `coset report`"
    return f"[picture](results/figures/{name}-{exhibit.name}.svg)"


def _outcome(entry: dict[str, Any]) -> str:
    published_, ours = _number(entry["published"]), _number(entry["ours"])
    if entry["interval"] is None:
        return f"{entry['verdict']}: {entry['why']}"
    low, high = (_number(value) for value in entry["interval"])
    return f"**{entry['verdict']}**: ours {ours} ({low} to {high}), published {published_}"
