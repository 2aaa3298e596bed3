"""``coset align`` from files to a file."""

import io

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
def halved():
    return mlp(6, (8, 7), 3).half()
def lazy():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LazyLinear(3))
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8, bias=False), nn.Linear(6, 8, bias=False)
        self.last.weight = self.first.weight
    def forward(self, x):
        return self.first(x).tanh() @ self.last.weight
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


def test_soft_rounds_may_be_chosen(files, capsys):
    """Unrelated networks, matched with more and more effort."""
    one, distances = load_file("a.safetensors"), {"0": 0.0, "12": 0.0}
    for seed in range(4):
        torch.manual_seed(seed + 1)
        save_file(weights_of(mlp(6, (8, 7), 3)), files / "b.safetensors")
        for rounds in distances:
            assert main(words("./net.py:make", "--soft", rounds)) == 0
            other = load_file("c.safetensors")
            distances[rounds] += sum(float((one[n] - other[n]).square().sum()) for n in one)
            (files / "c.safetensors").unlink()
    capsys.readouterr()
    assert distances["12"] < distances["0"]


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


def test_a_reader_that_has_seen_enough_gets_the_file_all_the_same(files, monkeypatch, capsys):
    """As in ``coset align … | head -1``."""

    class Closed(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError(32, "Broken pipe")

        def fileno(self):
            return spare.fileno()

    with (files / "spare").open("w") as spare:
        monkeypatch.setattr("sys.stdout", Closed())
        assert main(words()) == 141
    assert capsys.readouterr().err == ""
    own = load_file("a.safetensors")
    assert all(torch.equal(own[name], w) for name, w in load_record("c.safetensors")[0].items())


def test_the_barrier_is_shown(files, capsys):
    assert main(words("./net.py:make", "--data", "data.safetensors", "--points", "5")) == 0
    assert "barrier of the loss" in capsys.readouterr().out


def test_activations(files):
    assert main(words("./net.py:make", "--data", "data.safetensors", "--by", "activations")) == 0
    given, (found, _) = load_file("b.safetensors"), load_record("c.safetensors")
    for name in given:  # units that are off for all inputs have no place of their own
        torch.testing.assert_close(found[name].sum(), given[name].sum())


def test_lazy_layers_find_their_sizes(files):
    for name in ("a", "b"):
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        save_file(weights_of(net), files / f"{name}.safetensors")
    assert main(words("./net.py:lazy")) == 0
    assert load_record("c.safetensors")[0]["2.weight"].shape == (3, 8)


def test_files_that_are_read_are_not_written_over(files, capsys):
    before = {path: path.read_bytes() for path in files.glob("*.safetensors")}
    for name in ("a", "b", "data"):
        given = words("./net.py:make", "--data", "data.safetensors")
        given[given.index("--out") + 1] = f"../{files.name}/{name}.safetensors"
        refused(capsys, given, "--out", "is an input")
    assert before == {path: path.read_bytes() for path in files.glob("*.safetensors")}
    given = words()
    given[given.index("--out") + 1] = "net.py"
    refused(capsys, given, "--out net.py", "is an input")
    assert (files / "net.py").read_text() == MODEL


def test_a_file_with_numbers_that_are_none_is_named(files, capsys):
    bad = {name: tensor / 0 for name, tensor in load_file("b.safetensors").items()}
    save_file(bad, files / "b.safetensors")
    refused(capsys, words(), "b.safetensors", "not numbers")


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


def replaced(given, old, new):
    return [new if word == old else word for word in given]


DATA = {
    ", 5) and type": {
        "inputs": torch.zeros(20, 5),
        "targets": torch.zeros(20).long(),
    },
    "labels from 3 to 3": {"inputs": torch.zeros(20, 6), "targets": torch.full((20,), 3)},
    "targets of shape (20, 1)": {"inputs": torch.zeros(20, 6), "targets": torch.zeros(20, 1)},
    "rows": {"inputs": torch.zeros(20, 6), "targets": torch.zeros(3).long()},
    "not finite, in example 0": {
        "inputs": torch.full((20, 6), torch.nan),
        "targets": torch.zeros(20).long(),
    },
    "needed inputs and targets": {"x": torch.zeros(2, 6)},
}


@pytest.mark.parametrize("by", ["weights", "activations"])
@pytest.mark.parametrize("named", DATA)
def test_data_that_do_not_fit_are_named_before_anything_is_printed(named, by, files, capsys):
    save_file(DATA[named], "odd.safetensors")
    assert main(words("./net.py:make", "--data", "odd.safetensors", "--by", by)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert named in shown.err
    assert "odd.safetensors" in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not (files / "c.safetensors").exists()


IDLE = {
    "--scales with --by activations": ["--by", "activations", "--data", "d", "--scales", "match"],
    "--restarts with --by activations": ["--by", "activations", "--data", "d", "--restarts", "1"],
    "--soft with --by activations": ["--by", "activations", "--data", "d", "--soft", "1"],
    "--points without --data": ["--points", "25"],
    "--reset-norm without --data": ["--reset-norm"],
    "--repair without --data": ["--repair"],
    "give --repair": ["--reset-norm", "--data", "data.safetensors"],
}


@pytest.mark.parametrize("named", IDLE)
def test_options_without_effect_are_refused(named, files, capsys):
    assert main(words("./net.py:make", *IDLE[named])) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert named in shown.err
    assert len(shown.err.splitlines()) == 1


def test_the_barrier_of_repaired_networks(files, capsys):
    given = ["--data", "data.safetensors", "--points", "3", "--repair"]
    assert main(words("./net.py:make", *given)) == 0
    assert "barrier of the loss" in capsys.readouterr().out


def test_whole_numbers_are_refused(files, capsys):
    own = load_file("a.safetensors")
    save_file({**own, "linear1.bias": own["linear1.bias"].long()}, "whole.safetensors")
    given = replaced(words(), "b.safetensors", "whole.safetensors")
    refused(capsys, given, "whole.safetensors", "linear1.bias", "int64")


def test_our_own_files_are_checked_when_they_are_read(files, capsys):
    assert main(words()) == 0
    again = replaced(words(), "c.safetensors", "d.safetensors")
    again = replaced(again, "b.safetensors", "c.safetensors")
    assert main(again) == 0
    capsys.readouterr()
    content = bytearray((files / "c.safetensors").read_bytes())
    content[-1] ^= 1
    (files / "c.safetensors").write_bytes(content)
    refused(capsys, again, "c.safetensors", "sha256")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model", ["make", "halved"])
def test_half_precision_comes_back_bit_by_bit(kind, model, files, capsys):
    for name in ("a.safetensors", "b.safetensors"):
        save_file({n: w.to(kind) for n, w in load_file(name).items()}, name)
    given = ["--data", "data.safetensors", "--points", "3"]
    assert main(words(f"./net.py:{model}", *given)) == 0
    shown = capsys.readouterr().out
    assert float(shown.split("largest difference ")[1].split(",")[0]) < 1e-12
    own, found = load_file("a.safetensors"), load_file("c.safetensors")
    assert all(found[n].dtype == kind and torch.equal(found[n], own[n]) for n in own)


@pytest.mark.parametrize(("kind", "limit"), [(torch.float16, 0.1), (torch.float32, 1.2e-3)])
def test_scales_round_and_that_is_said(kind, limit, files, capsys):
    """ReLU units three times as large: matched scales give numbers that the type does not have."""
    own = load_file("a.safetensors")
    factors = {"linear1.weight": 3.0, "linear1.bias": 3.0, "linear2.weight": 1 / 3}
    moved = {name: tensor * factors.get(name, 1.0) for name, tensor in own.items()}
    save_file({n: w.to(kind) for n, w in own.items()}, "a.safetensors")
    save_file({n: w.to(kind) for n, w in moved.items()}, "b.safetensors")
    assert main(words("./net.py:make", "--scales", "match")) == 0
    shown = capsys.readouterr().out
    assert f"rounded to {str(kind)[6:]} (allowed: {limit:.1e})" in shown


def test_a_wrong_element_is_noticed_in_half_precision(files, capsys, monkeypatch):
    """Outputs that move by a thousandth are no rounding, whatever type the files have."""
    for name in ("a.safetensors", "b.safetensors"):
        save_file({n: w.half() for n, w in load_file(name).items()}, name)
    from coset.symmetry.group import SymmetryGroup

    right = SymmetryGroup.act

    def wrong(group, element, weights):
        moved = right(group, element, weights)
        return {**moved, "linear1.bias": moved["linear1.bias"] + 1e-3}

    monkeypatch.setattr(SymmetryGroup, "act", wrong)
    refused(capsys, words(), "outputs that differ", "nothing was written")
    assert not (files / "c.safetensors").exists()


def test_tied_tensors_are_written_under_each_name(files, capsys):
    torch.manual_seed(2)
    shared = torch.randn(8, 6)
    order = torch.randperm(8)
    both = ("first.weight", "last.weight")
    save_file({name: shared.clone() for name in both}, "a.safetensors")
    save_file({name: shared[order].clone() for name in both}, "b.safetensors")
    assert main(words("./net.py:Tied")) == 0
    found = load_file("c.safetensors")
    assert all(torch.equal(found[name], shared) for name in both)
    save_file({"first.weight": shared, "last.weight": shared + 1}, "b.safetensors")
    refused(capsys, words("./net.py:Tied"), "b.safetensors", "last.weight")
