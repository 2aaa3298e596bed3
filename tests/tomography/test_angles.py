import math

import pytest
import torch
from tests.tomography.tomography_problems import seeded

from coset.errors import CosetError
from coset.tomography import FanBeam, ParallelBeam, choose_angles

NOISE = 0.3


def random_covariance(pixels):
    root = torch.randn(pixels, pixels, generator=seeded(), dtype=torch.float64)
    return root @ root.mT / pixels


def told(covariance, scan, places):
    """What these angles tell together, from one determinant."""
    matrix = torch.from_numpy(scan.matrix.toarray()).reshape(-1, scan.bins, scan.size**2)
    rows = matrix[list(places)].flatten(0, 1)
    one = torch.eye(len(rows), dtype=torch.float64)
    return float(torch.logdet(one + rows @ covariance @ rows.mT / NOISE**2)) / 2


@pytest.mark.parametrize("scan", [ParallelBeam(5, 9), FanBeam(5, 7)])
def test_each_choice_tells_most_beyond_those_before(scan):
    covariance = random_covariance(25)
    found = choose_angles(covariance, scan, 4, noise=NOISE)
    before: list[int] = []
    for place, gain in zip(found.order, found.gains, strict=True):
        base = told(covariance, scan, before) if before else 0.0
        every = {
            other: told(covariance, scan, [*before, other]) - base
            for other in range(len(scan.directions))
            if other not in before
        }
        assert gain == pytest.approx(max(every.values()), rel=1e-9)
        assert every[place] == pytest.approx(gain, rel=1e-9)
        if not before:
            torch.testing.assert_close(
                found.offered, torch.tensor(list(every.values()), dtype=torch.float64)
            )
        before.append(place)
    assert len(set(found.order)) == 4
    assert found.directions == tuple(scan.directions[place] for place in found.order)


def test_an_image_that_varies_along_one_axis_is_seen_along_the_other():
    """Every column is constant: rays along columns, at angle 0, see each by itself."""
    columns = torch.arange(36) % 6
    covariance = (columns[:, None] == columns).double()
    found = choose_angles(covariance, ParallelBeam(6, 12), 1, noise=NOISE)
    assert found.directions == (0.0,)


def test_all_angles_can_be_chosen():
    found = choose_angles(random_covariance(9), ParallelBeam(3, 4), 4, noise=NOISE)
    assert sorted(found.order) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("pixels", "count", "noise"), [(24, 1, 0.1), (25, 10, 0.1), (25, 0, 0.1), (25, 1, 0.0)]
)
def test_what_does_not_fit_is_refused(pixels, count, noise):
    with pytest.raises(CosetError):
        choose_angles(torch.eye(pixels), ParallelBeam(5, 9), count, noise=noise)


def test_candidates_beyond_memory_are_refused():
    with pytest.raises(CosetError, match="fewer angles"):
        choose_angles(torch.eye(144), ParallelBeam(12, 4000), 1, noise=math.pi)
