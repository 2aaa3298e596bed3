"""Ray-cast scenes, against a march along each ray that knows bodies only from inside."""

import math

import pytest
import torch

from coset.data import SCENE_CLASSES, cast_scenes, scenes
from coset.data.scenes import _World
from coset.errors import CosetError

SIZE = 12


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def inside(world, scene, x, y, z):
    """The label of the body that holds each point, -1 for air: written from the shapes alone."""
    label = torch.full_like(x, -1, dtype=torch.long)
    label[y <= 0] = 1
    for cx, cy, cz, radius in world.balls[scene].tolist():
        label[(x - cx) ** 2 + (y - cy) ** 2 + (z - cz) ** 2 <= radius**2] = 3
    for cx, cz, radius, height in world.poles[scene].tolist():
        label[((x - cx) ** 2 + (z - cz) ** 2 <= radius**2) & (y <= height) & (y >= 0)] = 4
    for cx, cz, radius, height in world.cones[scene].tolist():
        if height:
            wide = radius * (1 - y / height)
            round_ = (x - cx) ** 2 + (z - cz) ** 2 <= wide**2
            label[round_ & (y <= height) & (y >= 0)] = 5
    for cx, cz, wide, long, height, angle in world.boxes[scene].tolist():
        across = (x - cx) * math.cos(angle) - (z - cz) * math.sin(angle)
        along = (x - cx) * math.sin(angle) + (z - cz) * math.cos(angle)
        label[(across.abs() <= wide) & (along.abs() <= long) & (y <= height) & (y >= 0)] = 2
    return label


@pytest.mark.parametrize("foreign", [False, True])
def test_depths_and_labels_are_those_of_a_march_along_the_ray(foreign):
    count, step = 4, 0.01
    cast = cast_scenes(count, size=SIZE, foreign=foreign, generator=seeded(3))
    world = _World.drawn(count, foreign, seeded(3))
    times = torch.arange(step, 60, step, dtype=torch.float64)
    compared = 0
    for scene in range(count):
        for row in range(SIZE):
            for column in range(SIZE):
                edge = math.tan(math.radians(35))
                x = edge * ((2 * column + 1) / SIZE - 1)
                y = edge * (1 - (2 * row + 1) / SIZE)
                length = math.sqrt(x * x + y * y + 1)
                t = times / length
                met = inside(world, scene, x * t, 1.5 + y * t, t)
                hits = (met >= 0).nonzero()
                far = float(cast.far[scene, row, column])
                if cast.glass[scene, row, column]:
                    assert float(cast.near[scene, row, column]) < far
                pane = cast.near[scene, row, column] == cast.far[scene, row, column]
                if not len(hits):  # the sky, or a pane in front of it
                    assert cast.labels[scene, row, column] == 0
                    assert math.isnan(far) or pane
                    continue
                first = int(hits[0])
                # A body thinner than a step at this place is passed by: there are few.
                if abs(far - float(times[first])) <= 1.5 * step:
                    assert cast.labels[scene, row, column] == met[first]
                    compared += 1
    solid = int((cast.labels > 0).sum())
    assert compared >= 0.98 * solid


def test_glass_has_two_depths_and_each_picture_takes_one():
    cast = cast_scenes(400, size=16, generator=seeded(1))
    glass = cast.glass
    assert 0.005 < glass.float().mean() < 0.2
    seen = [
        bool((cast.depth == cast.near)[k][glass[k]].all()) for k in range(400) if glass[k].any()
    ]
    for k in range(400):
        at = glass[k]
        same_as_near = (cast.depth[k] == cast.near[k])[at]
        same_as_far = (cast.depth[k] == cast.far[k])[at]
        assert bool(same_as_near.all()) or bool(same_as_far.all())
    # Each pane is measured with probability 1/2: five standard errors, false alarm 6e-7.
    assert abs(sum(seen) - len(seen) / 2) < 5 * math.sqrt(len(seen)) / 2
    known = ~glass & cast.depth.isfinite()
    assert torch.equal(cast.near[known], cast.depth[known])


def test_which_depth_is_measured_does_not_show_in_the_picture():
    # The choice comes last among the numbers drawn of a world, so that all else is equal.
    world = _World.drawn(50, False, seeded(2))
    cast = cast_scenes(50, size=16, generator=seeded(2))
    measured = (cast.depth == cast.near) | cast.depth.isnan()
    for k in range(50):
        if cast.glass[k].any():
            assert bool(measured[k][cast.glass[k]].all()) == bool(world.sees_glass[k])


def test_equal_seeds_give_equal_scenes_in_range():
    first, labels = scenes("segmentation", 40, size=16, generator=seeded(5))
    again, same = scenes("segmentation", 40, size=16, generator=seeded(5))
    other, _ = scenes("segmentation", 40, size=16, generator=seeded(6))
    assert torch.equal(first, again)
    assert torch.equal(labels, same)
    assert not torch.equal(first, other)
    assert 0 <= first.min() < first.max() <= 1
    assert labels.unique().tolist() == list(range(len(SCENE_CLASSES)))


def test_both_kinds_show_the_same_scenes():
    pictures, depth = scenes("depth", 6, size=16, generator=seeded())
    same, labels = scenes("segmentation", 6, size=16, generator=seeded())
    assert torch.equal(pictures, same)
    assert bool((labels[depth.isnan()] == 0).all())
    assert bool(depth[labels > 0].isfinite().all())


def test_fog_hides_what_is_far_and_noise_is_as_strong_as_said():
    clear = cast_scenes(8, size=16, fog=0.0, noise=0.0, generator=seeded())
    dense = cast_scenes(8, size=16, fog=0.5, noise=0.0, generator=seeded())
    assert torch.equal(clear.labels, dense.labels)
    changed = (clear.pictures - dense.pictures).abs().mean(1)
    far, close = clear.far > 20, clear.far < 5
    assert changed[far].mean() > changed[close].mean()
    loud = cast_scenes(8, size=16, fog=0.0, noise=0.05, generator=seeded())
    middling = (clear.pictures > 0.25) & (clear.pictures < 0.75)
    noise = (loud.pictures - clear.pictures)[middling]
    assert float(noise.std()) == pytest.approx(0.05, rel=0.1)


def test_foreign_bodies_have_a_label_of_their_own():
    cast = cast_scenes(20, size=24, foreign=True, generator=seeded())
    assert cast.foreign.flatten(1).any(1).sum() >= 10
    assert not cast_scenes(20, size=24, generator=seeded()).foreign.any()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kind": "both"}, "both"),
        ({"count": 0}, "count=0"),
        ({"size": 2.5}, "size=2.5"),
        ({"fog": -1.0}, "fog"),
        ({"noise": math.nan}, "noise"),
        ({"generator": 3}, "generator"),
    ],
)
def test_bad_settings_are_refused(change, word):
    settings = {"kind": "depth", "count": 1, "generator": seeded(), **change}
    with pytest.raises(CosetError, match=word):
        scenes(settings.pop("kind"), settings.pop("count"), **settings)
