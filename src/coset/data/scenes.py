"""Street scenes from a ray-caster of our own, with exact labels and depths.

A camera stands 1.5 above a ground with buildings (boxes), balls (spheres) and poles (cylinders)
under a sky. Rays meet each body in closed form, so labels and depths are exact. Panes of glass are
the honest difficulty: a sensor measures the pane in half of the pictures and what lies behind it in
the others, and the picture does not tell which. For those pixels the true predictive distribution
is known: two depths, each with probability 1/2.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coset.errors import CosetError, require_counts, require_kind
from coset.printing import brief

SCENE_CLASSES = ("sky", "ground", "building", "ball", "pole")
"""What a pixel can show. A cone, of which ``foreign=True`` puts one into each picture, has the
label after the last."""

_EYE = 1.5  # height of the camera
_FAR = 60.0  # nothing is seen beyond
_CHUNK = 32  # scenes cast at once: bounds the memory
_BODIES = 3  # the most of a kind in a scene
_FOREIGN = len(SCENE_CLASSES)

# Mean colour of each label, and how far single bodies are from it.
_COLOURS = torch.tensor(
    [
        [0.55, 0.70, 0.95],
        [0.42, 0.42, 0.38],
        [0.60, 0.40, 0.32],
        [0.80, 0.35, 0.25],
        [0.35, 0.35, 0.40],
        [0.90, 0.75, 0.15],
    ]
)
_SPREAD = 0.12


@dataclass(frozen=True, eq=False)
class Scenes:
    """Pictures with all that is known of each pixel.

    ``depth`` is the distance along the ray, NaN where a ray meets nothing. Behind glass it is
    ``near`` or ``far``, one choice for each picture, each with probability 1/2; elsewhere the three
    are equal.
    """

    pictures: Float[Tensor, "n 3 h w"]
    labels: Int[Tensor, "n h w"]
    depth: Float[Tensor, "n h w"]
    near: Float[Tensor, "n h w"]
    far: Float[Tensor, "n h w"]

    __repr__ = brief

    @property
    def glass(self) -> Bool[Tensor, "n h w"]:
        """Pixels with two possible depths."""
        return self.near < self.far

    @property
    def foreign(self) -> Bool[Tensor, "n h w"]:
        """Pixels that show a body of no class."""
        return self.labels == _FOREIGN


def scenes(
    kind: Literal["segmentation", "depth"],
    count: int,
    *,
    size: int = 64,
    fog: float = 0.01,
    noise: float = 0.02,
    foreign: bool = False,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "n 3 h w"], Tensor]:
    """Street scenes and their targets: labels of ``SCENE_CLASSES``, or depths.

    >>> pictures, depth = scenes("depth", 2, size=32, generator=torch.Generator().manual_seed(0))
    >>> pictures.shape, depth.shape
    (torch.Size([2, 3, 32, 32]), torch.Size([2, 32, 32]))
    >>> bool(depth[:, -1].isfinite().all())  # the lowest row looks at something
    True

    Args:
        kind: ``"segmentation"``, or ``"depth"``: along the ray, NaN where a ray meets nothing.
        count: Number of scenes.
        size: Pixels a side.
        fog: Density: a body at distance t keeps ``exp(-fog t)`` of its colour.
        noise: Standard deviation of the sensor's noise.
        foreign: Put a cone into each picture, a body no label is for.
        generator: Chooses scenes, exposure and noise.

    Raises:
        CosetError: Another kind, or sizes that are no whole numbers above zero.
    """
    if kind not in ("segmentation", "depth"):
        raise CosetError(
            f"got kind={kind!r}", "needed 'segmentation' or 'depth'", "choose one of the two"
        )
    cast = cast_scenes(count, size=size, fog=fog, noise=noise, foreign=foreign, generator=generator)
    return cast.pictures, cast.labels if kind == "segmentation" else cast.depth


def cast_scenes(
    count: int,
    *,
    size: int = 64,
    fog: float = 0.01,
    noise: float = 0.02,
    foreign: bool = False,
    generator: torch.Generator,
) -> Scenes:
    """Street scenes with labels, depths and glass at once; arguments as of ``scenes``."""
    require_counts(count=count, size=size)
    require_kind(torch.Generator, "torch.Generator", generator=generator)
    require_kind(float, fog=fog, noise=noise)
    if not (0 <= fog < math.inf and 0 <= noise < math.inf):
        raise CosetError(f"got fog={fog}, noise={noise}", "needed finite numbers, at least 0")
    world = _World.drawn(count, foreign, generator)
    directions = _directions(size)
    parts = [_cast(world.part(start), directions, fog) for start in range(0, count, _CHUNK)]
    clean, labels, near, far = (torch.cat(part) for part in zip(*parts, strict=True))
    sensor = noise * torch.randn(clean.shape, generator=generator)
    pictures = (clean * world.exposure[:, None, None] + sensor).clamp(0, 1)
    depth = torch.where(world.sees_glass[:, None], near, far)
    square = (count, size, size)
    return Scenes(
        pictures.movedim(2, 1).contiguous().reshape(count, 3, size, size),
        labels.reshape(square),
        depth.reshape(square),
        near.reshape(square),
        far.reshape(square),
    )


@dataclass(frozen=True)
class _World:
    """All scenes as numbers: bodies that are not there have size 0."""

    balls: Float[Tensor, "n k 4"]  # x, y, z, radius
    boxes: Float[Tensor, "n k 6"]  # x, z, half width, half length, height, angle
    poles: Float[Tensor, "n k 4"]  # x, z, radius, height
    cones: Float[Tensor, "n 1 4"]  # x, z, radius, height
    panes: Float[Tensor, "n 1 5"]  # x, z, half width, height, angle
    colours: Float[Tensor, "n bodies 2 3"]  # two of each body's texture
    scales: Float[Tensor, "n bodies"]  # length of a step of the texture
    sky: Float[Tensor, "n 3"]
    sun: Float[Tensor, "n 3"]
    exposure: Float[Tensor, " n"]
    sees_glass: Bool[Tensor, " n"]

    @classmethod
    def drawn(cls, count: int, foreign: bool, generator: torch.Generator) -> "_World":
        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return low + (high - low) * torch.rand(count, *shape, generator=generator)

        def places(bodies: int, nearest: float) -> tuple[Tensor, Tensor]:
            depth = uniform(nearest, 24.0, bodies)
            return uniform(-0.6, 0.6, bodies) * depth, depth

        def there(bodies: int) -> Tensor:
            return (torch.arange(bodies) < uniform(1.0, bodies + 1.0, 1)).float()

        radius = uniform(0.4, 1.3, _BODIES) * there(_BODIES)
        x, z = places(_BODIES, 4.0)
        balls = torch.stack([x, radius, z, radius], -1)
        x, z = places(_BODIES, 8.0)
        halves = uniform(1.0, 3.0, 2, _BODIES)
        height = uniform(2.0, 8.0, _BODIES) * there(_BODIES)
        boxes = torch.stack(
            [x, z, halves[:, 0], halves[:, 1], height, uniform(0, math.pi / 2, _BODIES)], -1
        )
        x, z = places(_BODIES, 4.0)
        height = uniform(2.5, 6.0, _BODIES) * there(_BODIES)
        poles = torch.stack([x, z, uniform(0.12, 0.35, _BODIES), height], -1)
        x, z = places(1, 4.0)
        cones = torch.stack(
            [0.6 * x, z.clamp(max=10.0), uniform(0.6, 1.4, 1), uniform(1.2, 2.8, 1) * foreign], -1
        )
        x, z = places(1, 3.0)
        height = uniform(1.5, 3.0, 1) * (uniform(0, 1, 1) < 0.5)  # glass in every second scene
        panes = torch.stack(
            [0.5 * x, z.clamp(max=7.0), uniform(0.8, 2.0, 1), height, uniform(-0.6, 0.6, 1)], -1
        )
        labels = torch.tensor([_FOREIGN, 1, *[3] * _BODIES, *[2] * _BODIES, *[4] * _BODIES])
        mean = _COLOURS[labels] + _SPREAD * torch.randn(count, len(labels), 3, generator=generator)
        contrast = 1 + uniform(-0.35, 0.35, len(labels))[..., None]
        sun = torch.stack([uniform(-1, 1), uniform(0.6, 1.5), uniform(-1, 0.3)], -1)
        return cls(
            *(balls, boxes, poles, cones, panes),
            torch.stack([mean, mean * contrast], 2).clamp(0, 1),
            uniform(0.3, 1.2, len(labels)),
            _COLOURS[0] + 0.5 * _SPREAD * torch.randn(count, 3, generator=generator),
            sun / sun.norm(dim=-1, keepdim=True),
            uniform(0.75, 1.25),
            uniform(0, 1) < 0.5,
        )

    def part(self, start: int) -> "_World":
        chosen = slice(start, start + _CHUNK)
        return _World(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Hits:
    """Where rays meet bodies: distance (inf: nowhere), unit normal, place on the texture."""

    distance: Float[Tensor, "n k i"]
    normal: Float[Tensor, "n k i 3"]
    texture: Float[Tensor, "n k i 2"]


def _directions(size: int) -> Float[Tensor, "i 3"]:
    """Unit rays through the middles of the pixels, rows from above, 70 degrees a side."""
    edge = math.tan(math.radians(35.0))
    across = edge * ((2 * torch.arange(size) + 1) / size - 1)
    up, right = torch.meshgrid(-across, across, indexing="ij")
    rays = torch.stack([right, up, torch.ones_like(up)], -1).reshape(-1, 3)
    found: Tensor = rays / rays.norm(dim=-1, keepdim=True)
    return found


def _cast(world: _World, rays: Tensor, fog: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Colours before exposure ``(n, i, 3)``, labels, near and far depths ``(n, i)``."""
    bodies = [
        _meet_cones(world.cones, rays),
        _meet_ground(rays, len(world.sky)),
        _meet_balls(world.balls, rays),
        _meet_boxes(world.boxes, rays),
        _meet_poles(world.poles, rays),
    ]
    labels = torch.tensor([_FOREIGN, 1, *[3] * _BODIES, *[2] * _BODIES, *[4] * _BODIES])
    distance, first = torch.cat([body.distance for body in bodies], 1).min(1)
    seen = distance < _FAR

    def of_first(values: Tensor) -> Tensor:
        index = first[:, None, :, None].expand(-1, 1, -1, values.shape[-1])
        found: Tensor = values.gather(1, index)[:, 0]
        return found

    normal = of_first(torch.cat([body.normal for body in bodies], 1))
    place = of_first(torch.cat([body.texture for body in bodies], 1))
    steps = world.scales.gather(1, first)[..., None]
    square = (place / steps).floor().sum(-1).remainder(2).long()
    scene = torch.arange(len(first))[:, None]
    light = 0.45 + 0.55 * (normal * world.sun[:, None]).sum(-1).clamp(min=0)
    surface = world.colours[scene, first, square] * light[..., None]
    # The sky pales towards the horizon; fog has the colour of the horizon.
    horizon = 0.5 * world.sky[:, None] + 0.5
    height = rays[:, 1].clamp(min=0)[None, :, None]
    sky = horizon + (world.sky[:, None] - horizon) * (3 * height).clamp(max=1)
    clear = torch.exp(-fog * distance.where(seen, torch.zeros(())))[..., None]
    colour = torch.where(seen[..., None], clear * surface + (1 - clear) * horizon, sky)

    pane = _meet_panes(world.panes, rays).distance[:, 0]
    glazed = pane < distance
    colour = torch.where(glazed[..., None], 0.8 * colour + 0.2 * world.sky[:, None], colour)
    nothing = torch.full_like(distance, math.nan)
    far = torch.where(seen, distance, nothing)
    # In front of the sky a pane is all that there is to measure.
    near = torch.where(glazed, pane, far)
    far = torch.where(glazed & ~seen, pane, far)
    return colour, torch.where(seen, labels[first], 0), near, far


def _meet_ground(rays: Tensor, count: int) -> _Hits:
    distance = torch.where(rays[:, 1] < 0, -_EYE / rays[:, 1], math.inf)
    distance = torch.where(distance < _FAR, distance, math.inf)
    points = distance.nan_to_num(posinf=0.0)[:, None] * rays
    up = torch.tensor([0.0, 1.0, 0.0]).expand_as(rays)
    hits = (distance, up, points[:, [0, 2]])
    return _Hits(*(value.expand(count, 1, *value.shape) for value in hits))


def _meet_balls(balls: Tensor, rays: Tensor) -> _Hits:
    """``|o + t d - c| = r``."""
    centre, radius = balls[..., None, :3], balls[..., None, 3]
    offset = torch.tensor([0.0, _EYE, 0.0]) - centre
    distance = _nearer_root(
        torch.ones(()), (rays * offset).sum(-1), offset.square().sum(-1) - radius**2
    )
    distance = torch.where(radius > 0, distance, math.inf)
    points = _points(distance, rays)
    normal = (points - centre) / radius.clamp(min=1e-6)[..., None]
    return _Hits(distance, normal, torch.stack([normal[..., 1], torch.zeros_like(distance)], -1))


def _meet_poles(poles: Tensor, rays: Tensor) -> _Hits:
    """``|(o + t d - c) without its height| = r``, up to the pole's top."""
    x, z, radius, height = poles[..., None, :].unbind(-1)
    dx, _, dz = rays.unbind(-1)
    distance = _nearer_root(dx**2 + dz**2, -x * dx - z * dz, x**2 + z**2 - radius**2)
    points = _points(distance, rays)
    inside = (points[..., 1] >= 0) & (points[..., 1] <= height)
    normal = torch.stack(
        [(points[..., 0] - x) / radius, torch.zeros_like(distance), (points[..., 2] - z) / radius],
        -1,
    )
    texture = torch.stack([points[..., 1], torch.zeros_like(distance)], -1)
    return _Hits(torch.where(inside, distance, math.inf), normal, texture)


def _meet_cones(cones: Tensor, rays: Tensor) -> _Hits:
    """``|(o + t d - c) without its height| = slope (apex - y)``, between ground and apex."""
    x, z, radius, height = cones[..., None, :].unbind(-1)
    dx, dy, dz = rays.unbind(-1)
    slope = radius / height.clamp(min=1e-6)
    above = height - _EYE
    distance = _nearer_root(
        dx**2 + dz**2 - (slope * dy) ** 2,
        -x * dx - z * dz + slope**2 * above * dy,
        x**2 + z**2 - (slope * above) ** 2,
    )
    points = _points(distance, rays)
    inside = (points[..., 1] >= 0) & (points[..., 1] <= height) & (height > 0)
    normal = torch.stack(
        [points[..., 0] - x, slope**2 * (height - points[..., 1]), points[..., 2] - z], -1
    )
    normal = normal / normal.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    texture = torch.stack([points[..., 1], torch.zeros_like(distance)], -1)
    return _Hits(torch.where(inside, distance, math.inf), normal, texture)


def _meet_boxes(boxes: Tensor, rays: Tensor) -> _Hits:
    """Slabs in the frame of each box, which is turned about the vertical."""
    x, z, wide, long, height, angle = boxes[..., None, :].unbind(-1)
    local = _turned(rays.expand(*boxes.shape[:2], -1, 3), -angle)
    eye = torch.stack([-x, _EYE - height / 2, -z], -1)
    eye = _turned(eye, -angle)
    half = torch.stack([wide, height / 2, long], -1)
    safe = torch.where(local.abs() < 1e-9, torch.full_like(local, 1e-9), local)
    bounds = torch.stack([(-half - eye) / safe, (half - eye) / safe])
    entry, axis = bounds.amin(0).max(-1)
    leave = bounds.amax(0).amin(-1)
    met = (entry < leave) & (entry > 0) & (height > 0)
    distance = torch.where(met, entry, math.inf)
    normal = -torch.sign(local) * torch.nn.functional.one_hot(axis, 3)
    points = eye + _finite(distance)[..., None] * local
    flat = torch.where(axis[..., None] == 0, points[..., [2, 1]], points[..., [0, 1]])
    texture = torch.where(axis[..., None] == 1, points[..., [0, 2]], flat)
    return _Hits(distance, _turned(normal, angle), texture)


def _meet_panes(panes: Tensor, rays: Tensor) -> _Hits:
    """A vertical rectangle, turned about the vertical."""
    x, z, half, height, angle = panes[..., None, :].unbind(-1)
    normal = torch.stack([angle.sin(), torch.zeros_like(angle), angle.cos()], -1)
    towards = (rays * normal).sum(-1)
    distance = (x * normal[..., 0] + z * normal[..., 2]) / towards
    distance = torch.where((towards > 1e-6) & (distance > 0), distance, math.inf)
    points = _points(distance, rays)
    along = (points[..., 0] - x) * angle.cos() - (points[..., 2] - z) * angle.sin()
    inside = (along.abs() <= half) & (points[..., 1] >= 0) & (points[..., 1] <= height)
    distance = torch.where(inside, distance, math.inf)
    return _Hits(distance, normal.expand_as(points), points[..., :2])


def _nearer_root(a: Tensor, half_b: Tensor, c: Tensor) -> Tensor:
    """The smaller positive root of ``a t² + 2 half_b t + c``, inf where there is none.

    The eye stands outside of every body, so that both roots have one sign, except of a cone's
    second half, which the caller cuts off by its height.
    """
    square = half_b**2 - a * c
    root = square.clamp(min=0).sqrt()
    steep = torch.where(a.abs() < 1e-9, torch.full_like(a, 1e-9), a)
    both = torch.stack([(-half_b - root) / steep, (-half_b + root) / steep])
    both = torch.where((both > 0) & (square >= 0), both, math.inf)
    return both.amin(0)


def _finite(distance: Tensor) -> Tensor:
    return torch.where(distance.isfinite(), distance, torch.zeros(()))


def _points(distance: Tensor, rays: Tensor) -> Tensor:
    return torch.tensor([0.0, _EYE, 0.0]) + _finite(distance)[..., None] * rays


def _turned(vectors: Tensor, angle: Tensor) -> Tensor:
    """Vectors turned about the vertical."""
    x, y, z = vectors.unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos * x + sin * z, y.expand_as(cos * x), cos * z - sin * x], -1)
