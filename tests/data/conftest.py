import os
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
import torch


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch, tmp_path):
    """Tests see no data of this machine and no network but ``file:`` and their own server."""
    for variable in ("COSET_DATA", "FASHION_MNIST_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    real = urllib.request.urlopen

    def local_only(url, *arguments, **named):
        if not url.startswith(("file:", "http://127.0.0.1:")):
            raise URLError("no network in tests")
        return real(url, *arguments, **named)

    monkeypatch.setattr(urllib.request, "urlopen", local_only)


@pytest.fixture
def data_folder(monkeypatch, tmp_path):
    """An empty folder that ``COSET_DATA`` names."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("COSET_DATA", str(folder))
    return folder


REAL = os.environ.get("COSET_DATA")


@pytest.fixture
def real_data(monkeypatch):
    """The folder with the real sets, as it was given from outside."""
    assert REAL, "tests that use real data are skipped without COSET_DATA"
    monkeypatch.setenv("COSET_DATA", REAL)
    return Path(REAL)
