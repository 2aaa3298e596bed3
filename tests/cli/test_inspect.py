"""The command ``coset inspect``: its table, its picture, its refusals."""

import io
import math
import xml.etree.ElementTree as ElementTree

import pytest

from coset import cli

NET = """
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 3)
    def forward(self, tokens, offsets):
        return self.head(self.table(tokens).tanh() + offsets)

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else x

def make():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

def needs(width):
    return nn.Linear(width, 1)

def number():
    return 3

def lazy():
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))

class Leaving(nn.Linear):
    left, calls = 0, 0
    def forward(self, x):
        Leaving.calls += 1
        if Leaving.calls > self.left:
            raise SystemExit(0)
        return super().forward(x)

def leaves():
    Leaving.calls, Leaving.left = 0, 0
    return Leaving(3, 2)

def leaves_later():
    Leaving.calls, Leaving.left = 0, 2
    return Leaving(3, 2)

class Shy(nn.Linear):
    def __repr__(self):
        raise RuntimeError("no name")

def shy():
    return nn.Sequential(Shy(3, 5), nn.ReLU(), nn.Linear(5, 2))

class Sizes:
    @property
    def broken(self):
        raise RuntimeError("no sizes")

SIZES, TABLE = Sizes(), {"width": 3}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def test_the_table_the_order_and_the_error_are_printed(file, capsys):
    assert cli.main(["inspect", "./net.py:make"]) == 0
    shown = capsys.readouterr().out
    assert "32 parameters, input 1×3" in shown  # 3·5 + 5 + 5·2 + 2
    assert "0.weight axis 0, 0.bias axis 0, 2.weight axis 1" in shown
    assert f"log order {math.log(120):.2f}" in shown
    error = float(shown.split("symmetry error: ")[1].split()[0])
    assert error < 1e-12
    assert max(map(len, shown.splitlines())) <= 110
    assert [path.name for path in file.iterdir()] == ["net.py"]


def test_a_terminal_without_the_letters_gets_question_marks(file, monkeypatch):
    content = io.BytesIO()
    terminal = io.TextIOWrapper(content, encoding="ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    assert cli.main(["inspect", "./net.py:make"]) == 0
    assert b"input 1?3" in content.getvalue()


def test_a_reader_that_has_seen_enough_is_no_error(file, monkeypatch, capsys):
    class Closed(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError(32, "Broken pipe")

        def fileno(self):
            return spare.fileno()

    with (file / "spare").open("w") as spare:
        monkeypatch.setattr("sys.stdout", Closed())
        assert cli.main(["inspect", "./net.py:make"]) == 141
    assert capsys.readouterr().err == ""


def test_without_standard_output_the_work_is_done(file, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert cli.main(["inspect", "./net.py:make", "--svg", "net.svg"]) == 0
    assert (file / "net.svg").exists()


def test_a_module_that_cannot_be_printed_is_inspected(file, capsys):
    assert cli.main(["inspect", "./net.py:shy"]) == 0
    assert "permutations: 1 factor" in capsys.readouterr().out


def test_a_module_in_the_current_folder_is_found(file, capsys):
    assert cli.main(["inspect", "net:make", "--input-shape", "1,3"]) == 0
    assert "log order" in capsys.readouterr().out


def test_the_picture_is_written_and_one_tensor_explained(file, capsys):
    words = ["inspect", "./net.py:make", "--svg", "net.svg", "--explain", "2.weight"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "axis 1: free: 5 units, moved by 0" in shown
    assert "Picture: net.svg" in shown
    assert ElementTree.parse(file / "net.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("kind", ["half", "double"])
def test_networks_of_other_precisions_are_inspected(kind, file, capsys):
    with (file / "net.py").open("a") as net:
        net.write(f"def other():\n    return make().{kind}()\n")
    assert cli.main(["inspect", "./net.py:other"]) == 0
    assert cli.main(["inspect", "./net.py:other", "--input-shape", "2,3"]) == 0
    assert "input 2×3" in capsys.readouterr().out


def test_several_inputs_of_several_kinds(file, capsys):
    shapes = ["--input-shape", "2,4", "--input-shape", "2,4,6", "--dtype", "int"]
    assert cli.main(["inspect", "./net.py:Tokens", *shapes, "--dtype", "float"]) == 0
    assert "input 2×4, 2×4×6" in capsys.readouterr().out


BAD = {
    "no colon": (["./net.py"], ["'./net.py'", "MODULE:FACTORY"]),
    "no file": (["./nat.py:make"], ["./nat.py", "no file"]),
    "no module": (["nowhere.at_all:make"], ["nowhere", "imported"]),
    "no function": (["./net.py:mak"], ["'mak'", "did you mean make"]),
    "no class": (["./net.py:tokens"], ["'tokens'", "did you mean Tokens"]),
    "inside a table": (["./net.py:TABLE.width"], ["'width'", "nothing that could be called"]),
    "a property that fails": (["./net.py:SIZES.broken"], ["'broken'", "RuntimeError: no sizes"]),
    "no ending": (["./net:make"], ["'./net'", "./file.py"]),
    "no size yet": (["./net.py:lazy"], ["--input-shape"]),
    "needs arguments": (["./net.py:needs"], ["needs", "without arguments"]),
    "no network": (["./net.py:number"], ["int", "torch.nn.Module"]),
    "no shape": (["./net.py:Tokens"], ["--input-shape"]),
    "shape of words": (["./net.py:make", "--input-shape", "1,x"], ["'1,x'", "1,3,32,32"]),
    "empty axis": (["./net.py:make", "--input-shape", "0,3"], ["'0,3'", "positive"]),
    "wrong shape": (["./net.py:make", "--input-shape", "1,4"], ["1,4", "refuses"]),
    "huge shape": (["./net.py:make", "--input-shape", "99999999999999,3"], ["99999999999999,3"]),
    "endless number": (["./net.py:make", "--input-shape", "9" * 5000], ["999", "1,3,32,32"]),
    "kind without shape": (["./net.py:make", "--dtype", "int"], ["--dtype int", "--input-shape"]),
    "two kinds": (
        ["./net.py:make", "--input-shape", "1,3", "--dtype", "int", "--dtype", "int"],
        ["--dtype", "one for each"],
    ),
    "other kind": (["./net.py:make", "--dtype", "bool"], ["bool", "--dtype"]),
    "no tensor": (["./net.py:make", "--explain", "2.wieght"], ["'2.wieght'", "'2.weight'"]),
    "no folder": (["./net.py:make", "--svg", "no/net.svg"], ["no/net.svg", "folder"]),
    "a folder": (["./net.py:make", "--svg", "."], ["--svg .", "a folder"]),
    "its own file": (["./net.py:make", "--svg", "net.py"], ["--svg net.py", "is an input"]),
    "control flow": (
        ["./net.py:Branching", "--input-shape", "1,3"],
        ["net.py:", "x.sum() > 0", "groups="],
    ),
    "ends the program": (
        ["./net.py:leaves", "--input-shape", "1,3"],
        ["1,3", "SystemExit: 0"],
    ),
    "ends it later": (
        ["./net.py:leaves_later", "--input-shape", "1,3"],
        ["SystemExit: 0", "ended the program"],
    ),
    "no words": ([], ["MODULE:FACTORY"]),
}


@pytest.mark.parametrize(("words", "named"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_one_line(words, named, file, capsys):
    assert cli.main(["inspect", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("coset: ")
    assert all(word in error for word in named), error
    assert [path.name for path in file.iterdir()] == ["net.py"]
    assert (file / "net.py").read_text() == NET
