"""The published networks of torch-uncertainty/Checkpoints, read from their archives as they are.

PATH is an archive fetched from https://huggingface.co/datasets/torch-uncertainty/Checkpoints:

python examples/read_published_networks.py mnist-optunet PATH
python examples/read_published_networks.py cifar10-resnet20-frn-silu PATH
python examples/read_published_networks.py cifar10-resnet18 PATH
python examples/read_published_networks.py cifar100-resnet18 PATH
python examples/read_published_networks.py tiny-imagenet-resnet18 PATH

Without PATH the script makes a small archive of that layout from fresh networks.
"""

import io
import tarfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
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


def main(name: str, path: Path | None = None, *, pictures: int = 500) -> list[float]:
    chosen = SETS[name]
    with TemporaryDirectory() as folder:
        if path is None:
            path = Path(folder) / "fresh.tgz"
            make_archive(path, chosen.build)
            print(f"No archive given: two fresh networks of the layout of {name}")
        inputs, targets = (p[:pictures] for p in data.standardise(data.load(chosen.data)).test)
        network, found = functionalise(chosen.build().eval()), []
        for weights in read_checkpoints(path, chosen.build(), renamed=chosen.renamed):
            found.append(float(accuracy(network.apply(weights, inputs).softmax(1), targets)))
            print(f"network {len(found) - 1}: accuracy {found[-1]:.3f}", flush=True)
    return found


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETS, nargs="?", default="mnist-optunet")
    parser.add_argument("path", type=Path, nargs="?")
    main(**vars(parser.parse_args()))
