import pytest
import torch
from tests.alignment.reference import group_of, network, permutations_only, random_weights
from tests.symmetry.cases import CASES

from coset import CosetError, discover, weights_of
from coset.alignment.by_sinkhorn import BySinkhorn, sinkhorn
from coset.alignment.match import match


def test_soft_permutations_are_doubly_stochastic(generator):
    soft = sinkhorn(torch.randn(3, 5, 5, generator=generator).double(), 200)
    torch.testing.assert_close(soft.sum(-1), torch.ones(3, 5, dtype=torch.float64))
    torch.testing.assert_close(soft.sum(-2), torch.ones(3, 5, dtype=torch.float64))


def test_a_planted_permutation_is_found(generator):
    net = network(5, 8, 7, 3)
    group = group_of(net, 5)
    own = random_weights(weights_of(net), generator)
    element = permutations_only(group, group.sample(generator=generator))
    result = match(group, group.act(element, own), to=own, by=BySinkhorn())
    wanted = group.inverse(element).permutations
    assert all(torch.equal(result.element.permutations[n], t) for n, t in wanted.items())


@pytest.mark.parametrize(("size", "other"), [(1e-21, 1e-21), (1e-25, 1e-25), (1e-21, 1.0)])
def test_products_and_squares_that_single_precision_loses(size, other, generator):
    net = network(5, 8, 7, 3)
    group = group_of(net, 5)
    own = {n: w.float() for n, w in random_weights(weights_of(net), generator).items()}
    element = permutations_only(group, group.sample(generator=generator))
    moved = group.act(element, {n: other * w for n, w in own.items()})
    result = match(group, moved, to={n: size * w for n, w in own.items()}, by=BySinkhorn())
    wanted = group.inverse(element).permutations
    assert all(torch.equal(result.element.permutations[n], t) for n, t in wanted.items())


def test_heads_and_fused_tensors_keep_the_function():
    case = next(case for case in CASES if case.name == "attention_chunked")
    module = case.factory().double()
    group = discover(module, case.example().double())
    own = weights_of(module)
    element = permutations_only(group, group.sample(generator=torch.Generator().manual_seed(0)))
    moved = group.act(element, own)
    result = match(group, moved, to=own, by=BySinkhorn(steps=20))
    torch.testing.assert_close(group.act(result.element, moved), result.weights)
    torch.testing.assert_close(
        sum(w.square().sum() for w in result.weights.values()),
        sum(w.square().sum() for w in own.values()),
    )


@pytest.mark.parametrize(
    "name",
    [
        "relu_mlp",
        "tanh_mlp",
        "layer_norm_mlp",
        "batch_norm_convnet",
        "group_norm_convnet",
        "gru",
        "attention_chunked",
        "encoder_norm_first",
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_twins_under_the_whole_group_come_back(name, seed):
    """Permutations, signs of units and of layers, and positive scales."""
    case = next(case for case in CASES if case.name == name)
    torch.manual_seed(0)
    module = case.factory().double()
    group = discover(module, case.example().double())
    own = random_weights(weights_of(module), torch.Generator().manual_seed(5))
    element = group.sample(generator=torch.Generator().manual_seed(seed))
    result = match(group, group.act(element, own), to=own, by=BySinkhorn())
    assert result.squared_distance < 1e-16 * sum(float(w.square().sum()) for w in own.values())


def test_impossible_options_are_refused():
    with pytest.raises(CosetError, match="temperature=0"):
        BySinkhorn(temperature=0.0)
