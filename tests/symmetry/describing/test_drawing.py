"""The picture of a network: well-formed, complete, and coloured by factor."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from tests.symmetry.cases import CASES

from coset import PermutationFactor, discover, models
from coset.symmetry.describing.drawing import PINNED, colours_of, draw

BY_NAME = {case.name: case for case in CASES}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def perceptron():
    module, example = models.mlp(6, (5, 4), 3), torch.zeros(1, 6)
    group = discover(module, example)
    return group, ElementTree.fromstring(draw(module, example, group))


def words(picture):
    return [text.text for text in picture.iter(f"{SVG}text")]


def test_layers_sizes_and_factors_are_written(perceptron):
    group, picture = perceptron
    shown = words(picture)
    for layer in ("linear1", "linear2", "linear3", "output"):
        assert layer in shown
    for factor in group.permutations:
        assert f"{factor.name}   {factor.size}" in shown
    assert "pinned" in shown
    assert "2 permutation factors, log order 8.0 (10^3 equivalent networks)" in shown  # log 2880


def test_the_same_factor_has_the_same_colour_everywhere(perceptron):
    """linear1: weight rows, bias, the next weight's columns and the legend; linear2 likewise."""
    group, picture = perceptron
    fills = [rect.get("fill") for rect in picture.iter(f"{SVG}rect")]
    for colour in colours_of(group.permutations).values():
        assert fills.count(colour) == 4
    assert fills.count(PINNED) == 4  # input columns, output rows, last bias, legend


def test_edges_carry_the_colour_of_what_flows(perceptron):
    group, picture = perceptron
    colours = colours_of(group.permutations)
    strokes = [path.get("stroke") for path in picture.iter(f"{SVG}path") if path.get("stroke")]
    assert strokes[1:3] == [colours["linear1"], colours["linear2"]]


@pytest.mark.parametrize(
    "name", ["residual_stream", "attention_interleaved", "attention_with_slopes", "lstm"]
)
def test_pictures_are_well_formed_and_nothing_lies_outside(name):
    case = BY_NAME[name]
    module, example = case.factory(), case.example()
    picture = ElementTree.fromstring(draw(module, example, discover(module, example)))
    width, height = float(picture.get("width")), float(picture.get("height"))
    for rect in picture.iter(f"{SVG}rect"):
        if rect.get("x") is not None:
            assert 0 <= float(rect.get("x")) <= width - float(rect.get("width"))
            assert 0 <= float(rect.get("y")) <= height - float(rect.get("height"))
    for text in picture.iter(f"{SVG}text"):
        assert 0 < float(text.get("y")) < height


def test_nested_factors_are_hatched():
    case = BY_NAME["attention_interleaved"]
    module, example = case.factory(), case.example()
    group = discover(module, example)
    assert any(factor.within for factor in group.permutations)
    assert "url(#hatch)" in draw(module, example, group).partition("</defs>")[2]


def test_skips_run_on_the_left_without_touching_each_other():
    module, example = models.resnet20(), torch.zeros(1, 3, 32, 32)
    text = draw(module, example, discover(module, example))
    lanes = re.findall(r'd="M[\d.]+ ([\d.]+)H([\d.-]+)q-6 0 -6 6V([\d.]+)', text)
    spans = [(float(x), float(top), float(bottom)) for top, x, bottom in lanes]
    assert len(spans) == 11  # seven identity skips, and two lines around each of two projections
    for i, (x, top, bottom) in enumerate(spans):
        for other, above, below in spans[:i]:
            assert x != other or bottom < above or below < top


def test_names_are_escaped():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleDict({"a<b&c": torch.nn.Linear(2, 2)})

        def forward(self, x):
            return self.layers["a<b&c"](x)

    module, example = Odd(), torch.zeros(1, 2)
    picture = ElementTree.fromstring(draw(module, example, discover(module, example)))
    assert any("a<b&c" in (word or "") for word in words(picture))


def test_many_factors_have_many_colours():
    factors = [PermutationFactor(str(k), 2, ()) for k in range(60)]
    colours = colours_of(factors)
    assert len(set(colours.values())) == 60
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours.values())
    assert PINNED not in colours.values()


def test_the_same_network_gives_the_same_bytes():
    module, example = models.mlp(6, (5, 4), 3), torch.zeros(1, 6)
    group = discover(module, example)
    assert draw(module, example, group) == draw(module, example, group)
