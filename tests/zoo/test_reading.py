"""Reading a zoo: any members, any tensors, and refusals of what is not there."""

import json
import os

import pytest
import torch

from coset.engines import Serial
from coset.errors import CosetError
from coset.posterior.families import Samples
from coset.zoo import Zoo, populate, read_recipe, reading
from coset.zoo.files import digest


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    return populate(read_recipe("tiny"), folder, 6, engine=Serial(), progress=False)


def test_any_members_in_any_order(zoo):
    every = zoo.weights()
    for asked, same in (
        ([4, 1, 1], [4, 1, 1]),
        (slice(2, 4), [2, 3]),
        (slice(None, None, -2), [5, 3, 1]),
        (torch.tensor([0, 5]), [0, 5]),
    ):
        for name, tensor in zoo.weights(asked).items():
            assert torch.equal(tensor, every[name][same])
    assert zoo.weights([])["linear1.weight"].shape == (0, 16, 64)


def test_any_tensors_in_any_type(zoo):
    every = zoo.weights()
    some = zoo.weights([1], names=["linear2.bias", "linear1.bias"], dtype=torch.float64)
    assert list(some) == ["linear2.bias", "linear1.bias"]
    assert torch.equal(some["linear1.bias"], every["linear1.bias"][[1]].double())


def test_chunks_are_all_members(zoo):
    chunks = list(zoo.chunks(4))
    assert [len(chunk["linear1.bias"]) for chunk in chunks] == [4, 2]
    joined = torch.cat([chunk["linear1.weight"] for chunk in chunks])
    assert torch.equal(joined, zoo.weights()["linear1.weight"])


def test_a_zoo_is_a_posterior_of_its_module(zoo, generator):
    posterior = zoo.posterior()
    assert isinstance(posterior, Samples)
    assert posterior.layout.size == sum(p.numel() for p in zoo.module().parameters()) == 1210
    assert posterior.sample(3, generator=generator)["linear1.bias"].shape == (3, 16)


def test_the_digest_is_of_the_stored_tensors_in_layout_order(zoo):
    (end,) = (m for m in zoo.members if (m.number, m.step) == (3, None))
    flat = torch.cat([tensor[3].flatten() for tensor in zoo.weights().values()])
    assert end.sha256 == digest(flat)


def test_it_says_what_it_is(zoo):
    assert repr(zoo) == f"Zoo({str(zoo.folder)!r}): 6 networks of the recipe tiny"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"members": [6]}, "got member 6; needed whole numbers from 0 to 5"),
        ({"members": [-1]}, "got member -1"),
        ({"members": [0.5]}, "got member 0.5"),
        ({"names": ["linear1.wieght"]}, "such as linear1.weight"),
        ({"step": 2}, r"got step=2; needed an epoch whose weights are kept \(1\)"),
    ],
)
def test_what_is_not_there_is_refused(zoo, asked, words):
    with pytest.raises(CosetError, match=words):
        zoo.weights(**asked)


def test_a_stack_larger_than_the_memory_is_refused(zoo, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}.__getitem__)
    with pytest.raises(CosetError, match=r"got 5 members of 1,210 numbers.*go through chunks"):
        zoo.weights(slice(5))
    assert len(zoo.weights(slice(4))["linear2.bias"]) == 4


def test_parts_are_all_members_in_so_many_bytes(zoo, monkeypatch):
    assert list(zoo.parts(size=4)) == [slice(0, 4), slice(4, 6)]
    monkeypatch.setattr(reading, "_PART", 2 * 8 * zoo.layout.size)
    assert list(zoo.parts()) == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert list(zoo.parts(width=10**6)) == [slice(k, k + 1) for k in range(6)]


def test_folders_of_something_else_are_refused(zoo, tmp_path):
    with pytest.raises(CosetError, match=r"in which there is no zoo\.json"):
        Zoo.open(tmp_path)
    (tmp_path / "zoo.json").write_text("[]")
    with pytest.raises(CosetError, match="does not describe a zoo"):
        Zoo.open(tmp_path)
    facts = json.loads((zoo.folder / "zoo.json").read_text())
    facts["recipe"]["training"]["epochs"] = 3
    (tmp_path / "zoo.json").write_text(json.dumps(facts))
    assert len(Zoo.open(tmp_path)) == 0
    (tmp_path / "members").mkdir()
    path = zoo.folder / "members" / "00000000.safetensors"
    (tmp_path / "members" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CosetError, match="belongs to another recipe"):
        Zoo.open(tmp_path)
    (tmp_path / "members" / path.name).write_bytes(b"nothing")
    with pytest.raises(CosetError, match="not a file that coset wrote"):
        Zoo.open(tmp_path)
