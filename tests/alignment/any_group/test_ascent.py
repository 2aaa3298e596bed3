"""Steps of the general ascent, one by one, against the inner product of all weights."""

import pytest
import torch
from tests.alignment.reference import group_of, inner, random_weights
from torch import nn

from coset import weights_of
from coset.alignment.any_group.ascent import Ascent
from coset.alignment.plans import make_plans


class GroupedResidual(nn.Module):
    """Two groups of four channels that a grouped layer both reads and writes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 1, groups=2)
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        x = self.first(x).tanh()
        return self.last(x + self.grouped(x).tanh())


class TwoGroupings(nn.Module):
    """Units ``(a, b, c)`` that one layer reads by ``a`` and another by ``b``, in outer groups."""

    def __init__(self, order):
        super().__init__()
        self.units = f"o{order}"
        size = {"x": 3, "o": 2, "a": 2, "b": 3, "c": 3, "i": 2, "y": 2}

        def drawn(axes):
            return nn.Parameter(torch.randn([size[axis] for axis in axes]))

        self.first, self.second = drawn("xoi"), drawn(f"io{order}")
        self.by_a, self.by_b = drawn(self.units), drawn(self.units)
        self.last_a, self.last_b = drawn("oay"), drawn("oby")

    def forward(self, x):
        units = self.units
        x = torch.einsum("nx,xoi->noi", x, self.first).tanh()
        x = torch.einsum(f"noi,i{units}->n{units}", x, self.second).tanh()
        a = torch.einsum(f"n{units},{units}->noa", x, self.by_a).relu()
        b = torch.einsum(f"n{units},{units}->nob", x, self.by_b).relu()
        last = torch.einsum("noa,oay->ny", a, self.last_a)
        return last + torch.einsum("nob,oby->ny", b, self.last_b)


def ascent_of(module, shape, generator):
    group = group_of(module.double(), *shape)
    to, own = (random_weights(weights_of(module), generator) for _ in range(2))
    return Ascent(group, make_plans(group), to, own, group.identity()), own


@pytest.mark.parametrize("seed", range(10))
def test_no_step_lowers_the_objective_where_a_layer_reads_and_writes_groups(seed):
    """Units inside groups act twice on the layer: what a move promises is not what it gains."""
    run, _ = ascent_of(GroupedResidual(), (2, 4, 4), torch.Generator().manual_seed(seed))
    for name in [*run.plans] * 3:
        before = inner(run.to, run.aligned)
        run.step(name)
        assert inner(run.to, run.aligned) >= before


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
@pytest.mark.parametrize("seed", range(3))
def test_moves_of_units_under_two_factors_gain_what_they_promise(order, seed):
    """Both groupings are inside two outer groups, and units have signs."""
    torch.manual_seed(seed)
    run, own = ascent_of(TwoGroupings(order), (3,), torch.Generator().manual_seed(seed))
    assert any(len(plan.factor.within) == 3 for plan in run.plans.values())
    for name in [*run.plans] * 3:
        if not run.plans[name].curved:
            before = inner(run.to, run.aligned)
            promised = max(move.gained for move in run._moves(run.plans[name]).values())
            run.step(name)
            assert inner(run.to, run.aligned) - before == pytest.approx(max(promised, 0), abs=1e-8)
    torch.testing.assert_close(run.group.act(run.element, own), run.aligned)
