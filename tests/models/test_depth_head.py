import math

import pytest
import torch
from torch import nn

from coset import HeteroscedasticGaussian, discover, match, weights_of
from coset.errors import CosetError
from coset.models import depth_head, unet


def test_means_and_log_variances_by_hand():
    head = depth_head(2.0, 0.5)
    inputs = torch.tensor([[[[1.0]], [[2.0]]]])
    mean, log_variance = head(inputs).flatten().tolist()
    assert mean == pytest.approx(2.5)
    assert log_variance == pytest.approx(2 * math.log(0.5) + 4 * math.tanh(0.5))


def test_no_output_claims_a_variance_of_zero_or_infinity():
    wild = 1e30 * torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 2, 1, 1)
    variance = HeteroscedasticGaussian().noise_variance(depth_head()(wild))
    assert variance.flatten().tolist() == pytest.approx([math.exp(-4), math.exp(4)])


def test_units_below_the_head_are_found_and_matched(generator):
    model = nn.Sequential(
        unet(in_channels=3, classes=2, widths=(4, 6), normalisation="none"), depth_head(1.0, 0.7)
    )
    example = torch.rand(1, 3, 8, 8, generator=generator)
    group = discover(model, example)
    assert sorted(s.size for s in group.permutations) == [4, 4, 4, 4, 4, 6, 6]
    weights = weights_of(model)
    moved = group.act(group.sample(generator=generator), weights)
    found = match(group, moved, to=weights)
    for name, tensor in found.weights.items():
        assert torch.allclose(tensor, weights[name], atol=1e-4), name


def test_what_is_no_scale_is_refused():
    for mean, deviation in ((math.nan, 1.0), (0.0, 0.0), (0.0, math.inf)):
        with pytest.raises(CosetError, match="deviation"):
            depth_head(mean, deviation)
