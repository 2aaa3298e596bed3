import pytest
import torch

from coset.weights.denormals import denormals_as_zeros


def tiny() -> float:
    return (torch.tensor([1e-40]) * 1).item()


def test_the_setting_is_put_back_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), denormals_as_zeros():
        raise RuntimeError("inside")
    assert tiny() > 0


def test_what_somebody_else_has_set_stays():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        with denormals_as_zeros():
            assert tiny() == 0
        assert tiny() == 0
    finally:
        torch.set_flush_denormal(False)
