"""Real slices to try reconstruction on."""

import importlib.util
import os
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coset.errors import CosetError


def vertebra() -> Float[Tensor, "128 128"]:
    """A slice of a chest, with a vertebra: ``CT_small.dcm``, which comes with pydicom.

    Hounsfield units ``h`` become ``(h + 1000) / 2500`` between 0 and 1: air is 0, water 0.4.

    Raises:
        CosetError: If pydicom is not installed.
    """
    if importlib.util.find_spec("pydicom") is None:
        raise CosetError(
            "got no package pydicom, which brings the slice along",
            "needed it for a real slice",
            'pip install "coset[ct]", or use phantoms.walnut',
        )
    from pydicom import dcmread
    from pydicom.data import get_testdata_file

    found = get_testdata_file("CT_small.dcm", download=False)
    assert found is not None
    record = dcmread(found)
    stored = torch.from_numpy(record.pixel_array.astype("float64"))
    units = stored * float(record.RescaleSlope) + float(record.RescaleIntercept)
    return ((units + 1000) / 2500).clamp(0, 1)


def walnut_slice(size: int) -> Float[Tensor, "size size"]:
    """A real slice of a walnut, from ``walnut_slice.npz`` in the folder named by ``COSET_DATA``.

    Args:
        size: Pixels along a side, to which its 1023 are averaged.
    """
    import numpy as np

    folder = os.environ.get("COSET_DATA", "")
    path = Path(folder) / "walnut_slice.npz"
    if not folder or not path.is_file():
        raise CosetError(
            "got no file walnut_slice.npz",
            "needed it in the folder that COSET_DATA names",
            "use phantoms.walnut",
        )
    stored = torch.from_numpy(np.load(path, allow_pickle=False)["x"].astype("float64")) / 255
    return functional.adaptive_avg_pool2d(stored[None], size)[0]
