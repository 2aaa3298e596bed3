"""Disks that are full or may only be read: a clear stop, nothing torn, nothing lost."""

import os
import shutil
import subprocess

import pytest
import torch

from coset.engines import Process, Serial
from coset.errors import CosetError
from coset.zoo import Zoo, export_hub, import_hub, pack, populate, read_recipe, verify

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a file system")
TINY = read_recipe("tiny")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    populate(TINY, folder, 4, engine=Serial(), progress=False)
    return folder


@pytest.fixture
def disk(tmp_path):
    """A disk of 64 kB, on which there is a zoo of four, 51 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "x", place]).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def read_only(disk):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


def files_of(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "index.sqlite"
    }


@pytest.mark.parametrize("engine", [Serial(), Process(workers=1)])
def test_a_full_disk_stops_a_training_clearly(disk, engine):
    with pytest.raises(CosetError, match=r"No space left on device.*second call goes on"):
        populate(TINY, disk, 40, engine=engine)
    kept = list((disk / "members").iterdir())
    assert all(path.name.startswith("0") for path in kept), "nothing is torn"
    assert len(Zoo.open(disk)) == len(kept)
    assert verify(disk) == ()


def test_a_full_disk_stops_packing_and_sharing(reference, disk, tmp_path):
    shutil.copytree(reference, disk / "zoo", ignore=shutil.ignore_patterns("index.sqlite"))
    before = files_of(disk / "zoo")
    with pytest.raises(CosetError, match="No space left on device"):
        pack(disk / "zoo")
    assert files_of(disk / "zoo") == before
    pytest.importorskip("pyarrow", reason="needs the extra hub")
    with pytest.raises(CosetError, match="No space left on device"):
        export_hub(disk / "zoo", disk / "shared")
    export_hub(reference, tmp_path / "shared")
    with pytest.raises(CosetError, match="No space left on device"):
        import_hub(tmp_path / "shared", disk / "copy")
    assert [path.name for path in disk.iterdir()] == ["zoo"]
    assert files_of(disk / "zoo") == before


def test_a_disk_that_may_only_be_read(reference, disk):
    shutil.copytree(reference, disk / "zoo", ignore=shutil.ignore_patterns("index.sqlite"))
    read_only(disk)
    with pytest.raises(CosetError, match="Read-only file system"):
        populate(TINY, disk / "zoo", 8, engine=Serial())
    with pytest.raises(CosetError, match="Read-only file system"):
        populate(TINY, disk / "new", 8, engine=Serial())
    with pytest.raises(CosetError, match="Read-only file system"):
        pack(disk / "zoo")
    zoo = Zoo.open(disk / "zoo")
    assert len(zoo) == 4
    assert torch.equal(zoo.weights()["linear1.bias"], Zoo.open(reference).weights()["linear1.bias"])
    assert verify(disk / "zoo") == ()
    pytest.importorskip("pyarrow", reason="needs the extra hub")
    with pytest.raises(CosetError, match="Read-only file system"):
        export_hub(reference, disk / "shared")
