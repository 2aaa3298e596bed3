"""Small problems of tomography: a narrow network, few pixels, double precision."""

import torch

from coset.tomography import DeepImagePrior, ParallelBeam, image_network, phantoms, simulate
from coset.tomography.deep_image_prior import fit_images
from coset.tomography.features import Features, blocks_of
from coset.tomography.linear_model import _projected, evidence_problem
from coset.tomography.observed import observe
from coset.tomography.priors import TotalVariationInformed

QUICK = DeepImagePrior(steps=150, rate=1e-2)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def readings_of(scan, *, seed=0, level=0.05, photons=None):
    image = phantoms.rectangles(2 * scan.size, generator=seeded(seed))
    if photons is not None:
        image = image * 4 / scan.size
    return simulate(image, scan, level=level, photons=photons, generator=seeded(seed))


def fitted_problem(size=10, angles=5, width=3, *, prior=None, settings=QUICK, noise="gaussian"):
    """A fitted network, its derivatives, and the evidence's problem."""
    scan = ParallelBeam(size, angles)
    made = readings_of(scan)
    observed = observe(made.readings, scan, noise)
    module = image_network(size, width=width).double()
    (fitted,) = fit_images(module, [observed], settings, generator=seeded())
    features = Features(fitted, blocks_of(fitted.network))
    pixels = features.rows(torch.eye(size**2))
    rows = [_projected(observed.operator, part) for part in pixels]
    problem = evidence_problem(features, observed, pixels, rows, prior or TotalVariationInformed())
    return made, observed, features, pixels, rows, problem
