"""The page of a reconstruction: image, standard deviation and, if it is known, the truth."""

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from coset.metrics import interval_coverage, peak_signal_to_noise
from coset.report import Figure, Headline, Page, Section, Table, write_page
from coset.report.figures import ImageMap, image_maps, normal_quantiles, traces
from coset.tomography.reconstruction import Reconstruction
from coset.version import __version__

_LEVELS = (0.5, 0.9, 0.95)


def write_reconstruction(
    path: str | Path,
    result: Reconstruction,
    *,
    truth: Float[Tensor, "size size"] | None = None,
    about: str = "",
    true_noise: float | None = None,
) -> None:
    """Writes the page of a reconstruction as one self-contained file.

    Args:
        path: The file.
        result: What was reconstructed.
        truth: The image behind the readings, if it is known.
        about: A sentence on where the readings are from.
        true_noise: Standard deviation of the noise, if it is known.
    """
    write_page(path, build_reconstruction_page(result, truth, about, true_noise))


def build_reconstruction_page(
    result: Reconstruction,
    truth: Float[Tensor, "size size"] | None = None,
    about: str = "",
    true_noise: float | None = None,
) -> Page:
    """The page of a reconstruction."""
    numbers = scores(result, truth)
    sections = [_images(result, truth)]
    if truth is not None:
        sections.append(_calibration(result, truth))
    sections.append(_fit(result))
    if result.warnings:
        sections.insert(0, Section("Look out", " ".join(f"{each}." for each in result.warnings)))
    size = result.image.shape[-1]
    return Page(
        title="An image with error bars",
        lead=(
            f"{about} The image has {size} × {size} pixels. An untrained network was fitted to the "
            "readings, then replaced by its tangent, whose uncertainty the readings themselves "
            "set the size of."
        ).strip(),
        headlines=_headlines(result, numbers, true_noise),
        sections=sections,
        numbers=numbers,
        footer=(f"coset {__version__} · the numbers are in this page as JSON, element “numbers”"),
    )


def scores(result: Reconstruction, truth: Tensor | None) -> dict[str, float]:
    """What can be said in numbers."""
    found = {
        "noise": result.noise,
        "log_evidence": result.log_evidence,
        "mean_standard_deviation": float(result.standard_deviation.mean()),
        "largest_standard_deviation": float(result.standard_deviation.max()),
    }
    if truth is not None:
        mean, variance = result.image.flatten().double(), result.standard_deviation.flatten()
        network = result.network_image.flatten().double()
        spread, target = variance.double().square(), truth.flatten().double()
        found["psnr"] = float(peak_signal_to_noise(result.image.double(), truth.double()))
        found["psnr_of_network"] = float(
            peak_signal_to_noise(result.network_image.double(), truth.double())
        )
        for level in _LEVELS:
            found[f"coverage_{level:g}"] = float(
                interval_coverage(mean, spread.clamp_min(1e-20), target, level=level)
            )
            found[f"coverage_{level:g}_of_network"] = float(
                interval_coverage(network, spread.clamp_min(1e-20), target, level=level)
            )
    return found


def _headlines(
    result: Reconstruction, numbers: Mapping[str, float], true_noise: float | None
) -> list[Headline]:
    known = "" if true_noise is None else f"true: {true_noise:.3g}"
    found = [
        Headline(f"{result.noise:.3g}", "noise of a reading", known),
        Headline(f"{numbers['mean_standard_deviation']:.3g}", "mean standard deviation"),
    ]
    if "psnr" in numbers:
        within = numbers["coverage_0.95"]
        found.append(Headline(f"{numbers['psnr']:.1f} dB", "peak signal to noise"))
        found.append(Headline(f"{within:.1%}", "of pixels inside 95 % intervals"))
    return found


def _images(result: Reconstruction, truth: Tensor | None) -> Section:
    image, deviation = result.image, result.standard_deviation
    high = float((image if truth is None else torch.maximum(image, truth.to(image))).max())
    low = min(0.0, float(image.min()))
    shown = [
        ImageMap(image, "reconstruction", low, high),
        ImageMap(deviation, "standard deviation", 0.0, float(deviation.max()), "heat"),
    ]
    text = "Where the standard deviation is large, the readings leave the image open."
    figures = []
    if truth is not None:
        error = (image - truth.to(image)).abs()
        top = float(deviation.max())
        shown.insert(0, ImageMap(truth, "truth", low, high))
        shown.append(ImageMap(error, "error, same scale", 0.0, top, "heat"))
        text += " The map of the error should look like a draw with that standard deviation."
    figures.append(Figure(image_maps(shown, name="images"), ""))
    if result.from_prior is not None:
        share = ImageMap(result.from_prior, "share of the prior", 0.0, 1.0, "heat")
        figures.append(
            Figure(
                image_maps([share], name="shares"),
                "Which part of a pixel's variance is of what the readings do not see, so that the "
                "prior alone answers; the rest is noise of the readings.",
            )
        )
    if len(result.samples) >= 2:
        draws = [
            ImageMap(each, f"sample {index}", low, high)
            for index, each in enumerate(result.samples[:4], start=1)
        ]
        figures.append(
            Figure(image_maps(draws, name="samples"), "Images that fit the readings as well.")
        )
    return Section("The image", text, figures=figures)


def _calibration(result: Reconstruction, truth: Tensor) -> Section:
    numbers = scores(result, truth)
    error = (truth.double() - result.image.double()).flatten()
    standardised = error / result.standard_deviation.double().flatten().clamp_min(1e-10)
    rows = [
        (
            f"{level:.0%} interval",
            f"{numbers[f'coverage_{level:g}']:.1%}",
            f"{numbers[f'coverage_{level:g}_of_network']:.1%}",
        )
        for level in _LEVELS
    ]
    return Section(
        "Do the error bars hold?",
        "A 95 % interval should hold the true value of 95 % of the pixels; standardised errors "
        "should lie on the line.",
        tables=[Table(("interval", "pixels inside", "around the network’s image"), rows)],
        figures=[
            Figure(
                normal_quantiles(
                    {"pixels": standardised.clamp(-8, 8)}, label="error / standard deviation"
                ),
                "Standardised errors of all pixels; those beyond ±8 are drawn at ±8.",
            )
        ],
    )


def _fit(result: Reconstruction) -> Section:
    tuned = result.tuned
    rows = [
        (name, f"{float(variance):.2e}", "–" if bool(length.isnan()) else f"{float(length):.2f}")
        for name, variance, length in zip(
            tuned.blocks, tuned.scales.variances, tuned.scales.lengths, strict=True
        )
    ]
    return Section(
        "How it was found",
        f"The network took {result.network.steps} steps, the evidence {len(tuned.trace)}. "
        + result.path,
        tables=[
            Table(
                ("part of the network", "prior variance", "length (pixels)"),
                rows,
                caption="What the evidence settled for the filters of each part.",
            )
        ],
        figures=[
            Figure(traces({"objective": tuned.trace}, label="objective", name="objective"), "")
        ],
    )
