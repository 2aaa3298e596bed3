"""What every test gets: few threads, a seeded generator, float64 where a test asks for it."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the networks are tiny: a second thread costs more than it gives


@pytest.fixture(autouse=True)
def _seeded():
    """Global randomness is the same in every test, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def double():
    """New tensors are float64 during the test."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def _data_folder(request):
    """Tests marked ``data`` say why they are skipped."""
    if request.node.get_closest_marker("data") is None:
        return
    folder = os.environ.get("COSET_DATA")
    if not folder:
        pytest.skip("COSET_DATA is not set: it names the folder of the larger real sets")
    if not Path(folder).is_dir():
        pytest.skip(f"COSET_DATA={folder} is not a folder")
