"""Networks and inputs named on the command line."""

import sys

import pytest
import torch
from torch import nn

from coset import CosetError, models
from coset.cli.factory import load_module, read_inputs

SHAPES = {
    "mlp": (1, 784),
    "convnet": (1, 1, 32, 32),
    "resnet20": (1, 3, 32, 32),
    "vision_transformer": (1, 3, 32, 32),
    "point_transformer": (1, 16, 3),
    "unet": (1, 1, 32, 32),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_shape_is_guessed_from_the_first_layer(name):
    (inputs,) = read_inputs(models.MODELS[name](), [], ["float"])
    assert tuple(inputs.shape) == SHAPES[name]


def test_token_numbers_and_sequences_are_guessed():
    (tokens,) = read_inputs(nn.Sequential(nn.Embedding(5, 3)), [], ["float"])
    assert tokens.dtype == torch.int64
    (sequence,) = read_inputs(nn.GRU(3, 4), [], ["float"])
    assert sequence.shape[-1] == 3
    (signal,) = read_inputs(nn.Conv1d(2, 4, 3), [], ["float"])
    assert tuple(signal.shape) == (1, 2, 32)


@pytest.mark.parametrize("shapes", [[], ["2,3,32,32"]])
def test_inputs_are_noise(shapes):
    """At zeros a residual network puts out its last bias alone, whatever its weights."""
    module = models.resnet20().double()
    (inputs,) = read_inputs(module, shapes, ["float"])
    assert inputs.dtype == torch.float64
    assert 0.9 < float(inputs.std()) < 1.1
    assert torch.equal(inputs, read_inputs(module, shapes, ["float"])[0])


class Marked(nn.Module):
    """Words and their kinds: two tables, the smaller of which bounds the numbers."""

    def __init__(self):
        super().__init__()
        self.words, self.kinds = nn.Embedding(50, 4), nn.Embedding(3, 4)

    def forward(self, words, kinds):
        return self.words(words) + self.kinds(kinds)


def test_tokens_differ():
    """Where all tokens are alike all attention is alike, whatever its weights."""
    words, kinds = read_inputs(Marked(), ["2,16", "2,16"], ["int"])
    assert set(words.flatten().tolist()) == {0, 1, 2}
    assert not kinds.any()
    (alone,) = read_inputs(nn.Flatten(), ["2,16"], ["int"])
    assert not alone.any()


def test_several_inputs_differ():
    first, second = read_inputs(nn.Bilinear(3, 3, 2), ["4,3", "4,3"], ["float"])
    assert not torch.equal(first, second)


def test_training_flags_are_left_alone():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module[0].eval()
    read_inputs(module, ["4,2"], ["float"])
    assert [child.training for child in module] == [False, True]


def test_an_instance_and_a_class_will_do(tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "ready = nn.Linear(2, 3)\n"
        "class Small(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(2, 3)\n"
    )
    path = list(sys.path)
    for name in ("ready", "Small"):
        assert load_module(f"{tmp_path}/nets.py:{name}").out_features == 3
    assert sys.path == path


FILE = """
from __future__ import annotations
from dataclasses import dataclass
from beside import WIDTH
from torch import nn

@dataclass
class Sizes:
    width: int = WIDTH

def make():
    from below import later
    return nn.Linear(2, Sizes().width)
"""


def test_a_file_is_run_as_python_would(tmp_path, monkeypatch):
    """Its classes find their module; what it imports lies beside it or in the current folder."""
    nets = tmp_path / "my nets"
    (nets / "deep").mkdir(parents=True)
    (nets / "deep" / "random.py").write_text(FILE)  # the name of a module of Python's own
    (nets / "deep" / "beside.py").write_text("WIDTH = 3")
    (nets / "below.py").write_text("later = True")
    monkeypatch.chdir(nets)
    path, before = list(sys.path), sys.modules["random"]
    try:
        assert load_module("deep/random.py:make").out_features == 3
    finally:
        for name in ("beside", "below"):
            sys.modules.pop(name, None)
    assert sys.path == path
    assert sys.modules["random"] is before
    assert not list(nets.rglob("__pycache__"))


@pytest.mark.parametrize("line", ["raise KeyError('what')", "import sys; sys.exit(3)", "1 +"])
def test_a_file_that_fails_is_named_with_its_reason(tmp_path, line):
    (tmp_path / "bad.py").write_text(line)
    with pytest.raises(CosetError, match=r"bad\.py.*(KeyError|SystemExit|SyntaxError)"):
        load_module(f"{tmp_path}/bad.py:make")
