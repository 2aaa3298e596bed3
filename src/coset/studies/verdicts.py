"""Verdicts: what the records say about each published claim, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coset.studies.records import Record
from coset.studies.study import LEAST_SEEDS, Claim, Control, Study

Word = Literal["reproduced", "not reproduced", "undecided", "not comparable"]


@dataclass(frozen=True)
class Verdict:
    """What was found about one claim.

    Attributes:
        study: The study.
        claim: The name of the claim.
        published: The published number, where there is one.
        ours: Our mean over the seeds, where there is one.
        interval: 95 % interval of the mean over the seeds, from three on.
        verdict: In a word.
        why: In a sentence.
    """

    study: str
    claim: str
    published: float | None
    ours: float | None
    interval: tuple[float, float] | None
    verdict: Word
    why: str


def judge(study: Study, records: Sequence[Record], scale: str) -> tuple[Verdict, ...]:
    """A verdict for each claim of a study, from its records alone."""
    mine = [record for record in records if record.study == study.name]
    if not mine:
        return ()
    doubt = _control_failed(study.controls, mine) or _mixed(study, mine)
    clashing = {id(record) for pair in disagreeing(mine) for record in pair}
    agreed = [record for record in mine if id(record) not in clashing]  # no mean of the others
    return tuple(_judge_claim(study.name, claim, agreed, scale, doubt) for claim in study.claims)


def _control_failed(controls: Sequence[Control], records: Sequence[Record]) -> str:
    """Why nothing in the study is believed, or nothing."""
    for control in controls:
        found = [record.values[control.quantity] for record in records if has(record, control)]
        if not found:
            return f"control failed: no record holds {control.quantity!r} ({control.says})"
        for value in found:
            if not isinstance(value, int | float) or not abs(value) <= control.most:
                return (
                    f"control failed: {control.says}: {control.quantity} is {value!r:.20}, "
                    f"at most {control.most:g} was allowed"
                )
    return ""


def has(record: Record, control: Control) -> bool:
    """Whether a record holds the number of a control."""
    return control.quantity in record.values


def _mixed(study: Study, records: Sequence[Record]) -> str:
    revisions = sorted({record.revision for record in records})
    if len(revisions) > 1:
        listed = " and ".join(map(str, revisions))
        return f"records of revisions {listed} are mixed: run the study again"
    if (stray := _stray(study, records)) is not None:
        return f"the record {stray.name} is of no cell that the study has: run the study again"
    changed = [record for record in records if record.is_changed]
    if changed:
        return f"the record {changed[0].name} was changed after it was written: run it again"
    if clash := disagreeing(records):
        return f"two records of {clash[0][0].name} disagree: remove one and run it again"
    if revisions != [study.revision]:
        return f"records are of revision {revisions[0]}, the study of {study.revision}"
    return ""


def _stray(study: Study, records: Sequence[Record]) -> Record | None:
    """A record whose cell the study no longer has, or has with other parameters."""
    for record in records:
        mine = [cell for cell in study.cells.get(record.scale, ()) if cell.name == record.cell]
        if not any(dict(cell.parameters) == dict(record.parameters) for cell in mine):
            return record
    return None


def disagreeing(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Pairs of records of one key with other values."""
    first: dict[tuple[str, str, int, str], Record] = {}
    clashes = []
    for record in records:
        known = first.setdefault((record.study, record.cell, record.seed, record.key), record)
        if known.values != record.values:
            clashes.append((known, record))
    return clashes


def _judge_claim(
    study: str, claim: Claim, records: Sequence[Record], scale: str, doubt: str
) -> Verdict:
    values = values_by_seed(claim, records)
    ours = math.fsum(values) / len(values) if values else None
    interval = interval_of(values)

    def verdict(word: Word, why: str) -> Verdict:
        return Verdict(study, claim.name, claim.published, ours, interval, word, why)

    if doubt:
        return verdict("undecided", doubt)
    if interval is None:
        return verdict(
            "undecided", f"{len(values)} seeds gave a number; a verdict needs {LEAST_SEEDS}"
        )
    if scale not in claim.scales:
        return verdict("not comparable", f"a number of scale {scale} is not what was published")
    return verdict(*_compare(claim, interval))


def values_by_seed(claim: Claim, records: Sequence[Record]) -> list[float]:
    """The mean over the claim's cells for each seed that has all of them."""
    found: dict[int, list[float]] = {}
    lost = set()
    for record in records:
        if claim.quantity not in record.values or not record.fits(claim.cells):
            continue
        value = record.values[claim.quantity]
        if isinstance(value, int | float):
            found.setdefault(record.seed, []).append(float(value))
        else:
            lost.add(record.seed)
    return [math.fsum(v) / len(v) for seed, v in sorted(found.items()) if seed not in lost]


def interval_of(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's law, from three values on.

    >>> low, high = interval_of([1.0, 2.0, 3.0])
    >>> round((high - low) / 2, 3)  # 4.3027 · 1 / √3
    2.484
    """
    count = len(values)
    if count < LEAST_SEEDS:
        return None
    from scipy.special import stdtrit

    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
    return mean - half, mean + half


def _compare(claim: Claim, interval: tuple[float, float]) -> tuple[Word, str]:
    low, high = interval
    if claim.kind == "sign":
        inner, outer = (low, high) if claim.side == "above" else (-high, -low)
        bound = claim.bound if claim.side == "above" else -claim.bound
        asked = f"{claim.side} {claim.bound:g}"
        if inner > bound:
            return "reproduced", f"the whole interval lies {asked}"
        if outer < bound:
            return "not reproduced", f"the whole interval does not lie {asked}"
        return "undecided", f"the interval holds {claim.bound:g}"
    assert claim.published is not None, claim.name
    least, most = claim.published - claim.tolerance, claim.published + claim.tolerance
    asked = f"{claim.published:g} ± {claim.tolerance:g}"
    if least <= low and high <= most:
        return "reproduced", f"the whole interval lies within {asked}"
    if high < least or low > most:
        return "not reproduced", f"the whole interval lies outside {asked}"
    return "undecided", f"the interval is too wide for {asked}"
