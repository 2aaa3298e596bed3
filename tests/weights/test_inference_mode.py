import pytest
import torch

from coset.weights.inference_mode import outside_inference_mode


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_without_inference_mode_all_stays_as_it_is(mode):
    with mode():
        enabled = torch.is_grad_enabled()
        with outside_inference_mode():
            assert torch.is_grad_enabled() == enabled


def test_the_mode_comes_back_after():
    with torch.inference_mode():
        with outside_inference_mode():
            leaf = torch.ones(1, requires_grad=True)
            with torch.enable_grad():
                (2 * leaf).sum().backward()
            assert leaf.grad.item() == 2
        assert torch.is_inference_mode_enabled()
