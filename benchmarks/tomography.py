"""Scans next to astra-toolbox, scikit-image and SciPy, and steps of the evidence, in CPU seconds.

python benchmarks/tomography.py

Peers that are not installed are left out.  deepinv is left out: it needs torchvision, which this
project does not use, and its projector has no forward-mode derivative, so that a deep image prior
cannot be linearised with it.
"""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from coset.tomography import (
    DeepImagePrior,
    ParallelBeam,
    TotalVariationInformed,
    image_network,
    phantoms,
    simulate,
)
from coset.tomography.deep_image_prior import fit_images
from coset.tomography.evidence import EvidenceProblem, Scales
from coset.tomography.linear_model import LinearModel, linear_model
from coset.tomography.observed import observe

SIZES = ((28, 20), (64, 30), (128, 60))


def cpu(run: Callable[[], object], repeats: int) -> float:
    """The median of CPU seconds, the first run not counted."""
    run()
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def scans(size: int, angles: int) -> None:
    """One line a contestant: building the matrix, a projection, a projection back."""
    image = phantoms.shepp_logan(size)
    scan = ParallelBeam(size, angles)
    readings = scan.forward(image)
    matrix, transposed = scan.matrix, scan.matrix.T.tocsr()
    flat, seen = image.flatten().numpy(), readings.flatten().numpy()
    rows = {
        "coset": (
            cpu(lambda: ParallelBeam(size, angles).operator, 3),
            cpu(lambda: scan.forward(image), 50),
            cpu(lambda: scan.adjoint(readings), 50),
        ),
        "SciPy, same matrix": (
            math.nan,
            cpu(lambda: matrix @ flat, 50),
            cpu(lambda: transposed @ seen, 50),
        ),
    }
    if importlib.util.find_spec("astra") is not None:
        rows["astra-toolbox, matrix"] = _astra(size, angles, scan, flat)
    if importlib.util.find_spec("skimage") is not None:
        rows["scikit-image"] = _skimage(size, angles, image.numpy())
    for name, (build, forward, back) in rows.items():
        print(
            f"{size:4d}² x {angles:2d} angles  {name:22s} build {1e3 * build:8.1f} ms   "
            f"forward {1e3 * forward:8.3f} ms   back {1e3 * back:8.3f} ms",
            flush=True,
        )


def _astra(
    size: int, angles: int, scan: ParallelBeam, flat: np.ndarray
) -> tuple[float, float, float]:
    import astra

    directions = np.asarray(scan.directions)

    def build() -> object:
        volume = astra.create_vol_geom(size, size)
        geometry = astra.create_proj_geom("parallel", scan.width, scan.bins, directions)
        projector = astra.create_projector("strip", geometry, volume)
        number = astra.projector.matrix(projector)
        found = astra.matrix.get(number)
        astra.matrix.delete(number)
        astra.projector.delete(projector)
        return found

    matrix = build()
    there = np.ones(matrix.shape[0])
    transposed = matrix.T.tocsr()
    return (
        cpu(build, 3),
        cpu(lambda: matrix @ flat, 50),
        cpu(lambda: transposed @ there, 50),
    )


def _skimage(size: int, angles: int, image: np.ndarray) -> tuple[float, float, float]:
    from skimage.transform import iradon, radon

    degrees = np.linspace(0, 180, angles, endpoint=False)
    seen = radon(image, degrees, circle=False)
    return (
        math.nan,
        cpu(lambda: radon(image, degrees, circle=False), 3),
        cpu(lambda: iradon(seen, degrees, filter_name=None, circle=False), 3),
    )


def evidence(size: int, angles: int, width: int) -> None:
    """A step of the evidence from class matrices, and by building the covariance anew."""
    generator = torch.Generator().manual_seed(0)
    scan = ParallelBeam(size, angles)
    made = simulate(phantoms.shepp_logan(2 * size), scan, generator=generator)
    observed = observe(made.readings, scan, "gaussian")
    settings = DeepImagePrior(steps=20)
    (fitted,) = fit_images(
        image_network(size, width=width), [observed], settings, generator=generator
    )
    model = linear_model(fitted, observed)
    problem = model.problem(TotalVariationInformed())
    fast = cpu(lambda: _step(problem), 3)
    slow = cpu(lambda: _rebuilt(model, problem), 3)
    print(
        f"evidence step, {len(observed.values)} readings, {model.features.count} weights: "
        f"{fast:.3f} s by class matrices, {slow:.3f} s rebuilt: {slow / fast:.1f} times"
    )


def _scales(problem: EvidenceProblem) -> Scales:
    taps = [len(matrices) > 1 for matrices in problem.grams]
    lengths = torch.tensor([1.0 if has else math.nan for has in taps]).double()
    return Scales(torch.full_like(lengths, 0.01), lengths, torch.tensor(0.01).double())


def _step(problem: EvidenceProblem) -> None:
    """The evidence and its derivatives."""
    scales = _scales(problem)
    variances = scales.variances.requires_grad_()
    problem.log_evidence(Scales(variances, scales.lengths, scales.noise)).backward()


def _rebuilt(model: LinearModel, problem: EvidenceProblem) -> None:
    """The same from the derivatives of the readings, differentiated by autograd."""
    scales = _scales(problem)
    variances = scales.variances.requires_grad_()
    moved = Scales(variances, scales.lengths, scales.noise)
    total = scales.noise * torch.eye(len(problem.residual)).double()
    for rows, covariance in zip(model.readings, moved.covariances(), strict=True):
        wide = rows.double()
        total = total + (wide @ covariance).flatten(1) @ wide.flatten(1).mT
    factor = torch.linalg.cholesky(total)
    white = torch.linalg.solve_triangular(factor, problem.residual[:, None], upper=False)
    (-white.square().sum() / 2 - factor.diagonal().log().sum()).backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in SIZES:
        scans(*case)
    evidence(28, 20, 8)
