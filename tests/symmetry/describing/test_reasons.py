"""Chains of ties, and the sentences made from them."""

import torch
from torch import nn

from coset import discover
from coset.symmetry.analysis.atoms import Atoms, Sum


def refusal(atoms, atom):
    chains = atoms.chains()
    chain = chains.nearest(atom, chains.refused.__contains__)
    return None if chain is None else [why for _, why in chain]


def test_the_shortest_chain_is_found():
    """a - b - c - d by hand, and a shortcut a - d: the pin at d is one step away."""
    atoms = Atoms()
    a, b, c, d = (atoms.new(4, f"parameter {name} axis 0") for name in "abcd")
    atoms.union(a, b, "first")
    atoms.union(b, c, "second")
    atoms.union(c, d, "third")
    assert refusal(atoms, a) is None
    atoms.pin(d, "an output")
    assert refusal(atoms, b) is not None
    atoms.union(a, d, "shortcut")
    chains = atoms.chains()
    assert [why for _, why in chains.nearest(b, lambda atom: atom == d)] == ["first", "shortcut"]


def test_a_part_is_refused_with_the_whole_but_not_the_whole_with_a_part():
    atoms = Atoms()
    whole, other = atoms.new(6, "parameter w axis 0"), atoms.new(6, "parameter v axis 0")
    atoms.union(whole, other, "add")
    atoms.split(whole, (2, 4), "slice")
    expansion = atoms.expansion(other)
    assert isinstance(expansion, Sum)
    first, second = expansion.pieces
    atoms.pin(second, "an order")
    assert refusal(atoms, second) == []
    assert refusal(atoms, first) is None
    assert refusal(atoms, whole) is None
    atoms.pin(other, "an input")
    assert atoms.pin_of(first) == "an input"
    assert refusal(atoms, first) == []


def test_parts_of_something_refused_lead_back_to_it():
    atoms = Atoms()
    inputs = atoms.new(6, "input x", "an input")
    rows = atoms.new(6, "parameter w axis 1")
    atoms.union(inputs, rows, "linear")
    atoms.refine(rows, 2, "view")
    inner = atoms.expansion(rows).inner
    assert atoms.pin_of(inner) == "an input"
    assert refusal(atoms, inner) == ["view"]
    assert refusal(atoms, rows) == ["linear"]


def test_parts_of_a_tensor_that_are_not_read_are_told():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 6, bias=False)
            self.head = nn.Linear(2, 1)

        def forward(self, x):
            return self.head(self.linear(x)[:, :2].relu())

    told = discover(Half(), torch.zeros(1, 3)).explain("linear.weight")
    assert "axis 0 [0:2]: free: 2 units" in told
    assert "axis 0 [2:6]: never read by the output" in told


def test_copies_under_a_refused_axis_are_counted():
    """Each of the three heads has its own slope, so heads stay, and each has units of its own."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(4, 6, bias=False)
            self.down = nn.Linear(6, 2, bias=False)
            self.register_buffer("slopes", torch.tensor([1.0, 2.0, 3.0]), persistent=False)

        def forward(self, x):
            heads = self.up(x).unflatten(-1, (3, 2)).tanh()
            return self.down((heads * self.slopes[:, None]).flatten(-2))

    group = discover(Heads(), torch.zeros(1, 4))
    assert [factor.size for factor in group.permutations] == [2, 2, 2]
    told = group.explain("up.weight")
    assert "digit 0 of 3 × 2: pinned: a constant that varies" in told
    assert "and 2 more of its kind; tied to down.weight axis 1 by linear" in told
