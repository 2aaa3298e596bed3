"""Predictions by pixel as pictures: input, truth, prediction, deviation, error, and a sample."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from coset.errors import CosetError
from coset.report.drawing import drawing, svg

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

_ROWS = 6
"""Pictures shown at most."""

Panel = tuple[str, "Tensor", dict[str, Any]]


def draw_pixels(
    pictures: "Float[Tensor, 'n channels h w']",
    targets: "Tensor",
    mean: "Float[Tensor, 'n c h w']",
    variance: "Float[Tensor, 'n c h w'] | None" = None,
    *,
    sample: "Tensor | None" = None,
    ignore: int | None = None,
    name: str = "pixels",
) -> str:
    """A row for each picture, as SVG: input, truth, prediction, deviation, error.

    Labels: the deviation is that of the label as zeros and a one, ``√(1 - Σ p²)``, and the error is
    where the likeliest class is not the true one.  Numbers: the deviation is ``√variance``, the
    error ``|y - μ|`` on the same scale; what is missing (NaN) stays white.

    Args:
        pictures: In [0, 1], grey or in colours; the first six are shown.
        targets: Labels ``(n, h, w)``, or numbers of one output.
        mean: Probabilities of classes, or means.
        variance: Of the target, for numbers.
        sample: One coherent sample, as targets: labels or numbers.
        ignore: A label that is left white.
        name: Different for each figure of a page.

    >>> import torch
    >>> chances = torch.tensor([0.9, 0.1]).reshape(1, 2, 1, 1).expand(1, 2, 4, 4)
    >>> labels = torch.zeros(1, 4, 4, dtype=torch.long)
    >>> draw_pixels(torch.rand(1, 3, 4, 4), labels, chances)[:4]
    '<svg'
    """
    if pictures.dim() != 4 or mean.dim() != 4 or len(mean) != len(pictures) or not len(mean):
        raise CosetError(
            f"got pictures of shape {tuple(pictures.shape)} and means of {tuple(mean.shape)}",
            "needed (n, channels, h, w) and (n, c, h, w), one a picture",
        )
    numbers = targets.is_floating_point()
    if numbers and (variance is None or mean.shape[1] != 1):
        raise CosetError(
            f"got means of shape {tuple(mean.shape)}"
            + (" and no variance" if variance is None else ""),
            "needed one output with its variance",
            "draw the outputs one by one, mean[:, k : k + 1]",
        )
    count, shape = min(_ROWS, len(pictures)), (len(mean), *mean.shape[2:])
    truth = targets.reshape(shape)
    chosen = None if sample is None else sample.reshape(shape)
    rows = []
    for row in range(count):
        own = None if chosen is None else chosen[row]
        panels = list(
            _of_numbers(truth[row], mean[row, 0], variance[row, 0], own)
            if numbers and variance is not None
            else _of_labels(truth[row], mean[row], own, ignore)
        )
        rows.append([_input(pictures[row]), *panels])
    with drawing(len(rows[0]), heights=(1,) * count, shared=False) as (figure, axes):
        figure.set_size_inches(2.0 * len(rows[0]), 2.1 * count)
        for number, (line, panels) in enumerate(zip(axes, rows, strict=True)):
            for axis, (title, values, scale) in zip(line, panels, strict=True):
                axis.imshow(values.detach().numpy(), interpolation="nearest", **scale)
                axis.set(xticks=[], yticks=[], title=title if number == 0 else "")
                axis.spines[:].set_visible(False)
        return svg(figure, name)


def _input(picture: "Tensor") -> Panel:
    values = picture.clamp(0, 1).movedim(0, -1)
    return "input", values if len(picture) == 3 else values.mean(-1), {"cmap": "gray"}


def _of_labels(
    truth: "Tensor", chances: "Tensor", sample: "Tensor | None", ignore: int | None
) -> Iterator[Panel]:
    import torch

    scale = {"cmap": "tab20", "vmin": -0.5, "vmax": 19.5}
    counts = torch.ones_like(truth, dtype=torch.bool) if ignore is None else truth != ignore
    blank = torch.tensor(torch.nan)
    guess = chances.argmax(0)
    yield "truth", torch.where(counts, truth.double(), blank), scale
    yield "prediction", guess.double(), scale
    deviation = (1 - chances.double().square().sum(0)).clamp_min(0).sqrt()
    yield "deviation", deviation, {"cmap": "inferno", "vmin": 0.0, "vmax": 1.0}
    wrong = torch.where(counts, (guess != truth).double(), blank)
    yield "error", wrong, {"cmap": "inferno", "vmin": 0.0, "vmax": 1.0}
    if sample is not None:
        yield "a sample", sample.double(), scale


def _of_numbers(
    truth: "Tensor", mean: "Tensor", variance: "Tensor", sample: "Tensor | None"
) -> Iterator[Panel]:
    known = truth[~truth.isnan()]
    low, high = (float(end) for end in (known if len(known) else mean).aminmax())
    scale = {"cmap": "viridis", "vmin": low, "vmax": high}
    error, deviation = (truth - mean).abs(), variance.sqrt()
    most = max(float(deviation.quantile(0.98)), float(error.nan_to_num(0.0).quantile(0.98)))
    spread = {"cmap": "inferno", "vmin": 0.0, "vmax": most}
    yield "truth", truth, scale
    yield "prediction", mean, scale
    yield "deviation", deviation, spread
    yield "error", error, spread
    if sample is not None:
        yield "a sample", sample, scale
