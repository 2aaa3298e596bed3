"""Every method: full disks and wrong checkpoints are told, and so are data that change."""

import errno
import itertools
import os
import random
import resource
import shutil
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import coset
from corrupted import corrupted
from coset import Checkpoint, CosetError, Laplace, MatrixFree, MaximumAPosteriori
from coset.store import load_record, save_record
from methods import LAPLACES, METHODS

FEW, MANY = 4, 60
"""Damaged checkpoints of each method and state of the run."""

KEPT = {
    name: METHODS[name]
    for name in (
        "map",
        "ensemble",
        "dropout",
        "mean field",
        "mean field from a training",
        "SWAG",
        "SGHMC",
        "SGLD",
        "HMC",
        "NUTS",
        "multi-SWAG",
        "multi-SGLD",
        "rebased",
    )
} | {"matrix-free": Laplace(MatrixFree(2))}
"""One of each method that takes a checkpoint, itself or in the method inside it."""


def test_every_method_that_takes_a_checkpoint_is_here():
    own = {
        value
        for name in coset.NAMES
        if isinstance(value := getattr(coset, name), type)
        and hasattr(value, "fit")
        and "checkpoint" in getattr(value, "__dataclass_fields__", {})
    }
    assert {type(method) for method in KEPT.values()} >= own


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def fitted(method, train=None):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 2))
    train = data() if train is None else train
    return coset.fit(module, train, method=method, generator=torch.Generator().manual_seed(1))


def kept_in(method, folder):
    """The same with a checkpoint, in the method inside that takes one."""
    if "checkpoint" in {field.name for field in fields(method)}:
        return replace(method, checkpoint=Checkpoint(folder, every=2))
    return replace(method, inner=kept_in(method.inner, folder))


def drawn(predictor):
    return predictor.posterior.sample(3, generator=torch.Generator().manual_seed(2))


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def filling_after(pieces):
    """``os.write`` of a disk that has room for so many pieces."""
    write, calls = os.write, itertools.count()

    def limited(file, content):
        if next(calls) >= pieces:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, content)

    return limited


@pytest.mark.parametrize("name", KEPT)
def test_a_disk_that_is_full_is_told_and_the_run_goes_on_when_there_is_room(
    name, tmp_path, monkeypatch
):
    whole, method = drawn(fitted(KEPT[name])), kept_in(KEPT[name], tmp_path)
    for room in (0, 4):  # of the three pieces of a file
        monkeypatch.setattr(os, "write", filling_after(room))
        with pytest.raises(CosetError, match=r"got the path .*: No space left on device; needed"):
            fitted(method)
        monkeypatch.undo()
        assert all(path.suffix == ".safetensors" for path in files_in(tmp_path))
    assert files_in(tmp_path)  # the second disk held a whole one
    found = drawn(fitted(method))
    assert all(torch.equal(tensor, found[key]) for key, tensor in whole.items())


@pytest.mark.parametrize("name", ["map", "SGLD", "matrix-free"])
def test_what_the_kernel_refuses_is_told(name, tmp_path):
    """A real limit, on the size of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(CosetError, match=r"got the path .*: File too large; needed"):
            fitted(kept_in(KEPT[name], tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(tmp_path) == []


class Rows(torch.utils.data.Dataset):
    """A user's data set, with noise of its own in every reading."""

    def __init__(self, noise):
        self.rows, self.noise = data(), noise

    def __len__(self):
        return len(self.rows[1])

    def __getitem__(self, index):
        inputs, targets = self.rows
        return inputs[index] + self.noise * torch.randn(3), targets[index]


@pytest.mark.parametrize("name", [*KEPT, "full", "KFAC", "multi-Laplace"])
def test_data_that_change_as_they_are_read_are_told(name):
    method = {**METHODS, **LAPLACES, **KEPT}[name]
    told = "training examples change each time they are read"
    assert sum(told in line for line in fitted(method, Rows(0.1)).posterior.report.warnings) == 1
    assert not any(told in line for line in fitted(method, Rows(0.0)).posterior.report.warnings)


def test_a_file_keeps_what_was_told_of_the_data(tmp_path):
    predictor = fitted(MaximumAPosteriori(epochs=1), Rows(0.1))
    predictor.save(tmp_path / "file")
    again = coset.load(tmp_path / "file", predictor.network.module)
    assert again.posterior.report.warnings == predictor.posterior.report.warnings


def damage(path, other, chance):
    """Bits, lengths and names that a disk, a copy or a careless hand gets wrong, and other runs."""
    content = path.read_bytes()
    match chance.randrange(7):
        case 0:
            changed = bytearray(content)
            changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
        case 1:
            path.write_bytes(content[: chance.randrange(len(content))])
        case 2:
            path.write_bytes(content + bytes(chance.randrange(1, 9)))
        case 3:
            path.write_bytes(chance.randbytes(chance.randrange(200)))
        case 4:
            path.write_bytes(other.read_bytes())
        case 5:
            path.unlink()
        case _:  # under a right digest
            tensors, facts = load_record(path)
            save_record(path, tensors, corrupted({}, facts, str(chance.random()), ("run",))[1])


def check_checkpoints(name, folder, seeds):
    """Runs that ended, and runs that a full disk stopped, with something wrong in one file."""
    method = kept_in(KEPT[name], folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", filling_after(4))
        with pytest.raises(CosetError):
            fitted(method)
    shutil.copytree(folder / "run", folder / "stopped")
    whole = drawn(fitted(method))
    shutil.move(folder / "run", folder / "ended")
    refusals = []
    for state, seed in itertools.product(("stopped", "ended"), seeds):
        shutil.copytree(folder / state, folder / "run")
        chance = random.Random(f"{name} {state} {seed}")
        files = sorted(files_in(folder / "run"))
        damage(chance.choice(files), chance.choice(files), chance)
        try:
            found = drawn(fitted(method))
        except CosetError as refusal:
            refusals.append(str(refusal))
        else:
            assert all(torch.equal(tensor, found[key]) for key, tensor in whole.items())
        shutil.rmtree(folder / "run")
    assert refusals
    assert not any("\n" in refusal for refusal in refusals)
    shutil.copytree(folder / "stopped", folder / "run")
    found = drawn(fitted(method))  # as it was written it goes on
    assert all(torch.equal(tensor, found[key]) for key, tensor in whole.items())


@pytest.mark.parametrize("name", KEPT)
def test_a_damaged_checkpoint_is_refused_or_goes_on(name, tmp_path):
    check_checkpoints(name, tmp_path, range(FEW))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KEPT)
def test_many_damaged_checkpoints_are_refused_or_go_on(name, tmp_path):
    check_checkpoints(name, tmp_path, range(FEW, MANY))


@pytest.mark.parametrize("name", ["map", "ensemble", "mean field", "SWAG"])
def test_members_and_moments_of_other_shapes_are_refused_before_a_step(name, tmp_path):
    """Under a right digest: fused optimisers would read beyond the end of a shorter moment."""
    method = kept_in(KEPT[name], tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", filling_after(4))
        with pytest.raises(CosetError):
            fitted(method)
    (path,) = (p for p in files_in(tmp_path) if p.name == "state.safetensors")
    tensors, facts = load_record(path)
    wide = [key for key, tensor in tensors.items() if tensor.dim() > 1 and "weight" in key]
    assert len(wide) > 2
    for key in wide:
        for wrong in (tensors[key][:, :1].contiguous(), tensors[key].double()):
            save_record(path, {**tensors, key: wrong}, facts)
            with pytest.raises(CosetError, match=r"state\.safetensors"):
                fitted(method)
