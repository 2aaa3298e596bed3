"""The Hugging Face Hub: whether it can be reached, and data sets brought and taken there.

``huggingface_hub`` tries for half a minute before it says that there is no connection.  Here one
question is asked first, and three seconds are waited for an answer of any kind.
"""

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coset.errors import CosetError

_FORM = re.compile(r"hf://datasets/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/?")
_SCHEME = "hf:"
_PATIENCE = 3.0
"""Seconds for an answer."""


@dataclass(frozen=True)
class HubPlace:
    """A data set of the Hub, as ``OWNER/NAME``."""

    name: str

    def __str__(self) -> str:
        return f"hf://datasets/{self.name}"

    def require_connection(self) -> None:
        """Refuses to begin where the Hub does not answer."""
        if not is_reachable():
            raise CosetError(
                f"got {self}, and no answer from {endpoint()} within {_PATIENCE:g} seconds",
                "needed a connection",
                "write a folder instead, and upload it elsewhere",
            )


def hub_place(text: str | Path) -> HubPlace | None:
    """The data set that an address names; ``None`` for the path of a folder.

    >>> hub_place("hf://datasets/somebody/networks"), hub_place("networks")
    (HubPlace(name='somebody/networks'), None)
    """
    if not str(text).startswith(_SCHEME):
        return None
    found = _FORM.fullmatch(str(text))
    if found is None:
        raise CosetError(f"got {text}", "needed hf://datasets/OWNER/NAME, or the path of a folder")
    return HubPlace(found[1])


def needed(module: str) -> Any:
    """A module of the extra ``hub``."""
    try:
        return import_module(module)
    except ImportError as error:
        raise CosetError(
            f"got no module {module.partition('.')[0]}",
            "needed the extra hub",
            "pip install 'coset[hub]'",
        ) from error


def endpoint() -> str:
    """The address of the Hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def is_reachable() -> bool:
    """Whether the Hub answers, in whatever words, within three seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(endpoint(), timeout=_PATIENCE):
                answered.set()
        except urllib.error.HTTPError:  # an answer, too
            answered.set()
        except OSError:
            pass

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name knows no time-out
    asking.start()
    asking.join(_PATIENCE)
    return answered.is_set()


def download(place: HubPlace, patterns: Sequence[str]) -> Path:
    """The files of a data set that fit some patterns, in the Hub's own cache.

    Without a connection the cache alone is looked into.
    """
    hub = needed("huggingface_hub")
    offline = not is_reachable()
    with _in_our_words(place, offline):
        found = hub.snapshot_download(
            place.name,
            repo_type="dataset",
            allow_patterns=list(patterns),
            local_files_only=offline,
            endpoint=endpoint(),
        )
    return Path(found)


def upload(place: HubPlace, folder: Path) -> str:
    """Puts the files of a folder into a data set, which is made if it is not there."""
    hub = needed("huggingface_hub")
    with _in_our_words(place, offline=False):
        api = hub.HfApi(endpoint=endpoint())
        api.create_repo(place.name, repo_type="dataset", exist_ok=True)
        api.upload_folder(
            repo_id=place.name,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Upload a zoo of networks",
        )
    return f"{endpoint()}/datasets/{place.name}"


@contextmanager
def _in_our_words(place: HubPlace, offline: bool) -> Iterator[None]:
    try:
        yield
    except CosetError:
        raise
    except Exception as error:  # its own errors, those of its client and of the system
        if offline:
            raise CosetError(
                f"got {place}, of which nothing is in the cache, and no answer from {endpoint()} "
                f"within {_PATIENCE:g} seconds",
                "needed a connection",
                "or bring the files from elsewhere and give their folder",
            ) from error
        told = " ".join(str(error).split())
        raise CosetError(
            f"got {place}, and the Hub said: {type(error).__name__}: {told:.300}",
            "needed a data set that may be read or written",
            "check the name, and log in with hf auth login",
        ) from error
