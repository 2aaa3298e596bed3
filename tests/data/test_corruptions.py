import math

import pytest
import torch
from scipy import ndimage

from coset.data.corruptions import CORRUPTIONS, corrupt, gaussian_blur, rotate
from coset.data.datasets import digits
from coset.errors import CosetError

KINDS = list(CORRUPTIONS)


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def images():
    """Real digits, as they are, and smoothly enlarged to colour pictures that are not square."""
    small = digits().test_inputs[:200]
    large = torch.nn.functional.interpolate(small, size=(24, 28), mode="bicubic").clamp(0, 1)
    tint = torch.tensor([1.0, 0.8, 0.5], dtype=small.dtype)[:, None, None]
    return {"digits": small, "colour": large * tint}


@pytest.mark.parametrize("which", ["digits", "colour"])
@pytest.mark.parametrize("kind", KINDS)
def test_severity_is_monotone_and_range_kept(images, which, kind):
    clean = images[which]
    before = clean.clone()
    errors = [0.0]
    for severity in range(1, 6):
        result = corrupt(clean, kind, severity, generator=seeded())
        assert result.shape == clean.shape
        assert result.dtype == clean.dtype
        assert result.min() >= 0
        assert result.max() <= 1
        errors.append(float((result - clean).square().mean()))
    assert errors == sorted(errors)
    assert len(set(errors)) == 6
    assert torch.equal(clean, before)


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_pictures(images, kind):
    clean = images["digits"][:20].double()
    first, again = (corrupt(clean, kind, 3, generator=seeded()) for _ in range(2))
    assert first.dtype == torch.float64
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    "kind", ["gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "fog", "elastic"]
)
def test_random_kinds_differ_by_seed_and_picture(images, kind):
    twice = images["digits"][:1].repeat(2, 1, 1, 1)
    result = corrupt(twice, kind, 5, generator=seeded(1))
    assert not torch.equal(result[0], result[1])
    assert not torch.equal(result, corrupt(twice, kind, 5, generator=seeded(2)))


def test_there_are_enough_kinds():
    assert len(KINDS) >= 8
    for corruption in CORRUPTIONS.values():
        assert list(corruption.strengths) == sorted(corruption.strengths)
        assert len(corruption.strengths) == 5


def grey(value, count=100):
    return torch.full((count, 1, 32, 32), value, dtype=torch.float64)


def test_gaussian_noise_has_its_deviation():
    noise = corrupt(grey(0.5), "gaussian_noise", 1, generator=seeded()) - 0.5
    # 102 400 draws: the relative error of a deviation is 1/sqrt(2n) = 0.22 %; 5 of them.
    assert float(noise.std()) == pytest.approx(0.04, rel=0.011)


def test_shot_noise_has_variance_light_times_strength():
    noise = corrupt(grey(0.4), "shot_noise", 1, generator=seeded()) - 0.4
    assert abs(float(noise.mean())) < 5 * math.sqrt(0.4 * 0.005 / noise.numel())
    assert float(noise.var()) == pytest.approx(0.4 * 0.005, rel=0.025)


def test_impulse_noise_hits_its_fraction():
    result = corrupt(grey(0.5), "impulse_noise", 5, generator=seeded())
    chance, count = 0.17, result.numel()
    for value in (0, 1):
        hits = float((result == value).double().sum())
        assert abs(hits - count * chance / 2) < 5 * math.sqrt(count * chance / 2)


def test_gaussian_blur_agrees_with_scipy(images):
    clean = images["colour"][:5].double()
    sigma = 0.35 + 0.045 * 24
    expected = ndimage.gaussian_filter(
        clean.numpy(), (0, 0, sigma, sigma), mode="nearest", radius=math.ceil(3 * sigma)
    )
    result = gaussian_blur(clean, 0.045, seeded())
    torch.testing.assert_close(result, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_motion_blur_smears_a_point_along_a_segment():
    point = torch.zeros(50, 1, 33, 33, dtype=torch.float64)
    point[:, :, 16, 16] = 1
    result = corrupt(point, "motion_blur", 5, generator=seeded())
    assert torch.allclose(result.sum((1, 2, 3)), torch.ones(50, dtype=torch.float64))
    reach = (result > 0).any(0)[0].nonzero().sub(16).double().norm(dim=1).max()
    half = 0.33 * 33 / 2
    assert half - 1 < float(reach) < half + 2


def test_pixelate_makes_blocks_of_their_mean():
    images = torch.rand(3, 2, 8, 8, generator=seeded(), dtype=torch.float64)
    result = corrupt(images, "pixelate", 3, generator=seeded())
    blocks = images.unfold(2, 2, 2).unfold(3, 2, 2).mean((4, 5))
    expected = blocks.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("size", [(32, 32), (32, 96), (80, 32)])
def test_elastic_moves_as_far_in_both_directions(size):
    """Pictures of the coordinates show how far every pixel was moved, here in pixels."""
    down, across = (torch.linspace(0.25, 0.75, side, dtype=torch.float64) for side in size)
    ramps = torch.stack(torch.meshgrid(down, across, indexing="ij")).expand(40, 2, *size)
    moved = corrupt(ramps, "elastic", 1, generator=seeded()) - ramps
    pixels = moved * 2 * (torch.tensor(size, dtype=torch.float64)[:, None, None] - 1)
    down, across = pixels.square().mean((0, 2, 3)).sqrt().tolist()
    assert math.hypot(down, across) == pytest.approx(0.02 * 32, rel=0.1)  # the rim holds some back
    assert down == pytest.approx(across, rel=0.1)


def test_contrast_and_fog_by_formula(images):
    clean = images["colour"][:4].double()
    mean = clean.mean((2, 3), keepdim=True)
    result = corrupt(clean, "contrast", 2, generator=seeded())
    torch.testing.assert_close(result, mean + 0.5 * (clean - mean))
    fog = (corrupt(clean, "fog", 3, generator=seeded()) - 0.5 * clean) / 0.5
    assert fog.min() >= 0.5 - 1e-9
    assert fog.max() <= 1 + 1e-9
    torch.testing.assert_close(fog, fog[:, :1].expand_as(fog))  # grey


def test_rotation_by_quarter_turns_is_exact():
    images = torch.rand(4, 3, 9, 9, generator=seeded(), dtype=torch.float32)
    assert torch.equal(rotate(images, 0.0), images)
    for turns in (-1, 1, 2, 3, 4, 5):
        assert torch.equal(rotate(images, 90.0 * turns), torch.rot90(images, turns, (2, 3)))


@pytest.mark.parametrize("size", [(8, 8), (7, 9)])
def test_rotation_by_interpolation_agrees_with_scipy(size):
    """Bilinear values inside; scipy treats the rim otherwise, so the pictures have a dark rim."""
    images = torch.zeros(2, 1, 24, 26, dtype=torch.float64)
    images[:, :, 8 : 8 + size[0], 8 : 8 + size[1]] = torch.rand(
        2, 1, *size, generator=seeded(), dtype=torch.float64
    )
    for angle in (17.0, 63.0, 145.0):
        expected = ndimage.rotate(images.numpy(), angle, axes=(2, 3), reshape=False, order=1)
        torch.testing.assert_close(
            rotate(images, angle), torch.from_numpy(expected), rtol=0, atol=1e-12
        )


def test_one_angle_for_each_picture():
    images = torch.rand(3, 1, 8, 8, generator=seeded(), dtype=torch.float64)
    angles = torch.tensor([0.0, 90.0, 30.0], dtype=torch.float64)
    result = rotate(images, angles)
    torch.testing.assert_close(result[0], images[0])
    torch.testing.assert_close(result[1], torch.rot90(images[1], 1, (1, 2)))
    torch.testing.assert_close(result[2:], rotate(images[2:], 30.0))


def test_bad_input_is_refused():
    images = torch.zeros(2, 1, 8, 8, dtype=torch.float32)
    cases = [
        ((images, "rain", 1), "rain"),
        ((images, "fog", 0), "severity 0"),
        ((images, "fog", 6), "severity 6"),
        ((images - 1, "fog", 1), "from -1 to -1"),
        ((images[0], "fog", 1), r"\(1, 8, 8\)"),
        ((images.to(torch.uint8), "fog", 1), "uint8"),
    ]
    for arguments, words in cases:
        with pytest.raises(CosetError, match=words):
            corrupt(*arguments, generator=seeded())
    with pytest.raises(CosetError, match=r"angles of shape \(3,\)"):
        rotate(images, torch.zeros(3))
    with pytest.raises(CosetError, match="not all of them finite"):
        rotate(images, math.nan)
    with pytest.raises(CosetError, match="needed Tensor"):
        corrupt(images.numpy(), "fog", 1, generator=seeded())
    for nothing in (3, None):
        with pytest.raises(CosetError, match=f"got generator={nothing}"):
            corrupt(images, "fog", 1, generator=nothing)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (2, 1, 0, 8)])
def test_no_pictures_stay_no_pictures(kind, shape):
    assert corrupt(torch.zeros(shape), kind, 1, generator=seeded()).shape == shape
    assert rotate(torch.zeros(shape), 30.0).shape == shape


def test_a_severity_may_be_any_number_that_is_whole():
    images = torch.rand(1, 1, 4, 4)
    expected = corrupt(images, "contrast", 2, generator=seeded())
    assert torch.equal(corrupt(images, "contrast", 2.0, generator=seeded()), expected)


def test_gradients_come_through_without_a_warning():
    images = torch.rand(1, 1, 8, 8, requires_grad=True)
    corrupt(images, "gaussian_blur", 3, generator=seeded()).sum().backward()
    torch.testing.assert_close(images.grad.mean(), torch.tensor(1.0))
