import pytest
import torch
from torch import nn

from coset.errors import CosetError
from coset.models.normalisation import (
    NORMALISATIONS,
    FilterResponseNorm,
    ThresholdedLinearUnit,
    group_norm,
    normalised_convolution,
    thresholded_filter_response_norm,
)


def randomised(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module.double()


def test_filter_response_norm_is_its_formula_pixel_by_pixel():
    norm = randomised(FilterResponseNorm(3, epsilon=1e-3))
    inputs = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    outputs = norm(inputs)
    for n in range(2):
        for c in range(3):
            channel = inputs[n, c].tolist()
            mean_square = sum(x * x for row in channel for x in row) / 20
            for i in range(4):
                for j in range(5):
                    expected = (
                        norm.weight[c] * channel[i][j] / (mean_square + 1e-3) ** 0.5 + norm.bias[c]
                    )
                    torch.testing.assert_close(outputs[n, c, i, j], expected)


def test_filter_response_norm_is_group_norm_of_centred_channels():
    """On channels of mean zero the mean square is the variance."""
    norm = randomised(FilterResponseNorm(3, epsilon=1e-5))
    theirs = nn.GroupNorm(3, 3, eps=1e-5, dtype=torch.float64)
    theirs.weight, theirs.bias = norm.weight, norm.bias
    inputs = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    inputs = inputs - inputs.mean((2, 3), keepdim=True)
    torch.testing.assert_close(norm(inputs), theirs(inputs))


def test_filter_response_norm_forgets_the_scale_of_a_channel():
    norm = FilterResponseNorm(2, epsilon=0.0).double()
    inputs = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(norm(7.0 * inputs), norm(inputs))


def test_the_thresholded_norm_is_the_larger_of_norm_and_threshold():
    both = randomised(thresholded_filter_response_norm(3))
    norm, unit = both
    assert isinstance(unit, ThresholdedLinearUnit)
    inputs = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    expected = torch.where(
        norm(inputs) > unit.threshold.view(3, 1, 1), norm(inputs), unit.threshold.view(3, 1, 1)
    )
    torch.testing.assert_close(both(inputs), expected)


def test_the_start_of_the_thresholded_unit_is_a_relu():
    inputs = torch.randn(2, 3, 4, 4)
    assert torch.equal(ThresholdedLinearUnit(3)(inputs), inputs.relu())


@pytest.mark.parametrize(("channels", "groups"), [(16, 8), (12, 4), (3, 1), (8, 8)])
def test_groups_divide_the_channels(channels, groups):
    assert group_norm(channels).num_groups == groups


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_the_convolution_before_a_norm_has_no_bias(name):
    convolution, norm = normalised_convolution(2, 8, NORMALISATIONS[name], stride=2)
    assert (convolution.bias is not None) == (name == "none")
    assert norm(convolution(torch.randn(2, 2, 5, 5))).shape == (2, 8, 3, 3)


@pytest.mark.parametrize("build", [FilterResponseNorm, ThresholdedLinearUnit, group_norm])
def test_no_channels_are_refused(build):
    with pytest.raises(CosetError, match="channels=0"):
        build(0)
