import numpy as np
import pytest
from torch import nn

from coset.errors import CosetError
from coset.models.choices import ACTIVATIONS, choose, dropout_of, require_lists
from coset.models.resnet import STEMS


def test_a_value_is_its_own_choice():
    assert choose("activation", nn.ELU, ACTIVATIONS) is nn.ELU
    assert choose("activation", "silu", ACTIVATIONS) is nn.SiLU


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(CosetError, match="got activation 'swish'; needed one of relu, silu"):
        choose("activation", "swish", ACTIVATIONS)


@pytest.mark.parametrize("value", [None, 3, nn.ReLU(), {"relu": nn.ReLU}])
def test_what_builds_nothing_is_no_choice(value):
    with pytest.raises(CosetError, match=r"got activation .*; needed one of relu, silu"):
        choose("activation", value, ACTIVATIONS)
    with pytest.raises(CosetError, match=r"got stem .*; needed one of cifar"):
        choose("stem", value, STEMS)


def test_a_module_that_is_built_already_is_told_apart():
    with pytest.raises(CosetError, match="write ELU without brackets"):
        choose("activation", nn.ELU(), ACTIVATIONS)


@pytest.mark.parametrize(
    "sizes",
    [0, -1, 2.0, 128, None, "3", "ab", (1, 0), [2, 1.5], (True,), ("3",), np.array([2, 2])],
)
def test_sizes_are_whole_and_positive(sizes):
    with pytest.raises(CosetError, match="got sizes="):
        require_lists(good=(1,), sizes=sizes)


def test_good_sizes_pass():
    assert require_lists(many=(1, 2), none=(), row=range(1, 3), other=[np.int64(4)]) is None


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan"), None, "0.5"])
def test_rates_lie_between_zero_and_one(rate):
    with pytest.raises(CosetError, match="got dropout="):
        dropout_of(rate)


def test_rate_zero_is_the_identity():
    assert isinstance(dropout_of(0.0), nn.Identity)
    assert isinstance(dropout_of(0.3, nn.Dropout2d), nn.Dropout2d)
