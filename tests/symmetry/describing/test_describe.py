"""Groups as text: the table, the explanation of a tensor, its refusals."""

import doctest
import math
import re
from pathlib import Path

import pytest
import torch
from tests.symmetry.cases import CASES
from torch import nn

from coset import (
    CosetError,
    PermutationFactor,
    ScalingFactor,
    Site,
    SymmetryGroup,
    discover,
    draw,
    models,
)
from coset.symmetry.describing.describe import WIDTH, nested, place, site_axes

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def perceptron():
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    return discover(net, torch.zeros(1, 3))


def test_the_table_of_a_perceptron(perceptron):
    """5! · 4! = 2880 permutations, 5 + 4 positive scales; three axes belong to input and output."""
    assert str(perceptron).splitlines() == [
        "factor          kind               size  acts on",
        "-" * 103,
        "0               permutation           5  0.weight axis 0, 0.bias axis 0, 2.weight axis 1",
        "2               permutation           4  2.weight axis 0, 2.bias axis 0, 4.weight axis 1",
        "0.weight:scale  scaling, positive     5  0.weight axis 0 (+1), 0.bias axis 0 (+1), "
        "2.weight axis 1 (-1)",
        "2.weight:scale  scaling, positive     4  2.weight axis 0 (+1), 2.bias axis 0 (+1), "
        "4.weight axis 1 (-1)",
        "",
        f"permutations: 2 factors, log order {math.log(2880):.2f} (about 10^3 elements)",
        "scales: 2 factors (9 positive)",
        "pinned axes: an output (2), an input (1)",
    ]


def test_why_the_axes_of_a_perceptron_are_free_or_pinned(perceptron):
    told = perceptron.explain("2.weight").splitlines()
    assert told[0] == "2.weight (4 × 5)"
    assert told[1].startswith(
        "  axis 0: free: 4 units, moved by 2; tied to 2.bias axis 0 by linear"
    )
    assert told[2].startswith("  axis 1: free: 5 units, moved by 0; tied to 0.weight axis 0 by")
    assert told[3] == "  scaled (positive, power -1) by 0.weight:scale: 5 scales along axis 1"
    assert "axis 1: pinned: an input; tied to the input input by linear" in perceptron.explain(
        "0.weight"
    )
    assert "axis 0: pinned: an output; tied to 4.weight axis 0 by linear" in perceptron.explain(
        "4.bias"
    )


def test_all_tensors_are_explained(perceptron):
    told = perceptron.explain()
    assert all(f"{name} (" in told for name in perceptron.shapes)


@pytest.mark.parametrize("name", ["0.wieght", "nonsense", ""])
def test_unknown_tensors_are_refused_with_close_names(perceptron, name):
    with pytest.raises(CosetError, match="got no tensor called") as caught:
        perceptron.explain(name)
    assert ("did you mean '0.weight'" in str(caught.value)) == (name == "0.wieght")


QUICK = [
    "relu_mlp",
    "residual_stream",
    "batch_norm_convnet",
    "attention_interleaved",
    "attention_grouped_queries",
    "cumulative_sum",
    "unused_parameters",
    "lstm",
]


@pytest.mark.parametrize("name", QUICK)
def test_tables_are_narrow_and_complete(name):
    case = BY_NAME[name]
    group = discover(case.factory(), case.example())
    lines = str(group).splitlines()
    assert max(map(len, lines)) <= WIDTH
    told = sum(" permutation " in line for line in lines)
    assert told == len(group.permutations)
    inside = [f for f in (*group.permutations, *group.scalings) if f.within]
    assert sum(line.startswith("  inside ") for line in lines) == len(inside)


@pytest.mark.parametrize("name", QUICK)
def test_every_axis_has_a_reason(name):
    """Each axis longer than one is either moved by a factor or has a line that says why not."""
    case = BY_NAME[name]
    group = discover(case.factory(), case.example())
    for tensor, shape in group.shapes.items():
        told = group.explain(tensor)
        for axis, size in enumerate(shape):
            if size > 1 and tensor in group.reasons:
                assert f"axis {axis}" in told, (tensor, axis)
    for pin in group.pinned:
        if pin.axis is not None:
            assert "pinned: " in group.explain(pin.tensor)
    for factor in group.permutations:
        for site in factor.sites:
            base = factor.name.partition("[")[0]
            assert f"moved by {base}" in group.explain(site.tensor)


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 4)
        self.unread = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.second(self.first(x).tanh()).tanh()
        return h.cumsum(-1)  # an order among the units


def test_the_chain_names_the_operation_and_the_line():
    group = discover(Recurrence(), torch.zeros(1, 3))
    told = group.explain("second.bias")
    assert "pinned: " in told
    assert "cumsum at test_describe.py:" in told
    assert "tied to second.weight axis 0 by linear at test_describe.py:" in told
    assert "never read by the output (1)" in str(group)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.two = nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(x).relu())


def test_further_names_of_tied_tensors_are_known():
    told = discover(Tied(), torch.zeros(1, 3)).explain("two.weight").splitlines()
    assert told[0] == "two.weight is the same tensor as one.weight"


def test_digits_belong_to_axes():
    fused = Site("w", ((0, 1, 4, 8),), (2, 4, 5), (1,), (0,))
    assert site_axes(fused, (12, 1, 5)) == [[0, 1], [], [2]]
    assert place(fused, (12, 1, 5)) == "w axis 0 [4:12]"
    assert place(Site("w", (), (12, 5), (), power=1), (12, 5)) == "w"
    interleaved = Site("w", ((0, 3, 2, 2),), (3, 2), (1,))
    assert place(interleaved, (12,)) == "w axis 0 [2:4] in each of 3"


def test_nested_factors_follow_their_parents():
    factors = [
        PermutationFactor("a", 2, ()),
        PermutationFactor("b", 2, ()),
        PermutationFactor("c", 2, (), ("a",)),
        PermutationFactor("d", 2, (), ("a", "c")),
    ]
    assert [factor.name for factor in nested(factors)] == ["a", "c", "d", "b"]


def test_long_names_and_small_scalings():
    """A factor of size one is counted below the table, names too long lose their middle."""
    name = "encoder." * 12 + "weight"
    group = SymmetryGroup(
        (PermutationFactor(name, 4, (Site(name, (), (4, 3), (0,)),)),),
        (ScalingFactor("one", 1, (Site(name, (), (4, 3), (), power=1),), "sign"),),
        shapes={name: (4, 3)},
    )
    shown = str(group)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "1 of them has size 1" in shown
    assert "pinned axes: none" in shown
    assert "…" in shown
    assert "free, moved by" in group.explain(name)


def test_an_empty_group_is_told_too():
    group = SymmetryGroup((), shapes={"w": (2,)})
    assert "0 factors" in str(group)
    assert "no permutation factor acts on it" in group.explain("w")


DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["start/symmetries.md", "concepts/symmetry.md"])
def test_the_pages_show_what_is_printed(page):
    text = (DOCS / page).read_text()
    blocks = re.findall(r"```python\n(>>>.*?)```", text, re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    told = []
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=told.append)
    assert result.attempted > 5
    assert result.failed == 0, "".join(told)


def test_the_picture_on_the_page_is_the_one_drawn():
    """Written by ``draw``; when the drawing changes, write the file again."""
    net = models.vision_transformer(
        in_channels=1, image_size=8, patch=4, classes=3, width=8, depth=1, heads=2
    )
    example = torch.zeros(1, 1, 8, 8)
    picture = draw(net, example, discover(net, example))
    assert (DOCS / "_static" / "symmetries.svg").read_text() == picture
