import math

import numpy as np
import pytest
import torch
from torch.func import functional_call, jvp, linearize, vjp, vmap

from coset.errors import CosetError
from coset.tomography import FanBeam, ParallelBeam

SCANS = [
    ParallelBeam(14, 7),
    ParallelBeam(9, (0.1, 0.7, 2.0), detectors=5),
    FanBeam(14, 7),
    FanBeam(9, 5, detectors=11, source_distance=40.0, detector_distance=10.0),
]


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def disc(size, radius, fine=8):
    """A disc by the share of each pixel that it covers."""
    places = (torch.arange(size * fine, dtype=torch.float64) + 0.5) / fine - size / 2
    inside = (places[:, None].square() + places.square() < radius**2).double()
    return inside.reshape(size, fine, size, fine).mean((1, 3))


@pytest.mark.parametrize("scan", SCANS)
def test_the_adjoint_is_exact(scan):
    image, readings = drawn(scan.size, scan.size), drawn(len(scan.directions), scan.bins, seed=1)
    left = (scan.forward(image) * readings).sum()
    right = (image * scan.adjoint(readings)).sum()
    assert abs(float(left - right)) < 1e-12 * float(left.abs() + 1)
    dense = torch.from_numpy(scan.matrix.toarray())
    torch.testing.assert_close(scan.forward(image).flatten(), dense @ image.flatten())
    torch.testing.assert_close(scan.adjoint(readings).flatten(), dense.T @ readings.flatten())


@pytest.mark.parametrize("scan", [ParallelBeam(64, 12), ParallelBeam(64, 5, detectors=45)])
def test_projections_of_a_disc(scan):
    """``2 √(r² - s²)``, averaged over each bin."""
    radius = 20.0
    edges = ((torch.arange(scan.bins + 1) - scan.bins / 2) * scan.width).clamp(-radius, radius)
    area = edges * (radius**2 - edges.square()).sqrt() + radius**2 * (edges / radius).asin()
    expected = area.diff().double() / scan.width
    found = scan.forward(disc(64, radius))
    assert float((found - expected).abs().max()) < 0.03 * 2 * radius
    assert float((found - expected).square().mean().sqrt()) < 0.005 * 2 * radius


@pytest.mark.parametrize("scan", [s for s in SCANS if isinstance(s, ParallelBeam)])
def test_the_matrix_is_that_of_astra(scan):
    """Its areas of strips and pixels are in single precision."""
    astra = pytest.importorskip("astra", reason="compares with astra-toolbox", exc_type=ImportError)
    volume = astra.create_vol_geom(scan.size, scan.size)
    directions = np.asarray(scan.directions)
    geometry = astra.create_proj_geom("parallel", scan.width, scan.bins, directions)
    projector = astra.create_projector("strip", geometry, volume)
    number = astra.projector.matrix(projector)
    theirs = astra.matrix.get(number)
    astra.matrix.delete(number)
    astra.projector.delete(projector)
    assert abs(theirs - scan.operator.matrix).max() < 1e-5


def test_projections_of_a_disc_in_a_fan():
    scan, radius = FanBeam(64, 9), 20.0
    source, far = scan.distances
    parts = (torch.arange(8 * scan.bins, dtype=torch.float64) + 0.5) / 8 - scan.bins / 2
    offset = source * (parts * scan.width / (source + far)).atan().sin()
    expected = 2 * (radius**2 - offset.square()).clamp_min(0).sqrt().unflatten(0, (-1, 8)).mean(1)
    found = scan.forward(disc(64, radius))
    assert float((found - expected).abs().max()) < 0.03 * 2 * radius


def test_every_parallel_projection_has_the_mass_of_the_image():
    scan, image = ParallelBeam(17, 13), drawn(17, 17)
    mass = scan.forward(image).sum(-1) * scan.width
    torch.testing.assert_close(mass, image.sum().expand(13))


def test_a_quarter_turn_permutes_the_readings():
    scan, image = ParallelBeam(12, 8), drawn(12, 12)
    turned = scan.forward(image.rot90(-1))
    torch.testing.assert_close(turned[:4], scan.forward(image)[4:])
    torch.testing.assert_close(turned[4:], scan.forward(image)[:4].flip(-1))


def test_lines_through_the_middle_by_hand():
    """Three bins over the diagonal of a 1-pixel-thick cross; the middle bin is 2√2/3 wide."""
    scan = ParallelBeam(2, (0.0, math.pi / 4), detectors=3)
    readings = scan.forward(torch.ones(2, 2, dtype=torch.float64))
    side = 2 * math.sqrt(2) / 3
    torch.testing.assert_close(readings[0, 1], torch.tensor(2.0, dtype=torch.float64))
    lost = side / 2  # along the diagonal the length falls from 2√2 by twice the offset
    expected = torch.tensor(2 * math.sqrt(2) - lost, dtype=torch.float64)
    torch.testing.assert_close(readings[1, 1], expected)


def test_a_far_source_gives_parallel_rays():
    fan = FanBeam(16, (0.0, 0.4, 2.0), detectors=23, source_distance=1e5, detector_distance=20.0)
    parallel = ParallelBeam(16, (0.0, 0.4, 2.0), detectors=23)
    image = disc(16, 5.0) + disc(16, 2.0).roll(3, 0)
    # four rays a bin against the whole bin
    assert float((fan.forward(image) - parallel.forward(image)).abs().max()) < 0.05 * 10


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")  # linearize, of any constant
@pytest.mark.parametrize("scan", SCANS)
def test_derivatives_of_every_kind(scan):
    image, other = drawn(scan.size, scan.size), drawn(scan.size, scan.size, seed=2)
    readings = scan.forward(other)
    torch.testing.assert_close(jvp(scan.forward, (image,), (other,))[1], readings)
    torch.testing.assert_close(linearize(scan.forward, image)[1](other), readings)
    torch.testing.assert_close(vjp(scan.forward, image)[1](readings)[0], scan.adjoint(readings))
    stack = torch.stack([image, other])
    torch.testing.assert_close(vmap(scan.forward)(stack), scan.forward(stack))
    torch.testing.assert_close(
        vmap(scan.forward, in_dims=2, out_dims=1)(stack.movedim(0, 2)),
        scan.forward(stack).movedim(0, 1),
    )
    pulled = vmap(lambda row: vjp(scan.forward, image)[1](row)[0])(scan.forward(stack))
    torch.testing.assert_close(pulled, scan.adjoint(scan.forward(stack)))
    small = image.clone().requires_grad_()
    assert torch.autograd.gradcheck(scan.forward, (small,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: scan.forward(x).square(), (small,))


def test_products_leave_the_type_and_the_graph_alone():
    scan, layer = ParallelBeam(8, 3), torch.nn.Linear(64, 64)
    image = drawn(64, dtype=torch.float32)
    readings = functional_call(layer, dict(layer.named_parameters()), (image,))
    scan.forward(readings).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    assert scan.forward(image).shape == (3 * scan.bins,)


def test_default_geometry_of_the_published_study():
    """41 bins of width 0.9658 over [-14 √2, 14 √2] for 28 × 28 pixels."""
    scan = ParallelBeam(28, 20)
    assert scan.bins == 41
    assert abs(scan.width - 0.9658) < 1e-4
    assert scan.directions[0] == 0.0
    assert scan.matrix.shape == (820, 784)
    assert FanBeam(28, 4).directions == pytest.approx((0, math.pi / 2, math.pi, 1.5 * math.pi))


def test_every_pixel_is_seen_from_every_side():
    for scan in (ParallelBeam(16, 9), FanBeam(16, 9)):
        seen = np.asarray(scan.matrix.toarray()).reshape(9, scan.bins, 256).sum(1)
        assert seen.min() > 0.5


@pytest.mark.parametrize(
    "scan", [ParallelBeam(48, 90), ParallelBeam(48, 70, detectors=60), FanBeam(48, 180)]
)
def test_filtered_back_projection_restores_a_smooth_image(scan):
    places = torch.arange(48, dtype=torch.float64) - 23.5
    across, down = (places - 5) ** 2, (places + 4) ** 2
    image = torch.exp(-(down[:, None] + across) / (2 * 5.0**2))
    found = scan.filtered_back_projection(scan.forward(image))
    assert float((found - image).abs().max()) < 0.04


def test_angles_in_any_order_weigh_what_they_stand_for():
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    angles = [math.pi * place / 40 for place in order]
    places = torch.arange(24, dtype=torch.float64) - 11.5
    image = torch.exp(-(places[:, None] ** 2 + places**2) / 30)
    mixed, plain = ParallelBeam(24, angles), ParallelBeam(24, 40)
    torch.testing.assert_close(
        mixed.filtered_back_projection(mixed.forward(image)),
        plain.filtered_back_projection(plain.forward(image)),
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ParallelBeam(1, 3), "size"),
        (lambda: ParallelBeam(8, 0), "angles"),
        (lambda: ParallelBeam(8, True), "angles"),
        (lambda: ParallelBeam(8, [0.0, 45.0]), "radians"),
        (lambda: ParallelBeam(8, [0.0, 0.0]), "twice"),
        (lambda: ParallelBeam(8, [math.nan]), "finite"),
        (lambda: ParallelBeam(8, 3, detectors=1.5), "detectors"),
        (lambda: FanBeam(8, 3, source_distance=4.0), "source_distance"),
        (lambda: ParallelBeam(8, 3).forward(torch.ones(7, 7)), "shape"),
        (lambda: ParallelBeam(8, 3).adjoint(torch.ones(13, 3)), "transposed"),
        (lambda: ParallelBeam(8, 3).adjoint(torch.ones(4, 13)), "angles by detectors"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(CosetError, match=words):
        make()
