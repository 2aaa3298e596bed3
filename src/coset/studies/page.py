"""The page of a run: findings in words, verdicts on all claims, and a section a study."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coset.errors import CosetError
from coset.report import Explorer, Figure, Finding, Headline, Page, Section, Table, write_page
from coset.report.charts import as_csv, draw_panels, nested_as_csv
from coset.studies.exhibits import charts_of, explored_by, rows_of, shown_by
from coset.studies.published import (
    published,
    published_date,
    published_entries,
    published_seeds,
)
from coset.studies.records import Record
from coset.studies.runs import Run
from coset.studies.study import Claim, Exhibit, ExplorerExhibit, Study, TableExhibit
from coset.studies.verdicts import Verdict, Word
from coset.version import __version__

TONES = {
    "reproduced": "good",
    "not reproduced": "bad",
    "undecided": "open",
}
"""How verdicts are coloured; the words say the same."""

_ORDER: tuple[Word, ...] = ("reproduced", "not reproduced", "undecided", "not comparable")


def write_report(run: Run, path: str | Path | None = None) -> Path:
    """Writes the page of a run, by default as ``report.html`` in its folder.

    Raises:
        CosetError: If the run has no records.
    """
    if not run.records:
        raise CosetError(
            f"got {run.folder}, a run without records",
            "needed one record at least",
            f"run a study first: coset study run NAME --scale {run.scale} --out {run.folder}",
        )
    place = run.folder / "report.html" if path is None else Path(path)
    write_page(place, build_page(run))
    return place


def build_page(run: Run) -> Page:
    """The page of a run, from its records alone."""
    with run.blaming_changes():
        return _build_page(run)


def _build_page(run: Run) -> Page:
    seconds = sum(record.seconds for record in run.records)
    return Page(
        title="Published results, run again",
        lead=(
            f"{len(run.studies)} of the studies behind this library at scale “{run.scale}”: "
            f"{len(run.records)} records, {_duration(seconds)} of CPU time. Every number names the "
            "records it is made from; claims and tolerances were written down before the first "
            "run."
        ),
        findings=findings(run),
        headlines=_headlines(run),
        sections=(
            claims_section(run),
            *(study_section(run, study) for study in run.studies),
        ),
        numbers={"scale": run.scale, "verdicts": [plain_verdict(v) for v in run.verdicts]},
        footer=(
            f"coset {__version__} · scale {run.scale} · made from records alone · numbers behind "
            "each figure are linked below it"
        ),
    )


def claims_section(run: Run) -> Section:
    """The table of claims: with verdicts, or with those of the published run beside it."""
    judged = any(is_judged(run, study) for study in run.studies)
    tables = [claims_table(run, s) for s in run.studies] if judged else [comparison_table(run)]
    return Section("Claims", _HOW_TO_READ, tables=tables, anchor="claims")


_HOW_TO_READ = (
    "A claim on a sign is reproduced if our whole 95 % interval over the seeds lies on its side; a "
    "claim on a size, if the whole interval lies within the tolerance. An interval that is too "
    "wide leaves it undecided, and so does a failed control. Numbers of a smaller scale are not "
    "compared."
)


def findings(run: Run) -> list[Finding]:
    """What was found, for each study in words."""
    return [Finding(f"{study.title}.", _found(run, study), study.name) for study in run.studies]


def _found(run: Run, study: Study) -> str:
    """Which claims came out how; at a scale without verdicts, how they did in the published run."""
    verdicts = [verdict for verdict in run.verdicts if verdict.study == study.name]
    failed = next((v.why for v in verdicts if v.why.startswith("control failed")), "")
    if failed:
        return f"No verdict: {failed}."
    if is_judged(run, study):
        return _in_words([plain_verdict(verdict) for verdict in verdicts], brief=True)
    known = published_in_words(study.name, brief=True)
    if not known:
        return f"Scale “{run.scale}” gives no verdict, and none is published yet."
    return f"In the published run of {published_date(study.name)}: {known}"


def published_in_words(study: str, *, brief: bool = False) -> str:
    """The published verdicts of a study, grouped; nothing where there are none."""
    entries = [entry for entry in published()["verdicts"] if entry["study"] == study]
    return _in_words(entries, brief=brief)


def _in_words(entries: Sequence[Mapping[str, Any]], *, brief: bool = False) -> str:
    """Verdicts grouped, the claims by their names; numbers where they speak against a claim.

    Args:
        entries: Verdicts as :func:`plain_verdict` gives them.
        brief: Whether only counts, and the names of claims that were not reproduced, are given.
    """
    parts = []
    for word in _ORDER:
        found = [entry for entry in entries if entry["verdict"] == word]
        if not found:
            continue
        reasons = {entry["why"] for entry in found}
        shared = word == "undecided" and len(reasons) == 1 < len(found)
        why = f" ({reasons.pop()})" if shared else ""
        line = f"{word} {len(found)} of {len(entries)}{why}"
        silent = brief and word != "not reproduced"
        names = "" if silent else f": {'; '.join(map(_named, found))}"
        parts.append(f"{line}{names}.")
    return " ".join(part[0].upper() + part[1:] for part in parts)


def _named(entry: Mapping[str, Any]) -> str:
    """The name of a claim, with our number where it speaks against it."""
    if entry["verdict"] in ("not reproduced", "undecided") and entry["ours"] is not None:
        return f"{entry['claim']} (ours {_number(entry['ours'])})"
    return str(entry["claim"])


def is_judged(run: Run, study: Study) -> bool:
    """Whether any claim of the study can be compared at the scale of the run."""
    return any(run.scale in claim.scales for claim in study.claims)


def _headlines(run: Run) -> list[Headline]:
    if not any(is_judged(run, study) for study in run.studies):
        return []
    counts = Counter(verdict.verdict for verdict in run.verdicts)
    return [Headline(str(counts[word]), word) for word in _ORDER if counts[word]]


def claims_table(run: Run, study: Study) -> Table:
    """The claims of a study with their verdicts."""
    claims = {claim.name: claim for claim in study.claims}
    rows = [_claim_row(study, claims[v.claim], v) for v in run.verdicts if v.study == study.name]
    return Table(
        [study.title, "published", "ours", "95 % interval", "verdict", "why"],
        rows,
        words=(0, 4, 5),
        tones=TONES,
        caption=f"After {study.source}.",
    )


def plain_claims(run: Run, study: Study) -> list[tuple[str, ...]]:
    """Name, published number, ours, its interval and the verdict of each claim of a study."""
    return [
        (v.claim, _number(v.published), _number(v.ours), _interval(v.interval), v.verdict)
        for v in run.verdicts
        if v.study == study.name
    ]


def _claim_row(study: Study, claim: Claim, verdict: Verdict) -> list[str]:
    return [
        _with_place(study, claim),
        _number(verdict.published),
        _number(verdict.ours),
        _interval(verdict.interval),
        verdict.verdict,
        verdict.why,
    ]


def _with_place(study: Study, claim: Claim) -> str:
    """What a claim says and where: in the paper of the study, or in another one, named first."""
    source = "" if claim.source == study.source else claim.source
    place = ", ".join(filter(None, (source, claim.where)))
    says = study.wording(claim)
    return f"{says} {place[0].upper()}{place[1:]}." if place else says


def comparison_table(run: Run, studies: Sequence[Study] | None = None) -> Table:
    """All claims: the verdicts of the published run, and beside them the numbers of this one.

    The numbers of this run, of a scale that cannot be compared, get no verdict.

    Args:
        run: A run of a scale without verdicts.
        studies: Whose claims; those that the run has records of if None.
    """
    known, ours = published_entries(), {(v.study, v.claim): v for v in run.verdicts}
    rows = []
    for study in run.studies if studies is None else studies:
        run_then = f" ({published_seeds(study.name)} seeds, {published_date(study.name)})"
        for claim in study.claims:
            here = ours.get((study.name, claim.name))
            entry = known.get((study.name, claim.name))
            row = [_with_place(study, claim), _number(claim.published)]
            row += (
                ["–", "not run yet"]
                if entry is None
                else [_ours(entry) + run_then, entry["verdict"]]
            )
            rows.append([*row, "–" if here is None else _number(here.ours)])
    date = published()["date"]
    columns = ["claim", "published", "ours at scale small", "its verdict"]
    return Table(
        [*columns, f"here, at scale {run.scale}"],
        rows,
        words=(0, 3),
        tones=TONES,
        caption=(
            f"The verdicts are those of the run of scale small that came along with coset, of "
            f"{date}. The last column was computed in this run, at scale {run.scale}, too small "
            "for a verdict."
        ),
    )


def _ours(entry: Mapping[str, Any]) -> str:
    if entry["interval"] is None:
        return _number(entry["ours"])
    return f"{_number(entry['ours'])}, {_interval(entry['interval'])}"


def _interval(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else " to ".join(map(_number, interval))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def plain_verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON values."""
    return {
        "study": verdict.study,
        "claim": verdict.claim,
        "published": verdict.published,
        "ours": verdict.ours,
        "interval": None if verdict.interval is None else list(verdict.interval),
        "verdict": verdict.verdict,
        "why": verdict.why,
    }


def study_section(run: Run, study: Study) -> Section:
    """What one study asks, shows and warns of."""
    records = run.of(study.name)
    clashing = {id(record) for pair in run.disagreements for record in pair}
    agreed = [record for record in records if id(record) not in clashing]
    agreed = [r for r in agreed if r.revision == max(record.revision for record in records)]
    exhibits = study.exhibits
    tables = [_table(e, agreed) for e in exhibits if isinstance(e, TableExhibit)]
    figures = [_figure(study, e, agreed) for e in exhibits if isinstance(e, Exhibit)]
    explorers = [_explorer(study, e, agreed) for e in exhibits if isinstance(e, ExplorerExhibit)]
    return Section(
        study.title,
        "\n\n".join(filter(None, (study.question, study.learnt))),
        tables=[
            *(table for table in tables if table.rows),
            _controls(study, agreed),
            *_both(run, study),
        ],
        figures=[figure for figure in figures if figure is not None],
        explorers=[explorer for explorer in explorers if explorer is not None],
        notes=[*run.cautions(study), *_warnings(records)],
        small=_small_print(run, study, records),
        anchor=study.name,
    )


def _table(exhibit: TableExhibit, records: Sequence[Record]) -> Table:
    source = f" ({exhibit.where})" if exhibit.where else ""
    return Table(
        [exhibit.title, *(label for label, _ in exhibit.columns)],
        rows_of(exhibit, records),
        caption=f"{exhibit.caption}{source} Mean over the seeds ± its standard error.",
        faint=exhibit.published,
    )


def _figure(study: Study, exhibit: Exhibit, records: Sequence[Record]) -> Figure | None:
    charts = charts_of(exhibit, records)
    if not charts:
        return None
    names = shown_by(exhibit, records)
    name = f"{study.name}-{exhibit.name}"
    facts = {"study": study.name, "revision": study.revision, "records": names}
    return Figure(
        draw_panels(charts, name=name, facts=facts),
        exhibit.caption + (f" After {exhibit.where}." if exhibit.where else ""),
        exhibit.title,
        as_csv(charts),
        name,
    )


def _explorer(study: Study, exhibit: ExplorerExhibit, records: Sequence[Record]) -> Explorer | None:
    record = explored_by(exhibit, records)
    if record is None:
        return None
    data = {name: record.values[name] for name in exhibit.quantities}
    return Explorer(
        exhibit.kind,
        data,
        exhibit.caption,
        exhibit.title,
        nested_as_csv(data),
        f"{study.name}-{exhibit.name}",
        {"study": study.name, "revision": study.revision, "records": [record.name]},
    )


def _controls(study: Study, records: Sequence[Record]) -> Table:
    rows = []
    for control in study.controls:
        values = [r.values.get(control.quantity) for r in records if control.quantity in r.values]
        numbers = [abs(v) for v in values if isinstance(v, int | float)]
        good = len(numbers) == len(values) > 0 and max(numbers) <= control.most
        worst = f"{max(numbers):.2g}" if numbers else "–"
        rows.append([control.says, worst, f"{control.most:g}", "passed" if good else "failed"])
    return Table(
        ["control", "worst", "allowed", "outcome"],
        rows,
        words=(0, 3),
        tones={"passed": "good", "failed": "bad"},
        caption="If one of these fails, all verdicts of the study are withheld.",
    )


def _both(run: Run, study: Study) -> list[Table]:
    """Records of one key that disagree, side by side, without a mean."""
    tables = []
    for one, other in run.disagreements:
        if one.study != study.name:
            continue
        differing = [n for n in one.values if one.values[n] != other.values.get(n)]
        rows = [
            [name, f"{one.values[name]!r:.40}", f"{other.values.get(name)!r:.40}"]
            for name in differing
        ]
        tables.append(Table([f"two records of {one.name}", "one", "the other"], rows))
    return tables


def _warnings(records: Sequence[Record]) -> list[str]:
    counts = Counter(warning for record in records for warning in record.warnings)
    return [
        f"{warning} (in {count} of {len(records)} records)" for warning, count in counts.items()
    ]


def _small_print(run: Run, study: Study, records: Sequence[Record]) -> list[str]:
    seeds = sorted({record.seed for record in records})
    versions = records[0].versions
    seconds = sum(record.seconds for record in records)
    memory = max(record.peak_memory for record in records) / 2**20
    lines = [
        f"{len(records)} records of seeds {', '.join(map(str, seeds))}; {_duration(seconds)} of "
        f"CPU time, at most {memory:,.0f} MiB; revision {study.revision}; data "
        f"{', '.join(sorted({record.data or 'made up' for record in records}))}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f". Again: coset study run {study.name} --scale {run.scale} --out RUN"
    ]
    return [f"Made smaller: {study.shrunk}", *lines] if study.shrunk else lines


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
