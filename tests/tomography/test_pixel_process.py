import torch
from tests.tomography.tomography_problems import readings_of

from coset.tomography import ParallelBeam
from coset.tomography.pixel_process import correlate, fit_pixel_process

SCAN = ParallelBeam(16, 20)


def test_correlation_by_transforms_is_the_kernel():
    places = torch.cartesian_prod(torch.arange(9.0), torch.arange(9.0)).double()
    kernel = (-torch.cdist(places, places) / 2.5).exp()
    torch.testing.assert_close(correlate(torch.eye(81).double(), 9, 2.5), kernel)


def test_without_memory_for_all_readings_a_part_of_them_is_used():
    made = readings_of(SCAN)
    values = made.readings.flatten()
    all_of_them = fit_pixel_process(SCAN.operator, values, 16)
    memory = 8 * 200 * (2 * 16**2 + 3 * len(values))
    some = fit_pixel_process(SCAN.operator, values, 16, memory=memory)
    assert all_of_them.cross.shape == (len(values), 256)
    assert some.cross.shape == (200, 256)
    assert some.noise.shape == values.shape
    assert (some.variance, some.length) == (all_of_them.variance, all_of_them.length)
    truth = made.truth.flatten()
    gaps = [float((each.mean - truth).norm() / truth.norm()) for each in (all_of_them, some)]
    assert gaps[0] < gaps[1] < 2 * gaps[0]
    assert float(some.covariance().diagonal().mean()) > float(
        all_of_them.covariance().diagonal().mean()
    )
