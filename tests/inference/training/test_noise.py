import pytest
import torch

from coset.bayes import Categorical, GaussianNoise
from coset.inference.training.noise import Noise, half_squares, is_learnt

pytestmark = pytest.mark.usefixtures("double")


def test_losses_are_those_of_the_likelihood():
    """Both the loss and its gradient, scaled by the variance, against the density itself."""
    outputs = torch.randn(7, 3, requires_grad=True)
    targets = torch.randn(7, 3)
    half = -half_squares(outputs, targets, likelihood=GaussianNoise()).mean()
    noise = Noise(torch.tensor([0.49]), outputs=3, floor=1e-9)
    expected = -GaussianNoise(0.7).log_prob(outputs, targets).mean()
    torch.testing.assert_close(noise.losses(half.view(1))[0], expected)
    (ours,) = torch.autograd.grad(half / 0.49, outputs, retain_graph=True)
    (reference,) = torch.autograd.grad(expected, outputs)
    torch.testing.assert_close(ours, reference)


def test_the_update_has_the_lowest_loss():
    half = torch.tensor([1.3, 0.2])
    noise = Noise(torch.ones(2), outputs=2, floor=1e-9).updated(half)
    lowest = noise.losses(half)
    for factor in (0.9, 1.1):
        other = Noise(noise.variance * factor, 2, 1e-9)
        assert (other.losses(half) > lowest).all()


def test_a_perfect_fit_keeps_a_positive_noise():
    noise = Noise.first(torch.tensor([2.0, 8.0]), outputs=1)
    assert (noise.updated(torch.zeros(2)).variance > 0).all()
    assert (Noise.first(torch.zeros(1), outputs=1).variance > 0).all()


def test_only_gaussian_noise_of_unknown_size_is_learnt():
    assert is_learnt(GaussianNoise())
    assert not is_learnt(GaussianNoise(1.0))
    assert not is_learnt(Categorical())
