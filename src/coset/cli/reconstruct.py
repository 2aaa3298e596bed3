"""``coset reconstruct``: an image with error bars from projections."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from coset.cli.numbers import whole_number
from coset.cli.places import check_folder
from coset.errors import CosetError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.tomography import Simulated
    from coset.tomography.scans import FanBeam, ParallelBeam


def reconstruct(
    readings: Path | None = None,
    /,
    *,
    example: bool = False,
    angles: Annotated[int | None, whole_number(1, 100_000)] = None,
    geometry: Literal["parallel", "fan"] = "parallel",
    size: Annotated[int | None, whole_number(2, 4096)] = None,
    photons: float | None = None,
    missing: Literal["refuse", "nan"] = "refuse",
    steps: Annotated[int, whole_number(1, 1_000_000)] = 2000,
    samples: Annotated[int, whole_number(0, 100_000)] = 4,
    seed: Annotated[int, whole_number(0, 2**63 - 1)] = 0,
    out: Path = Path("coset-reconstruction"),
) -> None:
    """Reconstructs an image from projections, with a standard deviation for every pixel.

    Writes report.html, image.npy and standard_deviation.npy into the folder. The readings are a
    .npy file of angles by detector bins: line integrals, or counts together with --photons. The
    detector is as wide as the image's diagonal.

    Args:
        readings: The .npy file.
        example: Make readings of a real slice and reconstruct that, 32 × 32 pixels from 40 angles
            unless --size and --angles say otherwise; shows the truth beside.
        angles: How many there are, equally spaced over 180 degrees from 0 (fan: over 360).
        geometry: Parallel rays, or a fan from a point source.
        size: Pixels along a side of the image; by default as the number of bins suggests.
        photons: Count of a bin with nothing in the way: the readings are counts.
        missing: What to do about readings that are NaN: refuse them, or leave them out.
        steps: Steps of the network's fit, at most.
        samples: Draws from the posterior that the page shows.
        seed: Where every random number comes from.
        out: Folder; made when missing.
    """
    check_folder("--out", out, "report.html")
    if example == (readings is not None):
        raise CosetError(
            "got both READINGS and --example" if example else "got no READINGS",
            "needed one of them",
            "coset reconstruct READINGS.npy --angles N, or coset reconstruct --example",
        )
    import torch

    torch.set_num_threads(1)  # the same sums on every machine
    from coset.progress import reporting
    from coset.tomography import DeepImagePrior, Poisson, image_network
    from coset.tomography import reconstruct as run
    from coset.tomography.page import write_reconstruction

    truth: Tensor | None = None
    true_noise = None
    if example:
        made, scan, about = _example(geometry, angles or 40, size or 32, photons, seed)
        values, truth, true_noise = made.readings, made.truth, made.noise
    else:
        assert readings is not None
        values = _read(readings)
        scan = _scan(readings, values, geometry, angles, size)
        about = f"{len(values)} angles with {values.shape[1]} detector bins each ({readings.name})."
    print(about)
    with reporting(True) as progress:
        result = run(
            values,
            scan,
            network=image_network(scan.size, width=16) if example else None,  # half the time of 32
            noise="gaussian" if photons is None else Poisson(photons),
            samples=samples,
            fitting=DeepImagePrior(steps=steps),
            generator=torch.Generator().manual_seed(seed),
            missing=missing,
            progress=progress,
        )
    out.mkdir(parents=True, exist_ok=True)
    kept = {"image": result.image, "standard_deviation": result.standard_deviation}
    if truth is not None:
        kept |= {"readings": values, "truth": truth}
    for name, each in kept.items():
        _write(out / f"{name}.npy", each)
    path = out / "report.html"
    write_reconstruction(path, result, truth=truth, about=about, true_noise=true_noise)
    for warning in result.warnings:
        print(f"Look out: {warning}")
    print(f"Noise of a reading: {result.noise:.3g}", end="")
    print("" if true_noise is None else f" (true: {true_noise:.3g})")
    print(result.path)
    print(f"Report: {path}")


def _example(
    geometry: str, angles: int, size: int, photons: float | None, seed: int
) -> "tuple[Simulated, ParallelBeam | FanBeam, str]":
    """Readings of a real slice, or of a phantom where there is none."""
    import importlib.util

    import torch

    from coset.tomography import FanBeam, ParallelBeam, phantoms, simulate, slices

    random = torch.Generator().manual_seed(seed)
    if importlib.util.find_spec("pydicom") is not None and 128 % size == 0 and size <= 64:
        image, what = slices.vertebra(), "a real slice of a chest (CT_small of pydicom)"
    else:
        image, what = phantoms.walnut(2 * size, generator=random), "a walnut phantom"
    scan = (ParallelBeam if geometry == "parallel" else FanBeam)(size, angles)
    if photons is not None:  # a ray through it all keeps about e^-4 of its photons
        image = image * 4 / (image.max() * size)
    made = simulate(image, scan, photons=photons, generator=random)
    noise = "5 % noise" if photons is None else f"{photons:g} photons a bin"
    about = f"{angles} angles with {scan.bins} detector bins each of {what}, with {noise}."
    return made, scan, about


def _scan(
    path: Path, values: "Tensor", geometry: str, angles: int | None, size: int | None
) -> "ParallelBeam | FanBeam":
    from coset.tomography import FanBeam, ParallelBeam

    if angles is None:
        raise CosetError(
            f"got {path} without --angles",
            "needed the number of angles",
            f"give --angles {len(values)} if its rows are angles",
        )
    if len(values) != angles:
        turned = "; it seems transposed: angles are rows" if values.shape[1] == angles else ""
        raise CosetError(
            f"got {path} of shape {tuple(values.shape)} with --angles {angles}",
            f"needed {angles} rows, one for each angle{turned}",
        )
    bins = values.shape[1]
    pixels = size or max(2, int(bins / 2**0.5))
    return (ParallelBeam if geometry == "parallel" else FanBeam)(pixels, angles, bins)


def _read(path: Path) -> "Tensor":
    """A table of numbers from a .npy file, never unpickled."""
    import io

    import numpy as np
    import torch

    from coset.files import read_bytes

    try:
        values = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
    except CosetError:
        raise
    except Exception as error:  # numpy raises many kinds for files that are not its own
        raise CosetError(
            f"got {path}, which numpy cannot read", "needed a .npy file of plain numbers"
        ) from error
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "fiu":
        what = f"of shape {values.shape}" if isinstance(values, np.ndarray) else "of several arrays"
        raise CosetError(f"got {path} {what}", "needed a table of numbers: angles by bins")
    kind = np.float32 if values.dtype in (np.float16, np.float32) else np.float64
    return torch.from_numpy(np.ascontiguousarray(values, dtype=kind))


def _write(path: Path, values: "Tensor") -> None:
    import io

    import numpy as np

    from coset.files import write_bytes

    buffer = io.BytesIO()
    np.save(buffer, values.detach().numpy(), allow_pickle=False)
    write_bytes(path, buffer.getvalue())
