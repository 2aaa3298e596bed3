import math

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, jaccard_score
from torchmetrics.functional.image import (
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)

from coset.errors import CosetError
from coset.metrics import (
    boundary_band,
    class_intersection_over_union,
    confusion,
    depth_errors,
    expected_calibration_error,
    mean_intersection_over_union,
    peak_signal_to_noise,
    pixel_calibration_error,
    structural_similarity,
)


@pytest.fixture
def maps(generator):
    """Class 3 is in neither map, class 2 only predicted."""
    predictions = torch.randint(3, (2, 6, 7), generator=generator)
    return predictions, torch.randint(2, (2, 6, 7), generator=generator)


def test_overlap_is_that_of_scikit_learn(maps):
    p, y = maps
    expected = jaccard_score(y.flatten(), p.flatten(), average="macro")
    assert float(mean_intersection_over_union(p, y)) == pytest.approx(expected, abs=1e-7)


def test_confusion_is_that_of_scikit_learn(maps):
    p, y = maps
    expected = confusion_matrix(y.flatten(), p.flatten(), labels=range(4))
    assert confusion(p, y, 4).tolist() == expected.tolist()


def test_probabilities_stand_for_their_largest_class(maps):
    p, y = maps
    probabilities = torch.nn.functional.one_hot(p, 5).movedim(-1, 1).double()
    assert float(mean_intersection_over_union(probabilities, y)) == pytest.approx(
        float(mean_intersection_over_union(p, y)), abs=1e-7
    )


def test_equal_maps_overlap_entirely(maps):
    assert mean_intersection_over_union(maps[0], maps[0]) == 1


def test_pixels_are_inputs(generator):
    p = torch.softmax(torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64), 1)
    y = torch.randint(3, (2, 4, 5), generator=generator)
    rows = torch.stack([p[i, :, a, b] for i in range(2) for a in range(4) for b in range(5)])
    expected = expected_calibration_error(rows, y.flatten())
    torch.testing.assert_close(pixel_calibration_error(p, y), expected)


@pytest.fixture
def images(generator):
    reference = torch.rand(24, 20, generator=generator, dtype=torch.float64) * 3 - 1
    return reference + 0.2 * torch.randn(
        24, 20, generator=generator, dtype=torch.float64
    ), reference


def test_signal_to_noise_is_that_of_torchmetrics(images):
    image, reference = images
    span = float(reference.max() - reference.min())
    expected = peak_signal_noise_ratio(image, reference, data_range=span)
    assert float(peak_signal_to_noise(image, reference)) == pytest.approx(float(expected), abs=1e-5)


def test_equal_images_have_no_noise(images):
    assert peak_signal_to_noise(images[1], images[1]) == math.inf


def test_the_range_of_half_precision_does_not_overflow(images):
    """From -60,000 to 60,000 is more than the largest number of half precision."""
    reference = (images[1] - images[1].min()) / (images[1].max() - images[1].min()) * 120_000
    reference = (reference - 60_000).half()
    for metric in (peak_signal_to_noise, structural_similarity):
        expected = float(metric(reference.double() / 2, reference.double()))
        assert float(metric(reference / 2, reference)) == pytest.approx(expected, rel=1e-3)


def test_similarity_is_that_of_torchmetrics_inside_the_border(images):
    """Torchmetrics continues the image by reflection; we count windows inside it only."""
    image, reference = images
    span = float(reference.max() - reference.min())
    _, full = structural_similarity_index_measure(
        image[None, None], reference[None, None], data_range=span, return_full_image=True
    )
    expected = float(full[..., 5:-5, 5:-5].mean())
    assert float(structural_similarity(image, reference)) == pytest.approx(expected, abs=1e-6)


def test_similarity_window_by_window(images):
    """Wang et al. 2004, eq. 13, with the two-dimensional window, in numpy."""
    a, b = (t.numpy() for t in images)
    offset = np.arange(11) - 5
    window = np.exp(-(offset[:, None] ** 2 + offset**2) / (2 * 1.5**2))
    window /= window.sum()
    span = b.max() - b.min()
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    values = []
    for i in range(24 - 10):
        for j in range(20 - 10):
            x, y = a[i : i + 11, j : j + 11], b[i : i + 11, j : j + 11]
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            covariance = (window * (x - mx) * (y - my)).sum()
            top = (2 * mx * my + c1) * (2 * covariance + c2)
            values.append(top / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    assert float(structural_similarity(*images)) == pytest.approx(np.mean(values), abs=1e-12)


def test_depth_by_hand(generator):
    d = torch.rand(5, 6, generator=generator, dtype=torch.float64) + 0.5
    e = d * (0.5 + torch.rand(5, 6, generator=generator, dtype=torch.float64))
    d[0, :3] = 0
    known = d.numpy() > 0
    dn, en = d.numpy()[known], e.numpy()[known]
    errors = depth_errors(e, d)
    assert errors.absolute_relative == pytest.approx(np.mean(np.abs(en - dn) / dn))
    assert errors.squared_relative == pytest.approx(np.mean((en - dn) ** 2 / dn))
    assert errors.root_mean_squared == pytest.approx(np.sqrt(np.mean((en - dn) ** 2)))
    assert errors.root_mean_squared_log == pytest.approx(np.sqrt(np.mean(np.log(en / dn) ** 2)))
    assert errors.log10 == pytest.approx(np.mean(np.abs(np.log10(en / dn))))
    logs = np.log(en / dn)
    assert errors.scale_invariant_log == pytest.approx(np.mean(logs**2) - np.mean(logs) ** 2)
    assert errors.inverse_absolute == pytest.approx(np.mean(np.abs(1 / en - 1 / dn)))
    rooted = np.sqrt(np.mean((1 / en - 1 / dn) ** 2))
    assert errors.inverse_root_mean_squared == pytest.approx(rooted)
    ratio = np.maximum(en / dn, dn / en)
    assert errors.within == pytest.approx([np.mean(ratio < 1.25**k) for k in (1, 2, 3)])


def test_depths_that_are_nan_have_no_say_only_where_told(generator):
    d = torch.rand(5, 6, generator=generator, dtype=torch.float64) + 0.5
    e = d + 0.1
    holes = d.clone()
    holes[1, 2:5] = torch.nan
    with pytest.raises(CosetError, match="NaN"):
        depth_errors(e, holes)
    known = ~holes.isnan()
    assert depth_errors(e, holes, missing="nan") == depth_errors(e[known], d[known])
    with pytest.raises(CosetError, match="every target is NaN"):
        depth_errors(e, torch.full_like(d, torch.nan), missing="nan")
    with pytest.raises(CosetError, match="missing='drop'"):
        depth_errors(e, d, missing="drop")


def test_overlap_by_class_is_that_of_scikit_learn(generator):
    truth = torch.randint(4, (3, 6, 7), generator=generator)
    guess = torch.randint(4, (3, 6, 7), generator=generator)
    truth[0] = 9
    known = truth != 9
    found = class_intersection_over_union(guess, truth, ignore=9)
    want = jaccard_score(truth[known], guess[known], average=None)
    assert found.tolist() == pytest.approx(want.tolist(), abs=1e-6)
    probabilities = torch.nn.functional.one_hot(guess, 6).movedim(-1, 1).double()
    by_class = class_intersection_over_union(probabilities, truth, ignore=9)
    assert by_class[:4].tolist() == pytest.approx(want.tolist(), abs=1e-12)
    assert by_class[4:].isnan().all()
    mean = mean_intersection_over_union(probabilities, truth, ignore=9)
    assert float(mean) == pytest.approx(np.mean(want), abs=1e-12)


def test_the_band_is_what_a_loop_over_neighbours_finds(generator):
    labels = torch.randint(3, (2, 9, 8), generator=generator)
    labels[:, 3:7, 2:7] = 1
    labels[:, :2] = 7  # void
    for width in (1, 2):
        found = boundary_band(labels, width=width, ignore=7)
        for n, row, column in np.ndindex(2, 9, 8):
            rows = slice(max(0, row - width), row + width + 1)
            columns = slice(max(0, column - width), column + width + 1)
            near = set(labels[n, rows, columns].flatten().tolist()) - {7}
            own = int(labels[n, row, column])
            assert bool(found[n, row, column]) == (own != 7 and bool(near - {own}))
    assert not boundary_band(torch.full((1, 4, 4), 7), ignore=7).any()
    with pytest.raises(CosetError, match="whole numbers"):
        boundary_band(labels.double())
