import pytest
import torch
from tests.tomography.tomography_problems import readings_of, seeded

from coset.metrics import peak_signal_to_noise
from coset.tomography import DeepImagePrior, ParallelBeam, Poisson, baselines, image_network
from coset.tomography.deep_image_prior import fit_images
from coset.tomography.observed import observe
from coset.tomography.scoring import image_floor
from coset.tomography.total_variation import edges

SCAN = ParallelBeam(12, 10)
FEW = DeepImagePrior(steps=60, rate=2e-2)


@pytest.fixture(scope="module")
def made():
    return readings_of(SCAN)


@pytest.fixture(scope="module")
def observed(made):
    return observe(made.readings, SCAN, "gaussian")


def psnr(posterior, made, observed):
    image = observed.unit * posterior.mean.reshape(12, 12)
    return float(peak_signal_to_noise(image, made.truth))


def test_the_pixel_process_is_regression_on_pixels(observed):
    found = baselines.pixel_process(observed)
    start = observed.start
    places = torch.cartesian_prod(torch.arange(12.0), torch.arange(12.0)).double()
    prior = start.variance * (-torch.cdist(places, places) / start.length).exp()
    matrix = torch.from_numpy(observed.operator.matrix.toarray())
    inner = torch.linalg.inv(matrix @ prior @ matrix.mT + start.noise.diag())
    expected = prior - prior @ matrix.mT @ inner @ matrix @ prior
    torch.testing.assert_close(found.covariance, expected, rtol=1e-6, atol=1e-9)
    mean = prior @ matrix.mT @ inner @ observed.values
    torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("photons", [None, 1e4])
def test_the_image_of_total_variation_is_stationary(photons):
    """At the mode the derivative of misfit and smoothed variation vanishes."""
    made = readings_of(SCAN, photons=photons)
    observed = observe(made.readings, SCAN, Poisson(photons) if photons else "gaussian")
    found = baselines.total_variation_image(observed)
    values, variance = observed.gaussian(observed.operator.forward(observed.start.mean))
    noise = observed.start.noise if variance is None else variance
    image = found.mean.clone().requires_grad_()
    pairs = edges(12)
    smooth = ((image[pairs[:, 0]] - image[pairs[:, 1]]).square() + 1e-4).sqrt().sum()
    misfit = ((observed.operator.forward(image) - values).square() / noise).sum() / 2
    strength = 144 / float(smooth.detach())
    (pull,) = torch.autograd.grad(misfit, image, retain_graph=True)
    (push,) = torch.autograd.grad(strength * smooth, image)
    assert float((pull + push).norm()) < 1e-2 * float(push.norm())
    assert psnr(found, made, observed) > 18
    eigenvalues = torch.linalg.eigvalsh(found.covariance)
    assert float(eigenvalues.min()) > 0


def test_an_ensemble_has_members_that_differ(made, observed):
    module = image_network(12, width=3)
    found = baselines.network_ensemble(module, observed, FEW, members=3, generator=seeded())
    again = baselines.network_ensemble(module, observed, FEW, members=3, generator=seeded())
    assert torch.equal(found.samples, again.samples)
    assert found.samples.shape == (3, 144)
    torch.testing.assert_close(found.mean, found.samples.mean(0))
    assert float(found.variance.max()) > 0
    assert psnr(found, made, observed) > 15


def test_dropout_draws_images_under_random_masks(made, observed):
    module = image_network(12, width=4, dropout=0.1)
    settings = DeepImagePrior(steps=100, rate=2e-2, stop="never")
    first, again = (
        baselines.dropout_network(module, observed, settings, draws=20, generator=seeded())
        for _ in range(2)
    )
    assert torch.equal(first.samples, again.samples)
    assert float(first.variance.min()) > 0
    assert psnr(first, made, observed) > 12


def test_one_variance_for_all_pixels(observed):
    (fitted,) = fit_images(image_network(12, width=3), [observed], FEW, generator=seeded())
    found = baselines.constant_noise(fitted, observed, noise=0.1)
    assert float(found.variance[0]) == pytest.approx(image_floor(observed.operator, 0.1))
    assert torch.equal(found.mean, fitted.image.double().flatten())
    assert len(found.samples) == 0
