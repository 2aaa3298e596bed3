import math

import pytest
import torch
from tests.tomography.tomography_problems import seeded

from coset.errors import CosetError
from coset.tomography import ParallelBeam
from coset.tomography.posterior import ImagePosterior
from coset.tomography.scoring import image_floor, image_scores, patch_log_density, patches


def drawn_posterior(size=6, samples=0):
    random = seeded(3)
    root = torch.randn(size**2, size**2, generator=random).double() / size
    covariance = root @ root.mT + 0.1 * torch.eye(size**2)
    mean = torch.randn(size**2, generator=random).double()
    law = torch.distributions.MultivariateNormal(mean, covariance)
    factor = torch.linalg.cholesky(covariance)
    noise = torch.randn(max(samples, 1), size**2, generator=random).double()
    draws = mean + noise @ factor.mT
    truth = draws[0].reshape(size, size)
    return ImagePosterior(mean, covariance.diagonal(), draws[:samples], covariance), truth, law


@pytest.mark.parametrize(("size", "side"), [(6, 1), (6, 4), (7, 3), (5, 9)])
def test_every_pixel_is_in_one_patch(size, side):
    found = torch.cat(list(patches(size, side)))
    assert found.sort().values.tolist() == list(range(size**2))
    assert min(map(len, patches(size, side))) >= min(side, size) ** 2


def test_the_density_of_one_patch_is_the_joint_density():
    posterior, truth, law = drawn_posterior()
    joint = patch_log_density(posterior, truth, side=6)
    assert joint == pytest.approx(float(law.log_prob(truth.flatten())) / 36, rel=1e-5)
    single = torch.distributions.Normal(posterior.mean, (posterior.variance + 0.2).sqrt())
    expected = float(single.log_prob(truth.flatten()).mean())
    found = patch_log_density(posterior, truth, side=1, floor=0.2)
    assert found == pytest.approx(expected, rel=1e-5)


def test_many_samples_come_near_the_halved_covariance():
    posterior, truth, _ = drawn_posterior(samples=20_000)
    known = posterior.covariance
    halved = ImagePosterior(
        posterior.mean, posterior.variance, posterior.samples, (known + known.diagonal().diag()) / 2
    )
    by_samples = ImagePosterior(posterior.mean, posterior.variance, posterior.samples, None)
    exact = patch_log_density(halved, truth, side=3)
    assert patch_log_density(by_samples, truth, side=3) == pytest.approx(exact, abs=0.03)
    empty = ImagePosterior(posterior.mean, posterior.variance, posterior.samples[:0], None)
    with pytest.raises(CosetError, match="draw samples"):
        patch_log_density(empty, truth, side=3)
    with pytest.raises(CosetError, match="same square image"):
        patch_log_density(posterior, truth[:5], side=3)


def test_the_floor_is_the_truncated_inverse():
    operator = ParallelBeam(12, 9).operator
    dense = torch.from_numpy(operator.matrix.toarray())
    values = torch.linalg.svdvals(dense)[:20]
    expected = 0.04 * float((1 / values.square()).sum()) / 144
    assert image_floor(operator, 0.2) == pytest.approx(expected, rel=1e-6)


def test_scores_of_a_calibrated_gaussian():
    """6,400 independent pixels: coverage within 4 standard errors (1 in 10⁴ seeds)."""
    random = seeded(1)
    truth = torch.randn(80, 80, generator=random).double()
    mean, variance = torch.zeros(6400).double(), torch.ones(6400).double()
    scores = image_scores(ImagePosterior(mean, variance, mean[:0].reshape(0, 6400), None), truth)
    for level in (0.5, 0.9, 0.95):
        error = math.sqrt(level * (1 - level) / 6400)
        assert abs(scores[f"coverage_{100 * level:g}"] - level) < 4 * error
    assert scores["spread"] == pytest.approx(1, abs=4 / math.sqrt(2 * 6400))
    assert scores["density_1"] == pytest.approx(-1.4189, abs=4 / math.sqrt(2 * 6400))
