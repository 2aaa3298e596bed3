"""KFAC where it is exact, and its correction everywhere."""

import copy

import pytest
import torch
from curvature_networks import NETWORKS, Scaled, brute_curvature, build, measure, problem_of
from torch import nn

from coset import KFAC, Categorical, CosetError, GaussianNoise
from coset.curvature.measure import Cuts
from coset.linalg import BlockDiagonal, Kronecker, dense

pytestmark = pytest.mark.usefixtures("double")


def blocks(problem, **options):
    network = problem.network
    return KFAC(**options).build(problem, network.weights, network.layout)


def expected_block(problem, inputs, likelihood, names):
    """The exact block, in the order of the block's own vector."""
    layout = problem.network.layout
    matrix = brute_curvature(problem.network, layout, inputs, likelihood)
    found = blocks(problem)
    order = found.operator.order.split(found.operator.sizes)[found.layers.index(names)]
    return matrix[order][:, order]


@pytest.mark.parametrize("corrected", [True, False])
def test_exact_for_deep_linear_networks(corrected):
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))
    inputs = torch.randn(11, 3)
    problem = problem_of(module, inputs, GaussianNoise(0.7))
    found = blocks(problem, corrected=corrected)
    for block, names in zip(found.operator.blocks, found.layers, strict=True):
        exact = expected_block(problem, inputs, GaussianNoise(0.7), names)
        torch.testing.assert_close(dense(block, like=inputs), exact)


def test_a_single_layer_is_the_full_matrix():
    module, inputs = nn.Linear(4, 3), torch.randn(9, 4)
    problem = problem_of(module, inputs, GaussianNoise(1.0))
    full = brute_curvature(problem.network, problem.network.layout, inputs, GaussianNoise(1.0))
    torch.testing.assert_close(measure(KFAC(corrected=False), problem), full)


class Pooled(nn.Module):
    """Linear convolutions, positions averaged at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 3, 2, bias=False), nn.Linear(3, 2, bias=False)

    def forward(self, x):
        return self.last(self.first(x).mean((2, 3)))


def test_reduce_is_exact_where_positions_are_averaged():
    inputs = torch.randn(7, 2, 4, 4)
    problem = problem_of(Pooled(), inputs, GaussianNoise(1.0))
    found = blocks(problem, approximation="reduce", corrected=False)
    for block, names in zip(found.operator.blocks, found.layers, strict=True):
        exact = expected_block(problem, inputs, GaussianNoise(1.0), names)
        torch.testing.assert_close(dense(block, like=inputs), exact)


def test_expand_is_exact_where_each_position_has_its_own_loss():
    module = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.Conv2d(3, 2, 1, bias=False))
    inputs = torch.randn(6, 2, 2, 2)
    problem = problem_of(module, inputs, GaussianNoise(1.0))
    found = blocks(problem, approximation="expand", corrected=False)
    flat = inputs.movedim(1, -1).flatten(0, 2)[:, :, None, None]
    rows = problem_of(module, flat, GaussianNoise(1.0))  # every pixel an example
    for block, names in zip(found.operator.blocks, found.layers, strict=True):
        network, layout = rows.network, rows.network.layout

        def apply(given, network=network):
            return network.apply(given, flat)[:, :, 0, 0]

        jacobian = torch.func.jacrev(apply)(layout.restrict(network.weights))
        own = jacobian[names[0]].flatten(2)
        exact = torch.einsum("ncp,ncq->pq", own, own)
        torch.testing.assert_close(dense(block, like=inputs), exact)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_the_correction_is_the_exact_diagonal_in_the_eigenbasis(name, approximation):
    module, inputs = build(name, 6)
    problem = problem_of(module, inputs)
    matrix = brute_curvature(problem.network, problem.network.layout, inputs, Categorical())
    found = blocks(problem, approximation=approximation)
    orders = found.operator.order.split(found.operator.sizes)
    for block, order in zip(found.operator.blocks, orders, strict=True):
        size = block.table.numel()
        basis = block.backward(torch.eye(size).reshape(*block.table.shape, size))
        own = basis.mT @ matrix[order][:, order] @ basis
        torch.testing.assert_close(block.table.flatten(), own.diagonal(), atol=1e-10, rtol=1e-8)
        torch.testing.assert_close(  # so the trace is exact, which plain KFAC's is not
            block.table.sum(), matrix[order, order].sum()
        )


def test_batches_do_not_matter():
    module, inputs = build("convolutions", 6)
    whole = measure(KFAC(), problem_of(module, inputs, batch_size=6))
    parts = measure(KFAC(), problem_of(module, inputs, batch_size=4))
    torch.testing.assert_close(whole, parts)


class Normed(nn.Module):
    """A norm takes sums over positions away, and the second layer has more inputs than data."""

    def __init__(self, groups):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3), nn.GroupNorm(groups, 6)
        self.second, self.last = nn.Conv2d(6, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.second(self.norm(self.first(x)).relu()).relu().mean((2, 3)))


@pytest.mark.parametrize("rows", [frozenset(), frozenset({"first.weight"})], ids=["", "rows"])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_batches_do_not_choose_eigenvectors_of_sums_that_vanish(groups, rows):
    module, inputs = Normed(groups), torch.randn(12, 2, 6, 6)
    cuts = Cuts(separate=rows, rows=rows)
    whole, *parts = (
        measure(KFAC("reduce"), problem_of(module, inputs, batch_size=size), cuts=cuts)
        for size in (12, 5, 1)
    )
    for part in parts:
        torch.testing.assert_close(part, whole, rtol=1e-8, atol=1e-10)


def test_eigenvectors_of_sums_that_vanish_follow_the_units():
    module, inputs = Normed(2), torch.randn(12, 2, 6, 6)
    order = torch.tensor([4, 3, 5, 0, 2, 1])  # the two groups exchanged, and units in each
    moved = copy.deepcopy(module)
    for tensor in (*moved.first.parameters(), *moved.norm.parameters()):
        tensor.data = tensor.data[order]
    moved.second.weight.data = moved.second.weight.data[:, order]
    found = {}
    for name, each in (("plain", module), ("moved", moved)):
        problem = problem_of(each, inputs)
        matrix, layout = measure(KFAC("reduce"), problem), problem.network.layout
        at = layout.slices["first.weight"]
        found[name] = matrix[at, at].diagonal().reshape(6, -1)
    torch.testing.assert_close(found["moved"], found["plain"][order], rtol=1e-8, atol=1e-10)


def test_only_the_correction_is_measured_again():
    module, inputs = build("mlp", 6)
    problem = problem_of(module, inputs)
    first = blocks(problem)
    again = KFAC().build(
        problem,
        problem.network.weights,
        problem.network.layout,
        outputs=torch.zeros(6, 3),
        previous=first,
    )
    for old, new in zip(first.operator.blocks, again.operator.blocks, strict=True):
        assert new.left is old.left
        assert not torch.allclose(new.table, old.table)


def test_weights_and_bias_may_be_kept_apart():
    module, inputs = build("mlp", 6)
    problem = problem_of(module, inputs)
    network = problem.network
    found = KFAC().build(
        problem, network.weights, network.layout, cuts=Cuts(separate=frozenset({"0.weight"}))
    )
    assert found.layers == (("0.weight",), ("0.bias",), ("2.weight", "2.bias"))


@pytest.mark.parametrize("corrected", [True, False])
def test_rows_of_any_scale_share_a_basis(corrected):
    """With rows cut apart, rescaling outputs of a layer rescales its curvature, nothing else."""
    module, inputs = build("mlp", 8)
    factors = torch.tensor([0.1, 1.0, 3.0, 0.5, 20.0])
    found = []
    for scale in (torch.ones(5), factors):
        with torch.no_grad():
            changed = copy.deepcopy(module)
            changed[0].weight.mul_(scale.unsqueeze(1))
            changed[0].bias.mul_(scale)
            changed[2].weight.div_(scale)
        problem = problem_of(changed, inputs)
        operator = (
            KFAC(corrected=corrected)
            .build(
                problem,
                problem.network.weights,
                problem.network.layout,
                cuts=Cuts(rows=frozenset({"0.weight"})),
            )
            .operator.blocks[0]
        )
        each = scale.repeat_interleave(5)
        found.append(dense(operator, like=inputs) * each * each.unsqueeze(1))
    torch.testing.assert_close(found[0], found[1])


def test_groups_of_a_convolution_are_blocks_side_by_side():
    module, inputs = build("convolutions")
    found = blocks(problem_of(module, inputs))
    grouped = found.operator.blocks[found.layers.index(("3.weight", "3.bias"))]
    assert isinstance(found.operator, BlockDiagonal)
    assert isinstance(grouped, Kronecker)
    assert grouped.table.shape == (2, 3, 2 * 4 + 1)


def test_refusals():
    with pytest.raises(CosetError, match="'gain'"):
        measure(KFAC(), problem_of(Scaled(), torch.randn(4, 4)))
    module, inputs = build("mlp")
    with pytest.raises(CosetError, match=r"largest for '.*weight'.*DiagonalOnly"):
        measure(KFAC(memory=100), problem_of(module, inputs))
    with pytest.raises(CosetError, match="approximation"):
        KFAC(approximation="reduced")
