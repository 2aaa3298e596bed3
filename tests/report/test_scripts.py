"""The scripts of a page: those from elsewhere are what they say, and no others may run."""

import hashlib
import re
from importlib.resources import files

from coset.report import Explorer, Page, Section, render
from coset.report.scripts import explorer_scripts, fingerprint, vendored

VENDOR = files("coset.report").joinpath("vendor")


def test_every_vendored_file_is_the_published_one_with_its_licence():
    named = {"vendor.json", "README.md"}
    for each in vendored():
        hashes = {each["file"]: each["sha256"], **each["licences"]}
        named |= hashes.keys()
        for name, sha256 in hashes.items():
            assert hashlib.sha256(VENDOR.joinpath(name).read_bytes()).hexdigest() == sha256, name
        assert each["licence"] == "ISC"
        assert each["version"] in VENDOR.joinpath(each["file"]).read_text()[:200]
        for licence in each["licences"]:
            assert "Copyright" in VENDOR.joinpath(licence).read_text()
    assert {path.name for path in VENDOR.iterdir()} == named


def test_only_these_scripts_may_run_and_only_where_they_are_needed():
    explorer = Explorer("pair", {"a": [1, "</script>"]}, name="x")
    html = render(Page("a", "b", sections=[Section("s", explorers=[explorer])]))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    ran = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert ran == list(explorer_scripts())
    assert policy.endswith("script-src " + " ".join(map(fingerprint, ran)))
    plain = render(Page("a", "b"))
    assert "<script>" not in plain
    assert "script-src" not in plain


def test_an_explorer_holds_its_numbers_and_their_records():
    facts = {"records": ["s/c/seed 0"]}
    explorer = Explorer("pair", {"a": [1, "</script>"]}, name="x", facts=facts)
    html = render(Page("a", "b", sections=[Section("s", explorers=[explorer])]))
    assert '{"a": [1, "\\u003c/script\\u003e"], "facts": {"records": ["s/c/seed 0"]}}' in html
