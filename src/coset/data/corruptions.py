"""Rotation and ten kinds of corruption in five severities, for measuring behaviour under shift.

The kinds follow Hendrycks and Dietterich (2019), written anew in torch for any picture size:
lengths (blurs, elastic) are fractions of the shorter side. The numbers are therefore not those of
CIFAR-10-C and results must not be compared across the two.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, interpolate, pad

from coset.errors import CosetError, require_kind

Images: TypeAlias = Float[Tensor, "n c h w"]


def rotate(images: Images, degrees: float | Float[Tensor, " n"]) -> Images:
    """Rotate pictures counterclockwise about their centre; what comes in from outside is 0.

    Values between pixels are interpolated bilinearly. Quarter turns of square pictures are exact.

    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90.0).tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]

    Args:
        images: Pictures.
        degrees: One angle, or one for each picture.
    """
    check_images(images)
    height, width = images.shape[2:]
    if not images.numel():
        return images.clone()
    if isinstance(degrees, float | int) and degrees % 90 == 0 and height == width:
        return torch.rot90(images, int(degrees // 90) % 4, (2, 3))
    angle = torch.as_tensor(degrees, dtype=images.dtype, device=images.device).deg2rad()
    if angle.shape not in ((), (len(images),)) or not angle.isfinite().all():
        raise CosetError(
            f"got angles of shape {tuple(angle.shape)} for {len(images)} pictures"
            + ("" if angle.isfinite().all() else ", not all of them finite"),
            "needed one angle, or one for each picture",
            "check the angles",
        )
    cos, sin = angle.expand(len(images)).cos(), angle.expand(len(images)).sin()
    # Grid coordinates run over [-1, 1] on both axes, whatever the sizes; rotate in pixels.
    rows = torch.stack([cos, -sin * (height / width), sin * (width / height), cos], 1)
    return _resample(images, rows.reshape(-1, 2, 2), "zeros")


def _resample(images: Images, linear: Tensor, padding: str, shift: Tensor | None = None) -> Images:
    """Values of each picture at ``linear @ position + shift``, in grid coordinates."""
    offset = linear.new_zeros(len(linear), 2) if shift is None else shift
    grid = affine_grid(
        torch.cat([linear, offset[:, :, None]], 2), list(images.shape), align_corners=False
    )
    return grid_sample(images, grid, "bilinear", padding, align_corners=False)


def gaussian_noise(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add normal noise of standard deviation ``strength``."""
    return images + strength * _normal(images.shape, images, generator)


def shot_noise(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Count photons: Poisson with ``1 / strength`` photons at full light."""
    return torch.poisson(images.clamp(min=0) / strength, generator) * strength


def impulse_noise(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Set a fraction ``strength`` of the values to 0 or 1, each half of the time."""
    chance = torch.rand(images.shape, generator=generator, dtype=images.dtype, device=images.device)
    salted = torch.where(chance > 1 - strength / 2, 1.0, images)
    return torch.where(chance < strength / 2, 0.0, salted)


def gaussian_blur(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Blur with a normal kernel of 0.35 pixels plus ``strength`` times the shorter side.

    A kernel narrower than 0.35 pixels would change nothing on the smallest pictures.
    """
    del generator
    return _blur(images, 0.35 + strength * min(images.shape[2:]))


def motion_blur(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Average along a segment ``strength`` times the shorter side long, at a random angle."""
    side = min(images.shape[2:])
    angle = math.pi * torch.rand(
        len(images), generator=generator, dtype=images.dtype, device=images.device
    )
    # Grid coordinates: a whole side is 2 long.
    direction = (
        strength
        * side
        * torch.stack([angle.cos() / images.shape[3], angle.sin() / images.shape[2]], 1)
    )
    identity = torch.eye(2, dtype=images.dtype, device=images.device).expand(len(images), 2, 2)
    steps = 2 * math.ceil(strength * side) + 1
    taps = [-1 + 2 * step / (steps - 1) for step in range(steps)]
    total = torch.zeros_like(images)
    for tap in taps:
        total += _resample(images, identity, "border", tap * direction)
    return total / steps


def brightness(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add ``strength`` everywhere."""
    del generator
    return images + strength


def contrast(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Bring every channel nearer to its mean, by the fraction ``strength`` of the way."""
    del generator
    return images.lerp(images.mean((2, 3), keepdim=True).expand_as(images), strength)


def fog(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Mix with bright, cloudy grey: ``(1 - strength) image + strength fog``."""
    cloud = torch.zeros_like(images[:, :1])
    octaves = max(1, math.ceil(math.log2(min(images.shape[2:]))))
    for octave in range(octaves):
        cells = 2 ** (octave + 1)
        coarse = _normal((len(images), 1, cells, cells), images, generator)
        cloud = cloud + 0.5**octave * interpolate(
            coarse, size=images.shape[2:], mode="bilinear", align_corners=True
        )
    low, high = cloud.amin((2, 3), keepdim=True), cloud.amax((2, 3), keepdim=True)
    grey = 0.5 + 0.5 * (cloud - low) / (high - low).clamp(min=torch.finfo(images.dtype).tiny)
    return images.lerp(grey.expand_as(images), strength)


def pixelate(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Replace blocks of pixels by their mean: ``1 - strength`` of the resolution is left."""
    del generator
    down, across = (_block_means(side, strength, images) for side in images.shape[2:])
    return down @ images @ across


def _block_means(side: int, strength: float, like: Tensor) -> Tensor:
    """Matrix that replaces each of ``side`` values by the mean of its block; symmetric."""
    blocks = max(1, round(side * (1 - strength)))
    block = torch.arange(side, device=like.device) * blocks // side
    together = (block[:, None] == block).to(like.dtype)
    return together / together.sum(1)


def elastic(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Move every pixel along a smooth random field.

    The root of the mean squared distance is ``strength`` times the shorter side.
    """
    height, width = images.shape[2:]
    rough = _normal((len(images), 2, height, width), images, generator)
    field = _blur(rough, 0.12 * min(height, width))
    field = field / field.square().sum(1, keepdim=True).mean((2, 3), keepdim=True).sqrt()
    identity = torch.eye(2, 3, dtype=images.dtype, device=images.device)
    grid = affine_grid(identity.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    # Grid coordinates: a whole side is 2 long, whether it is the shorter one or not.
    shorter = min(height, width)
    reach = 2 * strength * images.new_tensor([shorter / width, shorter / height])
    grid = grid + reach * field.permute(0, 2, 3, 1)
    return grid_sample(images, grid, "bilinear", "border", align_corners=False)


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption and its strength at the severities 1 to 5."""

    apply: Callable[[Images, float, torch.Generator], Images]
    strengths: tuple[float, float, float, float, float]


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "shot_noise": Corruption(shot_noise, (0.005, 0.015, 0.04, 0.08, 0.15)),
    "impulse_noise": Corruption(impulse_noise, (0.01, 0.03, 0.06, 0.11, 0.17)),
    "gaussian_blur": Corruption(gaussian_blur, (0.01, 0.02, 0.03, 0.045, 0.06)),
    "motion_blur": Corruption(motion_blur, (0.08, 0.13, 0.18, 0.25, 0.33)),
    "brightness": Corruption(brightness, (0.06, 0.12, 0.18, 0.25, 0.33)),
    "contrast": Corruption(contrast, (0.25, 0.5, 0.65, 0.78, 0.9)),
    "fog": Corruption(fog, (0.2, 0.35, 0.5, 0.62, 0.75)),
    "pixelate": Corruption(pixelate, (0.25, 0.37, 0.5, 0.63, 0.75)),
    "elastic": Corruption(elastic, (0.02, 0.035, 0.05, 0.07, 0.1)),
}


def corrupt(images: Images, kind: str, severity: int, *, generator: torch.Generator) -> Images:
    """Corrupt pictures; the result stays in [0, 1]. No pictures come back as no pictures.

    >>> image = torch.full((1, 1, 2, 2), 0.5)
    >>> corrupt(image, "brightness", 4, generator=torch.Generator()).unique().item()
    0.75

    Args:
        images: Pictures in [0, 1], before any standardisation.
        kind: A key of ``CORRUPTIONS``.
        severity: From 1 (mild) to 5 (severe).
        generator: Makes what is random.
    """
    check_images(images)
    require_kind(torch.Generator, "torch.Generator", generator=generator)
    if kind not in CORRUPTIONS:
        raise CosetError(
            f"got the corruption {kind!r}", f"needed one of {', '.join(CORRUPTIONS)}", "choose one"
        )
    if severity not in range(1, 6):
        raise CosetError(f"got severity {severity}", "needed 1, 2, 3, 4 or 5", "choose one")
    if not images.numel():
        return images.clone()
    low, high = (float(value) for value in images.detach().aminmax())
    if not (low >= 0 and high <= 1):
        raise CosetError(
            f"got values from {low:.3g} to {high:.3g}",
            "needed pictures in [0, 1]",
            "corrupt first, standardise afterwards",
        )
    corruption = CORRUPTIONS[kind]
    return corruption.apply(images, corruption.strengths[int(severity) - 1], generator).clamp(0, 1)


def check_images(images: Tensor) -> None:
    """Refuses what is no batch of pictures in floating numbers."""
    require_kind(Tensor, images=images)
    if images.ndim != 4 or not images.is_floating_point():
        raise CosetError(
            f"got {images.dtype} of shape {tuple(images.shape)}",
            "needed floating pictures (n, channels, height, width)",
            "add the missing axes and divide bytes by 255",
        )


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def _blur(images: Tensor, sigma: float) -> Tensor:
    """Normal blur in pixels, one axis after the other; edges are repeated outwards."""
    radius = max(1, math.ceil(3 * sigma))
    at = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    kernel = torch.exp(-0.5 * (at / sigma) ** 2)
    kernel = kernel / kernel.sum()
    flat = images.reshape(-1, 1, *images.shape[2:])
    flat = conv2d(pad(flat, (radius, radius, 0, 0), "replicate"), kernel.view(1, 1, 1, -1))
    flat = conv2d(pad(flat, (0, 0, radius, radius), "replicate"), kernel.view(1, 1, -1, 1))
    return flat.reshape(images.shape)
