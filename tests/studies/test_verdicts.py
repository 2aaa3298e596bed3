"""Verdicts by hand: every word, and everything that takes a verdict away."""

from dataclasses import replace

import pytest
from scipy.stats import t as student

from coset.studies.records import Record, digest_of
from coset.studies.registry import DEMO_SECONDS, names, study_named
from coset.studies.study import SCALES, Cell, Claim, Control, Study, key_of
from coset.studies.verdicts import interval_of, judge

SIGN = Claim("sign", "It is above one.", "paper", "figure 1", "x", bound=1.0)
SIZE = Claim("size", "It is two.", "paper", "table 1", "x", "size", published=2.0, tolerance=0.5)
CONTROL = Control("copy", "a copy is a copy", "same", 1e-6)


def study(*claims):
    return Study(
        "s", "t", "q", "p", 1, "m:f", {"small": (Cell("a", {}),)}, {}, claims, (CONTROL,), ()
    )


def record(seed, x, same=0.0, **changes):
    found = Record(
        "s", "a", "small", seed, {"x": x, "same": same}, 0.1, 1, 1, {}, 1, "", (), {}, "k"
    )
    found = replace(found, **changes)
    return replace(found, sha256=digest_of(found))


def one(claim, values, scale="small", **changes):
    records = [record(seed, x, **changes) for seed, x in enumerate(values)]
    return judge(study(claim), records, scale)[0]


@pytest.mark.parametrize(
    ("claim", "values", "word"),
    [
        (SIGN, [2.0, 2.1, 1.9], "reproduced"),
        (SIGN, [0.2, 0.3, 0.1], "not reproduced"),
        (SIGN, [0.2, 2.0, 1.3], "undecided"),
        (replace(SIGN, side="below"), [0.2, 0.3, 0.1], "reproduced"),
        (replace(SIGN, side="below"), [2.0, 2.1, 1.9], "not reproduced"),
        (SIZE, [2.0, 2.01, 1.99], "reproduced"),
        (SIZE, [4.0, 4.01, 3.99], "not reproduced"),
        (SIZE, [2.0, 2.4, 1.6], "undecided"),
        (SIZE, [2.0, 3.0, 4.0], "undecided"),
    ],
)
def test_signs_and_sizes_are_judged_by_the_whole_interval(claim, values, word):
    verdict = one(claim, values)
    assert verdict.verdict == word
    assert verdict.ours == pytest.approx(sum(values) / 3)


def test_the_interval_is_students():
    values = [1.0, 4.0, 2.5, 3.0]
    mean = 2.625
    deviation = (sum((v - mean) ** 2 for v in values) / 3) ** 0.5
    expected = student.interval(0.95, 3, mean, deviation / 2)
    assert interval_of(values) == pytest.approx(expected)


def test_two_seeds_are_not_enough():
    verdict = one(SIGN, [2.0, 2.0])
    assert (verdict.verdict, verdict.interval) == ("undecided", None)
    assert "2 seeds" in verdict.why


def test_another_scale_is_not_compared():
    assert one(SIGN, [2.0, 2.0, 2.0], "tiny").verdict == "not comparable"


@pytest.mark.parametrize("same", [1.0, None, "0"])
def test_a_failed_control_takes_all_verdicts(same):
    verdict = one(SIGN, [2.0, 2.0, 2.0], same=same)
    assert verdict.verdict == "undecided"
    assert verdict.why.startswith("control failed: a copy is a copy")


def test_a_control_without_a_number_has_failed():
    bare = [replace(record(seed, 2.0), values={"x": 2.0}) for seed in range(3)]
    assert judge(study(SIGN), bare, "small")[0].why.startswith("control failed")


def test_a_number_that_was_not_finite_does_not_count():
    assert one(SIGN, [2.0, 2.0, 2.0, None]).verdict == "reproduced"
    assert one(SIGN, [2.0, 2.0, None]).verdict == "undecided"


def test_mixed_changed_and_disagreeing_records_are_not_judged():
    good = [record(seed, 2.0) for seed in range(3)]
    older = [*good[:2], record(2, 2.0, revision=0)]
    changed = [*good[:2], replace(good[2], values={"x": 9.0, "same": 0.0})]
    clashing = [*good, record(2, 5.0)]
    stray = [*good[:2], record(2, 2.0, parameters={"size": 3})]
    for records, word in (
        (older, "mixed"),
        (changed, "changed"),
        (clashing, "disagree"),
        (stray, "no cell"),
    ):
        verdict = judge(study(SIGN), records, "small")[0]
        assert verdict.verdict == "undecided"
        assert word in verdict.why


@pytest.mark.parametrize("name", names())
def test_every_study_is_declared_whole(name):
    declared = study_named(name)
    assert declared.name == name
    assert set(declared.cells) == set(SCALES) == set(declared.seeds)
    assert declared.controls
    assert declared.exhibits
    for part in (declared.claims, declared.controls, declared.exhibits):
        known = [each.name for each in part]
        assert len(known) == len(set(known))
    for claim in declared.claims:
        assert claim.kind == "sign" or claim.published is not None
        assert not {"tiny", "demo"} & set(claim.scales)
    for scale in SCALES:
        keys = [key_of(name, cell, 0, "", 1) for cell in declared.cells[scale]]
        assert len(keys) == len(set(keys))
        assert len({cell.name for cell in declared.cells[scale]}) == len(keys)
    assert len(declared.seeds["small"]) >= 3
    cost = len(declared.seeds["demo"]) * sum(c.seconds for c in declared.cells["demo"])
    assert cost <= DEMO_SECONDS[name] <= 90


def test_the_studies_share_the_ten_minutes_of_the_demo():
    assert set(DEMO_SECONDS) == set(names())
    assert sum(DEMO_SECONDS.values()) <= 600
