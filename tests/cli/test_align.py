"""``coset align`` from files to a file."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.alignment.reference import permutations_only

from coset import discover, weights_of
from coset.cli import main
from coset.models import mlp
from coset.store import load_record

MODEL = """
from torch import nn
from coset.models import mlp
def make():
    return mlp(6, (8, 7), 3)
def wider():
    return mlp(6, (9, 7), 3)
def broken():
    return nn.Linear(2, 2)
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    torch.manual_seed(0)
    module = mlp(6, (8, 7), 3)
    own = weights_of(module)
    group = discover(module, torch.zeros(1, 6))
    element = permutations_only(group, group.sample(generator=torch.Generator().manual_seed(1)))
    save_file(own, tmp_path / "a.safetensors")
    save_file(group.act(element, own), tmp_path / "b.safetensors")
    data = {"inputs": torch.randn(20, 6), "targets": torch.randint(3, (20,))}
    save_file(data, tmp_path / "data.safetensors")
    return tmp_path


def words(model="./net.py:make", *more):
    files = ["a.safetensors", "b.safetensors"]
    return ["align", *files, "--model", model, "--out", "c.safetensors", *more]


def test_a_permuted_copy_comes_back(files, capsys):
    assert main(words()) == 0
    shown = capsys.readouterr().out
    assert "transpositions" in shown
    assert "sha256" in shown
    assert "same function as b.safetensors" in shown
    tensors, facts = load_record("c.safetensors")
    own = load_file("a.safetensors")
    assert all(torch.equal(tensors[name], own[name]) for name in own)
    assert facts["aligned_to"] == "a.safetensors"


def test_the_barrier_is_shown(files, capsys):
    assert main(words("./net.py:make", "--data", "data.safetensors", "--points", "5")) == 0
    assert "barrier of the loss" in capsys.readouterr().out


def test_activations(files):
    assert main(words("./net.py:make", "--data", "data.safetensors", "--by", "activations")) == 0
    given, (found, _) = load_file("b.safetensors"), load_record("c.safetensors")
    for name in given:  # units that are off for all inputs have no place of their own
        torch.testing.assert_close(found[name].sum(), given[name].sum())


def refused(capsys, given, *named):
    assert main(given) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    for word in named:
        assert word in lines[0]


def test_bad_input_is_named_and_nothing_is_written(files, capsys):
    refused(capsys, words("./net.py:wider"), "a.safetensors", "linear1.weight", "(9, 6)")
    refused(capsys, words("./net.py:broken"), "a.safetensors", "weight")
    refused(capsys, words("./net.py:nothing"), "nothing")
    refused(capsys, words("./net.py:make", "--by", "activations"), "--data")
    refused(capsys, words("./net.py:make", "--by", "magic"), "magic")
    (files / "bad.safetensors").write_bytes(b"no")
    broken = words()
    broken[2] = "bad.safetensors"
    refused(capsys, broken, "bad.safetensors")
    broken[2] = "missing.safetensors"
    refused(capsys, broken, "missing.safetensors")
    own = load_file("a.safetensors")
    save_file({**own, "linear1.bias": own["linear1.bias"] * torch.nan}, "nan.safetensors")
    broken[2] = "nan.safetensors"
    refused(capsys, broken, "linear1.bias")
    onto = words()
    onto[onto.index("c.safetensors")] = "a.safetensors"
    refused(capsys, onto, "a.safetensors")
    onto[onto.index("--out") + 1] = "nowhere/c.safetensors"
    refused(capsys, onto, "nowhere")
    assert not (files / "c.safetensors").exists()
