"""Scans next to astra-toolbox, deepinv, scikit-image and SciPy, steps of the evidence, and whole
reconstructions, in CPU seconds.

python benchmarks/tomography.py [--whole]

Peers that are not installed are left out.  ``pip install astra-toolbox scikit-image`` brings two;
deepinv is installed with ``--no-deps``, together with natsort and hdf5storage: its projector needs
nothing of torchvision, which its other modules import, so that here an empty module stands for it.
``--whole`` adds reconstructions from readings to error bars, some CPU minutes.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import math
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable

import numpy as np
import torch

from coset.tomography import (
    DeepImagePrior,
    ParallelBeam,
    TotalVariationInformed,
    image_network,
    phantoms,
    reconstruct,
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
    if importlib.util.find_spec("deepinv") is not None:
        rows["deepinv"] = _deepinv(size, angles, image)
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


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in place of a package that is imported but not used."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = _any_class
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _any_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def _projector(size: int, angles: int) -> object:
    if importlib.util.find_spec("torchvision") is None and "torchvision" not in sys.modules:
        sys.meta_path.append(_Absent())
    from deepinv.physics import Tomography

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Tomography(angles=angles, img_width=size, circle=False, normalize=False)


def _deepinv(size: int, angles: int, image: torch.Tensor) -> tuple[float, float, float]:
    physics = _projector(size, angles)
    picture = image.float()[None, None]
    seen = physics.A(picture)
    return (
        cpu(lambda: _projector(size, angles), 3),
        cpu(lambda: physics.A(picture), 10),
        cpu(lambda: physics.A_adjoint(seen), 10),
    )


def derivatives(size: int, angles: int) -> None:
    """Which projectors torch can differentiate forward, as a linearised network needs."""
    image = phantoms.shepp_logan(size).float()
    contestants = {"coset": ParallelBeam(size, angles).forward}
    if importlib.util.find_spec("deepinv") is not None:
        physics = _projector(size, angles)
        contestants["deepinv"] = lambda x: physics.A(x[None, None])
    for name, project in contestants.items():
        try:
            torch.func.jvp(project, (image,), (image,))
            found = "works"
        except NotImplementedError as error:
            found = str(error).splitlines()[0]
        print(f"forward-mode derivative of {name}'s projector: {found}")


def whole(size: int, angles: int) -> None:
    """From readings to error bars, with all that is default."""
    generator = torch.Generator().manual_seed(0)
    scan = ParallelBeam(size, angles)
    made = simulate(phantoms.walnut(2 * size, generator=generator), scan, generator=generator)
    begin = time.process_time()
    result = reconstruct(made.readings, scan)
    taken = time.process_time() - begin
    print(
        f"{size}² pixels, {angles} angles, {made.readings.numel()} readings, default network: "
        f"{taken:.0f} CPU s; noise learnt {result.noise:.3g}, true {made.noise:.3g}"
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
    derivatives(*SIZES[0])
    evidence(28, 20, 8)
    if "--whole" in sys.argv[1:]:
        whole(28, 20)
        whole(64, 20)
