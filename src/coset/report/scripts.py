"""The scripts of a page: ours, and the two libraries that came with us; none is ever fetched."""

import hashlib
import json
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Any


def vendored() -> list[dict[str, Any]]:
    """What came from elsewhere: file, package, version, licence and sha256."""
    text = files("coset.report").joinpath("vendor", "vendor.json").read_text()
    known: list[dict[str, Any]] = json.loads(text)
    return known


@cache
def explorer_scripts() -> tuple[str, ...]:
    """The texts of the scripts that explorers need, in the order in which they run."""
    room = files("coset.report")
    libraries = [room.joinpath("vendor", each["file"]).read_text() for each in vendored()]
    return (*libraries, room.joinpath("templates", "explorers.js").read_text())


def fingerprint(script: str) -> str:
    """How a page's policy names the one script that may run.

    >>> fingerprint("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
