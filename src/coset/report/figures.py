"""Figures as SVG text: the same numbers give the same bytes."""

import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.metrics import ReliabilityBins
from coset.report.drawing import FAINT, INK, INLIER, OUTLIER, drawing, style, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability_diagram(series: Mapping[str, ReliabilityBins], *, name: str = "reliability") -> str:
    """Accuracy against confidence, a panel for each entry; the gap to the mark is the error.

    Args:
        series: Bins of each predictor by its title.
        name: Different for each figure of a page.
    """
    with drawing(len(series), heights=(5, 1)) as (figure, (upper, lower)):
        for main, below, (title, bins) in zip(upper, lower, series.items(), strict=True):
            _reliability_panel(main, bins)
            _share_panel(below, bins)
            main.set_title(title, parse_math=False)  # a dollar is a dollar
        upper[0].set_ylabel("accuracy")
        lower[0].set_ylabel("share")
        figure.legend(*upper[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return svg(figure, name)


def _reliability_panel(panel: "Axes", bins: ReliabilityBins) -> None:
    filled = bins.count > 0
    left, right = bins.edges[:-1][filled], bins.edges[1:][filled]
    accuracy, confidence = bins.accuracy[filled], bins.confidence[filled]
    middle = ((left + right) / 2).tolist()
    panel.bar(
        left.tolist(),
        accuracy.tolist(),
        (right - left).tolist(),
        align="edge",
        color=INLIER,
        alpha=0.55,
        edgecolor="white",
        label="accuracy",
    )
    panel.vlines(middle, accuracy.tolist(), confidence.tolist(), color=OUTLIER, linewidth=2)
    panel.plot(
        middle,
        confidence.tolist(),
        "_",
        color=OUTLIER,
        markersize=12,
        markeredgewidth=2.5,
        label="mean confidence",
    )
    panel.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--")
    panel.set(xlim=(0, 1), ylim=(0, 1.02), xticks=[0, 0.5, 1], xticklabels=[])


def _share_panel(panel: "Axes", bins: ReliabilityBins) -> None:
    width = (bins.edges[1:] - bins.edges[:-1]).tolist()
    share = (100 * bins.count / bins.count.sum()).tolist()
    panel.bar(bins.edges[:-1].tolist(), share, width, align="edge", color=FAINT, edgecolor="white")
    panel.set(xlim=(0, 1), ylim=(0, 100), xticks=[0, 0.5, 1], yticks=[0, 100])
    panel.set(xticklabels=["0", "½", "1"], yticklabels=["0", "100 %"], xlabel="confidence")


def score_histogram(
    series: Mapping[str, tuple[Float[Tensor, " n"], Float[Tensor, " o"]]],
    *,
    label: str,
    name: str = "scores",
    bins: int = 24,
    largest: float | None = None,
) -> str:
    """Scores of known against unseen inputs on a logarithmic axis, a panel for each entry.

    Args:
        series: Scores of inliers and of outliers by the panel's title, zero or larger.
        label: What the score is.
        name: Different for each figure of a page.
        bins: Bars over three decades below the largest score; smaller ones are in the first.
        largest: Where the axis ends, so that several figures can have one; the largest score if
            None.
    """
    for title, pair in series.items():
        if not all(len(scores) and scores.isfinite().all() for scores in pair):
            raise CosetError(
                f"got scores of {title!r} that are missing or not finite",
                "needed scores of known and of unseen inputs",
                "leave the panel out",
            )
    top = largest or max(float(scores.max()) for pair in series.values() for scores in pair)
    edges = torch.logspace(-3, 0, bins + 1).mul(max(top, 1e-6)).tolist()
    with drawing(len(series)) as (figure, (axes,)):
        for panel, (title, pair) in zip(axes, series.items(), strict=True):
            for scores, colour, side in zip(
                pair, (INLIER, OUTLIER), ("known classes", "never seen"), strict=True
            ):
                shown = scores.clamp(edges[0], edges[-1]).tolist()
                panel.hist(
                    shown,
                    bins=edges,
                    weights=[100 / len(shown)] * len(shown),
                    color=colour,
                    alpha=0.6,
                    label=side,
                )
            panel.set(xscale="log", xlabel=label)
            panel.set_title(title, parse_math=False)
        axes[0].set_ylabel("share of pictures (%)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return svg(figure, name)


def picture_address(image: Float[Tensor, "height width"]) -> str:
    """A grey picture with values in [0, 1] as a data address (PNG)."""
    from matplotlib.image import imsave

    buffer, paper = io.BytesIO(), 1 - image.detach().numpy()
    with style():
        imsave(buffer, paper, cmap="gray", vmin=0, vmax=1, format="png", metadata={})
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class ImageMap:
    """An image with its colour scale.

    Attributes:
        values: The numbers, first row on top.
        title: Over it.
        low: Value of the scale's lower end.
        high: Value of its upper end.
        colours: ``"grey"``: dark to bright; ``"heat"``: none to much; ``"signs"``: too low to
            too high, around zero.
    """

    values: Float[Tensor, "height width"]
    title: str
    low: float
    high: float
    colours: Literal["grey", "heat", "signs"] = "grey"


_COLOURS = {"grey": "gray", "heat": "inferno", "signs": "RdBu_r"}


def image_maps(panels: Sequence[ImageMap], *, name: str = "maps") -> str:
    """Images side by side, each with the bar of its scale.

    Args:
        panels: The images.
        name: Different for each figure of a page.
    """
    with drawing(len(panels), shared=False) as (figure, (axes,)):
        for axis, panel in zip(axes, panels, strict=True):
            drawn = axis.imshow(
                panel.values.detach().double().tolist(),
                cmap=_COLOURS[panel.colours],
                vmin=panel.low,
                vmax=max(panel.high, panel.low + 1e-12),
                interpolation="nearest",
            )
            axis.set_title(panel.title, parse_math=False)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            figure.colorbar(drawn, ax=axis, shrink=0.8)
        return svg(figure, name)


def normal_quantiles(
    series: Mapping[str, Float[Tensor, " n"]], *, label: str, name: str = "quantiles"
) -> str:
    """Sorted scores against the quantiles of a standard normal: on the line where they agree.

    Args:
        series: Standardised errors by name.
        label: What they are.
        name: Different for each figure of a page.
    """
    with drawing(1) as (figure, ((axis,),)):
        reach = 0.0
        for index, (title, scores) in enumerate(series.items()):
            values = scores.detach().double().flatten().sort().values
            shares = (torch.arange(len(values)).double() + 0.5) / len(values)
            quantiles = math.sqrt(2) * torch.special.erfinv(2 * shares - 1)
            axis.plot(quantiles.tolist(), values.tolist(), ".", markersize=3, label=title,
                      color=f"C{index}" if index else INLIER)  # fmt: skip
            reach = max(reach, float(quantiles.max()))
        axis.plot([-reach, reach], [-reach, reach], color=INK, linewidth=0.8, linestyle="--")
        axis.set(xlabel="quantile of a standard normal", ylabel=label)
        if len(series) > 1:
            axis.legend()
        return svg(figure, name)


def traces(series: Mapping[str, Sequence[float]], *, label: str, name: str = "traces") -> str:
    """Values step by step, a line for each entry.

    Args:
        series: Values by name.
        label: What they are.
        name: Different for each figure of a page.
    """
    with drawing(1) as (figure, ((axis,),)):
        for title, values in series.items():
            axis.plot(range(1, len(values) + 1), list(values), label=title, linewidth=1.2)
        axis.set(xlabel="step", ylabel=label)
        if len(series) > 1:
            axis.legend(fontsize=7)
        return svg(figure, name)
