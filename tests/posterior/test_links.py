"""Links against definitions and Monte Carlo."""

import math

import pytest
import torch

from coset import (
    Bernoulli,
    Categorical,
    CosetError,
    GaussianNoise,
    LaplaceBridge,
    Probit,
    SampledSoftmax,
    TopDifference,
)

pytestmark = pytest.mark.usefixtures("double")


def moments(rows=4, classes=3):
    factor = torch.randn(rows, classes, classes)
    return torch.randn(rows, classes), factor @ factor.mT


def test_probit_is_mackays_formula(generator):
    mean, covariance = moments()
    kappa = (1 + math.pi / 8 * covariance.diagonal(dim1=1, dim2=2)).rsqrt()
    found = Probit(projected=False)(mean, covariance, Categorical(), generator=generator)
    torch.testing.assert_close(found, (kappa * mean).softmax(1).unsqueeze(0))


def test_projected_probit_ignores_a_common_shift(generator):
    mean, covariance = moments()
    project = torch.eye(3) - 1 / 3
    variance = (project @ covariance @ project).diagonal(dim1=1, dim2=2)
    expected = (mean / (1 + math.pi / 8 * variance).sqrt()).softmax(1)
    link = Probit()
    found = link(mean, covariance, Categorical(), generator=generator)
    torch.testing.assert_close(found[0], expected)
    shifted = link(mean, covariance + 50.0, Categorical(), generator=generator)
    torch.testing.assert_close(shifted, found)


def test_yes_or_no_outputs_are_not_projected(generator):
    mean, covariance = moments()
    kappa = (1 + math.pi / 8 * covariance.diagonal(dim1=1, dim2=2)).rsqrt()
    found = Probit()(mean, covariance, Bernoulli(), generator=generator)
    torch.testing.assert_close(found[0], (kappa * mean).sigmoid())


def test_sampled_softmax_has_the_right_mean(generator):
    mean, covariance = moments(2)
    found = SampledSoftmax(40_000)(mean, covariance, Categorical(), generator=generator)
    assert found.shape == (40_000, 2, 3)
    other = torch.Generator().manual_seed(1)
    noise = torch.randn(40_000, 2, 3, 1, generator=other)
    reference = (mean + (torch.linalg.cholesky(covariance) @ noise).squeeze(-1)).softmax(-1)
    # two independent means of bounded draws: six standard errors of a difference
    assert (found.mean(0) - reference.mean(0)).abs().max() < 6 * 0.5 * math.sqrt(2 / 40_000)


def test_bridge_is_its_formula(generator):
    mean, covariance = moments()
    ones = torch.ones(3)
    total = covariance.sum((1, 2))
    centred = mean - covariance @ ones * (mean.sum(1) / total).unsqueeze(1)
    rows = covariance @ ones
    variance = (covariance - rows[:, :, None] * rows[:, None, :] / total[:, None, None]).diagonal(
        dim1=1, dim2=2
    )
    alpha = (1 - 2 / 3 + centred.exp() / 9 * (-centred).exp().sum(1, keepdim=True)) / variance
    found = LaplaceBridge()(mean, covariance, Categorical(), generator=generator)
    torch.testing.assert_close(found[0], alpha / alpha.sum(1, keepdim=True))


def test_refusals(generator):
    with pytest.raises(CosetError, match="Dirichlet"):
        LaplaceBridge()(*moments(), GaussianNoise(1.0), generator=generator)
    with pytest.raises(CosetError, match="draws"):
        SampledSoftmax(0)


def test_the_difference_to_the_top_class(generator):
    """By its formula, one input at a time; the most probable class stays; shifts cancel."""
    mean = torch.randn(20, 4)
    factor = torch.randn(20, 4, 4)
    covariance = 5 * factor @ factor.mT
    found = TopDifference()(mean, covariance, Categorical(), generator=generator)[0]
    for row in range(20):
        top = int(mean[row].argmax())
        logits = []
        for c in range(4):
            direction = torch.zeros(4)
            direction[c] += 1
            direction[top] -= 1
            variance = direction @ covariance[row] @ direction
            logits.append(direction @ mean[row] / (1 + math.pi / 8 * variance / 2).sqrt())
        torch.testing.assert_close(found[row], torch.stack(logits).softmax(0))
    assert torch.equal(found.argmax(1), mean.argmax(1))
    shifted = TopDifference()(mean + 3, covariance + 100, Categorical(), generator=generator)[0]
    torch.testing.assert_close(shifted, found)
    labels = TopDifference()(mean, covariance, Bernoulli(), generator=generator)
    torch.testing.assert_close(labels, Probit()(mean, covariance, Bernoulli(), generator=generator))
