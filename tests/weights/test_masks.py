"""Masks in the weights, against dropout written out by hand."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from coset.errors import CosetError
from coset.weights import functionalise
from coset.weights.masks import PREFIX, ROWS, dropout_off, dropout_sites, split_masks, with_masks


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.25), nn.Linear(4, 2))


def test_a_mask_multiplies_where_the_network_would_drop(double):
    module = network()
    lifted, inputs = functionalise(module), torch.randn(5, 3)
    mask = torch.tensor([[1.0, 0.0, 2.0, 1.0]])
    outputs = lifted.apply({**lifted.weights, f"{PREFIX}0": mask}, inputs)
    wanted = module[3](module[1](module[0](inputs)) * mask)
    torch.testing.assert_close(outputs, wanted.detach())
    torch.testing.assert_close(lifted.apply(lifted.weights, inputs), module.eval()(inputs).detach())


def test_masks_differ_between_members_under_vmap(double, generator):
    lifted, inputs = functionalise(network()), torch.randn(5, 3)
    masks = torch.rand(6, 1, 4, generator=generator)
    stack = {name: tensor.expand(6, *tensor.shape) for name, tensor in lifted.weights.items()}
    together = vmap(lifted.apply, in_dims=(0, None))({**stack, f"{PREFIX}0": masks}, inputs)
    for number in range(6):
        alone = lifted.apply({**lifted.weights, f"{PREFIX}0": masks[number]}, inputs)
        torch.testing.assert_close(together[number], alone)


def test_rows_have_masks_of_their_own_with_the_right_rate(generator):
    # u + i a is uniform for every row i, and pairs of rows are independent: P(both kept) = 0.49.
    # 200,000 units: standard error 0.0011, five of them allowed (false alarms: 1 in 1.7 million)
    numbers = torch.rand(2, 1, 200_000, generator=generator, dtype=torch.float64)
    with with_masks({f"{ROWS}0": numbers}):
        dropped = functional.dropout(torch.ones(7, 200_000, dtype=torch.float64), 0.3, False)
    kept = dropped > 0
    assert float((kept.double().mean(1) - 0.7).abs().max()) < 0.0055
    assert abs(float((kept[1] & kept[5]).double().mean()) - 0.49) < 0.0055
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / 0.7))


def test_sites_know_the_data_axis_and_whole_channels():
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Dropout2d(0.1), nn.Dropout(0.2), nn.Dropout(0.0), nn.Flatten()
    ).eval()
    first, second = dropout_sites(module, torch.zeros(2, 1, 5, 5), torch.zeros(3, 1, 5, 5))
    assert (first.rate, first.shape) == (0.1, (1, 3, 1, 1))
    assert (second.rate, second.shape) == (0.2, (1, 3, 3, 3))


def test_dropout_that_is_off_drops_nothing_in_training_mode():
    module = network().train()
    with dropout_off():
        first, second = module(torch.ones(2, 3)), module(torch.ones(2, 3))
    assert torch.equal(first, second)


def test_a_layer_called_dropout_is_no_mask():
    module = nn.Module()
    module.dropout = nn.Sequential(nn.Linear(1, 1))
    proper, masks = split_masks(dict(module.named_parameters()))
    assert set(proper) == {"dropout.0.weight", "dropout.0.bias"}
    assert not masks


def test_masks_that_do_not_fit_are_refused():
    lifted = functionalise(network())
    with pytest.raises(CosetError, match="needed a shape that its mask"):
        lifted.apply({**lifted.weights, f"{PREFIX}0": torch.ones(1, 3)}, torch.ones(2, 3))
    with pytest.raises(CosetError, match="one mask for each"):
        lifted.apply({**lifted.weights, f"{PREFIX}5": torch.ones(1, 4)}, torch.ones(2, 3))
