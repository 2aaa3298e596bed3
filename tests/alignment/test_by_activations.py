"""Activation matching: planted elements, moments against numpy, read points of known networks."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from tests.alignment.reference import group_of, network, permutations_only, random_weights
from tests.symmetry.cases import CASES
from torch import nn

from coset import CosetError, discover, weights_of
from coset.alignment.by_activations import ByActivations
from coset.alignment.match import match
from coset.alignment.read_points import find_read_points
from coset.symmetry.tracing import trace

BY_NAME = {case.name: case for case in CASES}
PLANTED = [
    "relu_mlp",
    "tanh_mlp",
    "residual_stream",
    "batch_norm_convnet",
    "flatten_after_pooling",
    "attention_chunked",
    "family_resnet_batch_relu",
    # signs that flip some values of a unit and not others, or none, or whole layers
    "gru",
    "lstm",
    "square_mlp",
    "rms_norm_mlp",
    "group_norm_convnet",
    "encoder_norm_first",
    "family_unet",
    "attention_with_slopes",  # where no activation shows anything
    # signs of a stream, for which those of its norms make up in all that is read
    "family_vision_transformer",
    "convnext",
]


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("score", ["correlation", "inner"])
def test_planted_elements_are_undone(name, score):
    case = BY_NAME[name]
    module = case.factory().double()
    example = case.example()
    shape = (64, *example.shape[1:])
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    group = discover(module, example.double())
    own = weights_of(module)
    element = group.sample(generator=torch.Generator().manual_seed(1))
    moved = group.act(element, own)
    if score == "inner":  # inner products depend on scales
        moved = group.act(permutations_only(group, element), own)
    result = match(group, moved, to=own, by=ByActivations(module, inputs, score=score))
    for tensor, wanted in own.items():
        torch.testing.assert_close(result.weights[tensor], wanted, rtol=1e-6, atol=1e-9)


def test_scores_against_numpy(generator):
    """Two unrelated networks: the assignment is that of numpy's correlation matrix."""
    net = network(4, 9, 2, activation=nn.ReLU)
    group = group_of(net, 4)
    a, b = (random_weights(weights_of(net), generator) for _ in range(2))
    inputs = torch.randn(1300, 4, generator=generator).double()
    result = match(group, b, to=a, by=ByActivations(net, inputs))
    used = inputs[: 1300 // 3 * 3]  # three equal chunks
    units = [(used @ w["0.weight"].T + w["0.bias"]).relu().numpy().T for w in (a, b)]
    matrix = np.corrcoef(*units)[:9, 9:]
    wanted = linear_sum_assignment(matrix, maximize=True)[1]
    assert result.element.permutations[group.permutations[0].name].tolist() == wanted.tolist()


def test_read_points_of_a_residual_stream():
    case = BY_NAME["residual_stream"]
    module = case.factory()
    group = discover(module, case.example())
    points = find_read_points(trace(module, case.example()), group)
    found = {name for point in points for name in point.factors}
    assert found == {factor.name for factor in group.permutations}


def test_signs_of_whole_layers_are_told_by_activations():
    """Units of heads have signs of their own, which could make up for that of the layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 20, dropout=0.0, batch_first=True)
    module = nn.Sequential(nn.Linear(5, 16), layer, nn.Linear(16, 4)).double().eval()
    inputs = torch.randn(32, 6, 5, dtype=torch.float64)
    group = discover(module, inputs[:2])
    own = weights_of(module)
    moved = group.act(group.sample(generator=torch.Generator().manual_seed(1)), own)
    result = match(group, moved, to=own, by=ByActivations(module, inputs))
    for tensor, wanted in own.items():
        torch.testing.assert_close(result.weights[tensor], wanted, rtol=1e-6, atol=1e-9)


def test_dead_units_do_not_matter(generator):
    net = network(4, 6, 2, activation=nn.ReLU)
    group = group_of(net, 4)
    own = random_weights(weights_of(net), generator)
    own["0.weight"][2], own["0.bias"][2] = 0.0, -1.0
    inputs = torch.randn(64, 4, generator=generator).double()
    result = match(group, own, to=own, by=ByActivations(net, inputs))
    assert result.transpositions == 0


def test_bad_input_is_refused(generator):
    net = network(4, 6, 2)
    with pytest.raises(CosetError, match="score='cosine'"):
        ByActivations(net, torch.zeros(3, 4), score="cosine")
    own = weights_of(net)
    with pytest.raises(CosetError, match="0 rows"):
        match(group_of(net, 4), own, to=own, by=ByActivations(net, torch.zeros(0, 4).double()))
