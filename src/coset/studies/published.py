"""The verdicts that come along with the library: those of its last published run."""

import json
from importlib.resources import files
from typing import Any

VERDICTS = "verdicts.json"


def published() -> dict[str, Any]:
    """The verdicts of the last published run of scale small: date, seeds and one entry a claim."""
    text = (files("coset.studies") / VERDICTS).read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def published_entries() -> dict[tuple[str, str], dict[str, Any]]:
    """The entry of each study and claim."""
    return {(entry["study"], entry["claim"]): entry for entry in published()["verdicts"]}


def published_seeds(study: str) -> int:
    """How many repetitions the published run of a study had."""
    return len(published()["seeds"].get(study, ()))


def published_date(study: str) -> str:
    """When a study was last published."""
    known = published()
    return str(known.get("dates", {}).get(study, known["date"]))
