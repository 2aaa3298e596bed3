import pytest
from torch import nn

from coset.errors import CosetError
from coset.models.choices import ACTIVATIONS, choose, dropout_of, require_sizes


def test_a_value_is_its_own_choice():
    assert choose("activation", nn.ELU, ACTIVATIONS) is nn.ELU
    assert choose("activation", "silu", ACTIVATIONS) is nn.SiLU


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(CosetError, match="got activation 'swish'; needed one of relu, silu"):
        choose("activation", "swish", ACTIVATIONS)


@pytest.mark.parametrize("size", [0, -1, 2.0, "3", (1, 0), [2, 1.5], "ab"])
def test_sizes_are_whole_and_positive(size):
    with pytest.raises(CosetError, match="got size="):
        require_sizes(good=1, size=size)


def test_good_sizes_pass():
    assert require_sizes(one=1, many=(1, 2), none=()) is None


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_rates_lie_between_zero_and_one(rate):
    with pytest.raises(CosetError, match="got dropout="):
        dropout_of(rate)


def test_rate_zero_is_the_identity():
    assert isinstance(dropout_of(0.0), nn.Identity)
    assert isinstance(dropout_of(0.3, nn.Dropout2d), nn.Dropout2d)
