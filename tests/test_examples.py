"""Every file in examples/ runs, at a tiny size."""

import importlib.util
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from coset import data

FOLDER = Path(__file__).parents[1] / "examples"
TINY = {
    "align_two_networks": {"width": 8, "epochs": 2},
    "uncertainty_in_three_lines": {"points": 60, "members": 2, "epochs": 3},
    "ensemble_on_digits": {"members": 2, "epochs": 2},
    "error_bars_by_method": {"points": 12, "epochs": 2, "draws": 20, "path": os.devnull},
    "estimate_depth": {"method": "map", "count": 10, "epochs": 1, "picture": os.devnull},
    "forecast_with_error_bars": {"length": 80, "steps": 5},
    "inspect_a_network": {"width": 4},
    "laplace_in_three_lines": {"points": 30, "steps": 50},
    "look_at_a_zoo": {"path": os.devnull},
    "noisy_regression": {"points": 60, "members": 2, "epochs": 3},
    "segment_camvid": {"data": "scenes", "count": 10, "epochs": 1, "picture": os.devnull},
    "read_published_networks": {"name": "mnist-optunet", "pictures": 20},
    "train_with_lightning": {"epochs": 2, "rows": 60},
}
NEEDED = {"train_with_lightning": "lightning"}
FILES = sorted(FOLDER.glob("*.py"))


def module_at(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_a_tiny_size():
    assert {path.stem for path in FILES} == TINY.keys()


# what Lightning says of itself
@pytest.mark.filterwarnings("ignore::Warning:lightning")
@pytest.mark.filterwarnings("ignore:.*(treespec|train_dataloader|does not have many workers)")
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_it_runs_and_prints_something(path, capsys):
    if path.stem in NEEDED:
        pytest.importorskip(NEEDED[path.stem], reason=f"needs the package {NEEDED[path.stem]}")
    module = module_at(path)
    assert module.main(**TINY[path.stem])
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_it_is_short(path):
    assert len(path.read_text().splitlines()) <= 80


READER = FOLDER / "read_published_networks.py"
SETS = {  # names of parts in the archive that differ from ours, the data, where its files belong
    "mnist-optunet": ({"linear1": "fc1", "linear2": "fc2"}, "mnist", "mnist"),
    "cifar10-resnet20-frn-silu": ({}, "cifar10", "cifar10/cifar-10-batches-bin"),
    "cifar10-resnet18": ({}, "cifar10", "cifar10/cifar-10-batches-bin"),
    "cifar100-resnet18": ({}, "cifar100", "cifar100"),
    "tiny-imagenet-resnet18": ({}, "tiny_imagenet", "tiny_imagenet/tiny-imagenet-200"),
}


def test_the_reader_of_published_networks_names_a_command_for_each_set():
    found = subprocess.run(
        [sys.executable, READER, "--help"], capture_output=True, text=True, check=True
    )
    assert module_at(READER).SETS.keys() == SETS.keys()
    for name in SETS:
        assert f"\npython examples/read_published_networks.py {name} PATH\n" in found.stdout


@pytest.mark.parametrize("name", SETS)
def test_an_archive_of_each_published_layout_is_read(name, tmp_path, monkeypatch, capsys):
    """A folder of files in half precision: the accuracy is that of the network that went in."""
    renamed, kind, folder = SETS[name]
    sets = module_at(Path(__file__).parent / "data" / "written_sets.py")
    getattr(sets, f"write_{kind}")(tmp_path / folder)
    monkeypatch.setenv("COSET_DATA", str(tmp_path))
    reader = module_at(READER)
    inputs, targets = data.standardise(data.load(kind)).test
    torch.manual_seed(5)
    network = reader.SETS[name].build().train()
    with torch.no_grad():
        for _ in range(3):
            network(inputs)  # statistics of batch norm that are not those of a fresh network
        last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
        last.bias[targets[-1]] += 5 * network.eval()(inputs).std()
    network.half().float()
    content = save(
        {
            ".".join(renamed.get(part, part) for part in key.split(".")): tensor.half()
            if tensor.is_floating_point()
            else tensor
            for key, tensor in network.state_dict().items()
        }
    )
    archive = tmp_path / f"{name}-0-0.tgz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        info = tarfile.TarInfo(f"{name}/version_0.safetensors")
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    with torch.no_grad():
        expected = float((network(inputs).argmax(1) == targets).float().mean())
    assert expected > 0
    assert reader.main(name, archive) == pytest.approx([expected])
    assert capsys.readouterr().out == f"network 0: accuracy {expected:.3f}\n"
