"""Packing: the same members before and after, whatever was killed in between."""

import math
import shutil

import pytest
import torch

from coset.engines import Serial
from coset.errors import CosetError
from coset.store import load_record, save_record
from coset.zoo import Zoo, pack, packing, populate, read_recipe, rebuild_index, verify
from coset.zoo.files import digest

TINY = read_recipe("tiny")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    populate(TINY, folder, 6, engine=Serial(), progress=False)
    return folder


@pytest.fixture
def folder(reference, tmp_path):
    shutil.copytree(reference, tmp_path / "zoo")
    return tmp_path / "zoo"


def assert_same(one, other):
    assert one.members == other.members
    for step in (None, 1):
        first, second = one.weights(step=step), other.weights(step=step)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_packed_zoo_has_the_same_members(folder, reference):
    assert_same(pack(folder), Zoo.open(reference))
    assert [path.name for path in (folder / "shards").iterdir()] == ["00000.safetensors"]
    assert not list((folder / "members").iterdir())
    assert_same(pack(folder), Zoo.open(reference))


def test_a_shard_is_a_flat_matrix_with_its_layout(folder):
    zoo = pack(folder)
    tensors, facts = load_record(folder / "shards" / "00000.safetensors")
    assert tensors["flat"].shape == (12, 1210)
    assert facts["names"] == list(zoo.layout.names)
    assert [row["step"] for row in facts["rows"]] == [None] * 6 + [1] * 6
    assert torch.equal(tensors["flat"][2], zoo.layout.flatten(zoo.weights())[2])


def test_shards_have_limits(folder, reference, monkeypatch):
    monkeypatch.setattr(packing, "ROWS", 4)
    assert_same(pack(folder), Zoo.open(reference))
    assert len(list((folder / "shards").iterdir())) == 3
    monkeypatch.setattr(packing, "BYTES", 2 * 4 * 1210)
    shutil.rmtree(folder)
    shutil.copytree(reference, folder)
    assert_same(pack(folder), Zoo.open(reference))
    assert len(list((folder / "shards").iterdir())) == 6


def test_a_packed_zoo_grows(folder, reference, tmp_path):
    pack(folder)
    populate(TINY, folder, 9, engine=Serial())
    assert len(list((folder / "members").iterdir())) == 3, "what is packed is not trained again"
    grown = pack(folder)
    assert_same(grown, populate(TINY, tmp_path / "other", 9, engine=Serial()))
    assert len(list((folder / "shards").iterdir())) == 2


def test_runs_that_are_in_a_file_and_a_shard_count_once(folder, reference):
    """As a kill between writing the shard and removing the files leaves them."""
    pack(folder)
    for path in (reference / "members").iterdir():
        shutil.copy(path, folder / "members")
    assert_same(Zoo.open(folder), Zoo.open(reference))
    assert_same(pack(folder), Zoo.open(reference))
    assert not list((folder / "members").iterdir())
    assert len(list((folder / "shards").iterdir())) == 1


def test_half_precision_on_request(folder, reference):
    zoo, before = pack(folder, dtype=torch.float16), Zoo.open(reference)
    whole = before.weights()
    for name, tensor in zoo.weights().items():
        assert torch.equal(tensor, whole[name].half().float())
    (end,) = (m for m in zoo.members if (m.number, m.step) == (0, None))
    assert end.sha256 == digest(before.layout.flatten(whole)[0].half())
    size = (folder / "shards" / "00000.safetensors").stat().st_size
    assert size < 2 * 12 * 1210 + 8000
    back = pack(folder, dtype="float32")
    assert torch.equal(back.weights()["linear1.bias"], whole["linear1.bias"].half().float())
    with pytest.raises(CosetError, match="got dtype=int8"):
        pack(folder, dtype=torch.int8)


def test_numbers_that_half_precision_cannot_hold_are_refused(folder, reference):
    path = folder / "members" / "00000003.safetensors"
    tensors, facts = load_record(path)
    tensors["flat"][1, 7] = 1e5
    save_record(path, tensors, facts)
    with pytest.raises(CosetError, match=r"of the run with seed \d+ that torch.float16 cannot"):
        pack(folder, dtype=torch.float16)
    assert len(Zoo.open(folder)) == 6
    assert not list((folder / "shards").iterdir())


def test_the_index_is_made_anew(folder, reference):
    first = Zoo.open(folder)
    index = folder / "index.sqlite"
    assert index.exists()
    for content in (b"", b"nothing", index.read_bytes()[:3000]):
        index.write_bytes(content)
        assert_same(Zoo.open(folder), first)
    index.unlink()
    assert_same(rebuild_index(folder), first)
    assert index.exists()


def test_the_index_notices_every_change_of_files(folder):
    assert len(Zoo.open(folder)) == 6
    (folder / "members" / "00000005.safetensors").unlink()
    assert len(Zoo.open(folder)) == 5
    populate(TINY, folder, 6, engine=Serial())
    assert len(Zoo.open(folder)) == 6


def test_a_shard_of_another_layout_is_refused(folder):
    """The same recipe, and tensors in another order."""
    pack(folder)
    (path,) = (folder / "shards").iterdir()
    tensors, facts = load_record(path)
    turned = {**facts, "names": facts["names"][::-1], "shapes": facts["shapes"][::-1]}
    save_record(folder / "shards" / "00001.safetensors", tensors, turned)
    for use in (Zoo.open, pack, rebuild_index):
        with pytest.raises(CosetError, match=r"00001\.safetensors, .* another layout"):
            use(folder)
    assert [fault.file for fault in verify(folder)] == ["shards/00001.safetensors"]


def test_losses_that_are_not_finite_are_kept_and_listed(folder):
    """An infinite loss is one of a class without probability; one that is no number is missing."""
    path = folder / "members" / "00000003.safetensors"
    tensors, facts = load_record(path)
    facts["rows"][0]["metrics"]["negative_log_likelihood"] = math.nan
    facts["rows"][1]["metrics"]["negative_log_likelihood"] = math.inf
    save_record(path, tensors, facts)
    for zoo in (Zoo.open(folder), pack(folder), Zoo.open(folder)):
        early, end = (m.metrics["negative_log_likelihood"] for m in zoo.members if m.number == 3)
        assert math.isnan(early)
        assert end == math.inf
        (lost,) = zoo.select("negative_log_likelihood is null")
        (high,) = zoo.select("negative_log_likelihood > 1e30")
        assert (lost.number, lost.step, high.number, high.step) == (3, 1, 3, None)


def test_clocks_may_go_back(folder, reference):
    import os

    Zoo.open(folder)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert_same(Zoo.open(folder), Zoo.open(reference))
    assert_same(populate(TINY, folder, 6, engine=Serial()), Zoo.open(reference))


def test_folders_that_may_not_be_written_in_are_read(folder, reference, monkeypatch):
    from coset.zoo import index

    def refuse(*_):
        raise CosetError("got the path: Read-only file system")

    (folder / "index.sqlite").unlink(missing_ok=True)
    monkeypatch.setattr(index, "write_bytes", refuse)
    assert_same(Zoo.open(folder), Zoo.open(reference))
    assert not (folder / "index.sqlite").exists()


def test_conditions_choose_members(folder):
    zoo = Zoo.open(folder)
    every = zoo.members
    bar = sorted(member.metrics["accuracy"] for member in every)[6]
    found = zoo.select(f"accuracy > {bar!r}")
    assert found == tuple(member for member in every if member.metrics["accuracy"] > bar)
    assert [m.number for m in zoo.select("number in (1, 3) and step is null")] == [1, 3]
    assert zoo.select(f"seed = {every[0].seed}") == every[:2]


@pytest.mark.parametrize(
    "condition",
    [
        "acuracy > 0.9",
        "",
        "1; DROP TABLE members",
        "1) UNION SELECT 1, 2 --",
        "load_extension('x')",
        "number IN (SELECT run FROM places)",
    ],
)
def test_what_is_no_condition_is_refused(folder, condition):
    with pytest.raises(CosetError, match="got the condition"):
        Zoo.open(folder).select(condition)
    assert len(Zoo.open(folder)) == 6
