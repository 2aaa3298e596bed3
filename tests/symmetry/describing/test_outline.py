"""What a picture shows of a network: layers, junctions, and the factors along each axis."""

import torch
from tests.symmetry.cases import CASES
from torch import nn

from coset import PermutationFactor, Site, SymmetryGroup, discover, models
from coset.symmetry.describing.outline import Segment, axis_segments, outline
from coset.symmetry.tracing import trace

BY_NAME = {case.name: case for case in CASES}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = self.stem(x)
        x = x + self.inner(x.relu()) * self.gain
        return self.head(x.tanh())


def named(plan):
    names = [box.name for box in plan.boxes]
    return names, [(names[u], names[v]) for u, v in plan.edges]


def test_a_residual_network():
    """Activations disappear, the sum is a junction, and the skip goes around the branch."""
    names, edges = named(outline(trace(Residual(), torch.zeros(1, 3))))
    assert names == ["x", "stem", "inner", "gain", "+", "head", "output"]
    assert edges == [
        ("x", "stem"),
        ("stem", "inner"),
        ("inner", "gain"),
        ("stem", "+"),
        ("gain", "+"),
        ("+", "head"),
        ("head", "output"),
    ]


def test_tensors_stand_in_the_box_of_their_module():
    plan = outline(trace(Residual(), torch.zeros(1, 3)))
    assert plan.boxes[1].tensors == ("stem.weight", "stem.bias")
    assert plan.boxes[3].tensors == ("gain",)


def test_recurrent_layers_are_one_box():
    case = BY_NAME["lstm"]
    names, _ = named(outline(trace(case.factory(), case.example())))
    assert len(names) <= 6


def test_every_residual_block_has_one_junction():
    plan = outline(trace(models.resnet20(), torch.zeros(1, 3, 32, 32)))
    junctions = [i for i, box in enumerate(plan.boxes) if box.kind == "junction"]
    assert len(junctions) == 9
    assert all(sum(v == i for _, v in plan.edges) == 2 for i in junctions)


def test_segments_of_a_fused_axis():
    """Two fused parts of six rows, each three heads of two units; only the second's units move."""
    heads = tuple(Site("w", ((0, 1, start, 6),), (3, 2, 5), (0,)) for start in (0, 6))
    units = (Site("w", ((0, 1, 6, 6),), (3, 2, 5), (1,), (0,)),)
    group = SymmetryGroup(
        (PermutationFactor("heads", 3, heads), PermutationFactor("units", 2, units, ("heads",))),
        shapes={"w": (14, 5)},
    )
    rows, columns = axis_segments(group, "w")
    assert rows == [
        Segment(6, (3, 2), ("heads", None)),
        Segment(6, (3, 2), ("heads", "units")),
        Segment(2, (2,), (None,)),
    ]
    assert columns == [Segment(5, (5,), (None,))]


def test_segments_cover_every_axis():
    case = BY_NAME["attention_grouped_queries"]
    group = discover(case.factory(), case.example())
    for tensor, shape in group.shapes.items():
        axes = axis_segments(group, tensor)
        assert [sum(piece.length for piece in axis) for axis in axes] == list(shape)
