"""The published networks of torch-uncertainty/Checkpoints, read from their archives as they are.

Fetch an archive first, from https://huggingface.co/datasets/torch-uncertainty/Checkpoints:
run ``python examples/read_published_networks.py mnist-optunet PATH``.  Without a path the script
makes a small archive of that layout from fresh networks.  Names of tensors are those of the code
that the networks were trained with.
"""

import io
import sys
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from safetensors.torch import save
from torch import nn

from coset import data, functionalise
from coset.metrics import accuracy
from coset.models import optunet, resnet18, resnet20
from coset.zoo import read_checkpoints


class Published(NamedTuple):
    """One of the sets: its network, the data it was trained on, and names that differ from ours."""

    build: Callable[[], nn.Module]
    data: str
    renamed: Mapping[str, str] = {}


SETS = {
    "mnist-optunet": Published(optunet, "mnist", {"fc1": "linear1", "fc2": "linear2"}),
    "cifar10-resnet20-frn-silu": Published(
        partial(resnet20, normalisation="filter_response", activation="silu"), "cifar10"
    ),
    "cifar10-resnet18": Published(resnet18, "cifar10"),
    "cifar100-resnet18": Published(partial(resnet18, classes=100), "cifar100"),
    "tiny-imagenet-resnet18": Published(partial(resnet18, classes=200), "tiny_imagenet"),
}


def make_archive(path: Path, build: Callable[[], nn.Module]) -> None:
    """Two fresh networks in half precision, a file each."""
    with tarfile.open(path, "w:gz") as archive:
        for number in range(2):
            content = save(build().half().state_dict())
            info = tarfile.TarInfo(f"version_{number}.safetensors")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def main(
    name: str = "mnist-optunet", path: Path | None = None, *, pictures: int = 500
) -> list[float]:
    chosen = SETS[name]
    with TemporaryDirectory() as folder:
        if path is None:
            path = Path(folder) / "fresh.tgz"
            make_archive(path, chosen.build)
            print(f"No archive given: two fresh networks of the layout of {name}")
        inputs, targets = (
            part[:pictures] for part in data.standardise(data.load(chosen.data)).test
        )
        network = functionalise(chosen.build().eval())
        found = []
        for number, weights in enumerate(
            read_checkpoints(path, chosen.build(), renamed=chosen.renamed)
        ):
            found.append(float(accuracy(network.apply(weights, inputs).softmax(1), targets)))
            print(f"network {number}: accuracy {found[-1]:.3f}", flush=True)
    return found


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*given[:1], *map(Path, given[1:2]))
