import torch

from coset.tomography import image_network
from coset.tomography.deep_image_prior import Fitted
from coset.tomography.features import Features, blocks_of
from coset.tomography.linear_model import planned
from coset.weights import functionalise


def of_size(size):
    network = functionalise(image_network(size))
    image = torch.zeros(size, size)
    fitted = Fitted(network, network.weights, image[None, None], image, 0, 0.0, 0.0)
    return Features(fitted, blocks_of(network))


def test_readings_and_memory_decide_what_is_exact():
    """128 × 128 pixels seen from 20 angles with 91 bins are 1,820 readings: exact."""
    large = planned(of_size(128), 20 * 91, 4 << 30)
    assert large.tuned_on == 1820
    assert not large.keeps_pixels
    assert "Exact linear algebra over 1820 readings" in large.sentence
    assert "covariance of all 16384 pixels" in large.sentence

    small = planned(of_size(28), 20 * 41, 4 << 30)
    assert small.tuned_on == 820
    assert small.keeps_pixels

    many = planned(of_size(128), 60 * 183, 4 << 30)
    assert many.tuned_on == 1000
    assert "by conjugate gradients" in many.sentence
    # the very image that is exact above is not with less memory
    assert planned(of_size(128), 20 * 91, 1 << 30).tuned_on < 1820
