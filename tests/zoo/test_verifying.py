"""Verifying: every kind of fault is found, and a sound zoo has none."""

import shutil

import pytest
import torch

from coset import discover
from coset.engines import Serial
from coset.store import load_record, save_record
from coset.zoo import Fault, Zoo, pack, populate, read_recipe, verify
from coset.zoo.files import digest

TINY = read_recipe("tiny")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    populate(TINY, folder, 6, engine=Serial(), progress=False)
    return folder


@pytest.fixture(params=["files", "shards", "half"])
def folder(request, reference, tmp_path):
    shutil.copytree(reference, tmp_path / "zoo")
    if request.param != "files":
        pack(tmp_path / "zoo", dtype=torch.float16 if request.param == "half" else None)
    return tmp_path / "zoo"


def place_of(folder, number):
    zoo = Zoo.open(folder)
    return zoo.place(number), zoo


def rewrite(folder, number, change):
    """Changes the weights of a member and makes all checksums fit."""
    place, zoo = place_of(folder, number)
    tensors, facts = load_record(place.path)
    change(tensors["flat"], place.row, zoo.layout)
    facts["rows"][place.row]["sha256"] = digest(tensors["flat"][place.row])
    save_record(place.path, tensors, facts)
    return str(place.path.relative_to(folder))


def test_a_sound_zoo_has_no_faults(folder):
    assert verify(folder, measure=True) == ()


def test_a_flipped_bit_is_found_with_its_member(folder):
    place, _ = place_of(folder, 2)
    flat = load_record(place.path)[0]["flat"]
    content = bytearray(place.path.read_bytes())
    start = len(content) - flat.numel() * flat.element_size()
    content[start + flat[0].numel() * flat.element_size() * place.row + 5] ^= 4
    place.path.write_bytes(content)
    (fault,) = verify(folder)
    assert (fault.file, fault.member) == (str(place.path.relative_to(folder)), 2)
    assert fault.what == "its bytes do not fit their sha256"


def test_changed_metadata_are_found(folder):
    place, _ = place_of(folder, 2)
    content = place.path.read_bytes()
    at = content.index(b'accuracy\\": 0.') + len(b'accuracy\\": 0.')
    place.path.write_bytes(content[:at] + b"1" + content[at + 1 :])
    (fault,) = verify(folder)
    assert "what it says of itself does not fit" in fault.what


def test_a_cut_file_is_found(folder):
    place, _ = place_of(folder, 2)
    place.path.write_bytes(place.path.read_bytes()[:-10])
    (fault,) = verify(folder)
    assert fault.member is None
    assert fault.file == str(place.path.relative_to(folder))


def test_numbers_that_are_not_finite_are_found(folder):
    def change(flat, row, layout):
        flat[row, 3] = float("nan")

    file = rewrite(folder, 4, change)
    assert verify(folder) == (Fault(file, 4, "its weights are not finite"),)


def test_the_same_network_twice_is_found_modulo_its_symmetries(folder, generator):
    """Member 5 becomes a permuted and rescaled copy of member 1."""
    zoo = Zoo.open(folder)
    group = discover(zoo.module(), torch.zeros(2, 64))
    one = {name: tensor[0].double() for name, tensor in zoo.weights([1]).items()}
    moved = zoo.layout.flatten(group.act(group.sample(generator=generator), one))

    def change(flat, row, layout):
        assert not torch.equal(flat[row], moved.to(flat.dtype))
        flat[row] = moved.to(flat.dtype)

    file = rewrite(folder, 5, change)
    assert verify(folder) == (Fault(file, 5, "it is member 1 again, up to symmetry"),)


def test_accuracies_that_are_not_true_are_found(folder):
    def change(flat, row, layout):
        flat[row, layout.slices["linear2.bias"]] += 3.0 * torch.arange(10)

    file = rewrite(folder, 3, change)
    assert verify(folder) == ()
    (fault,) = verify(folder, measure=True)
    assert (fault.file, fault.member) == (file, 3)
    assert "its accuracy is" in fault.what


def test_files_of_another_zoo_are_found(folder, tmp_path):
    place, _ = place_of(folder, 0)
    tensors, facts = load_record(place.path)
    facts["recipe"] = "0" * 16
    save_record(place.path, tensors, facts)
    assert "it belongs to another recipe than tiny" in verify(folder)[0].what
    facts["recipe"] = TINY.digest
    facts["names"] = facts["names"][::-1]
    facts["shapes"] = facts["shapes"][::-1]
    save_record(place.path, tensors, facts)
    assert "its tensors are not those of mlp" in verify(folder)[0].what


def test_faults_are_told_in_a_line():
    assert str(Fault("a.safetensors", 3, "bad")) == "a.safetensors, member 3: bad"
    assert str(Fault("a.safetensors", None, "bad")) == "a.safetensors: bad"
