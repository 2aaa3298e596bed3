"""Figures as SVG text: the same numbers give the same bytes."""

import io
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from coset.metrics import ReliabilityBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INLIER, OUTLIER = "#2b6cb0", "#dd6b20"
BARS, INK, FAINT = "#2b6cb0", "#2d3748", "#cbd5e0"

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read, searched and scaled
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


@contextmanager
def _drawing(panels: int, *, share: bool) -> Iterator[tuple["Figure", list["Axes"]]]:
    """Panels side by side in our style, without touching matplotlib's global state."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.9 * panels, 3.4), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False, sharey=share)
        yield figure, list(axes[0])


def _svg(figure: "Figure", name: str) -> str:
    import matplotlib

    buffer = io.StringIO()
    # the salt makes identifiers repeatable, and different in each figure of a page
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def reliability_diagram(series: Mapping[str, ReliabilityBins], *, name: str = "reliability") -> str:
    """Accuracy against confidence, a panel for each entry; the gap to the diagonal is the error.

    Args:
        series: Bins of each predictor by its title.
        name: Different for each figure of a page.
    """
    with _drawing(len(series), share=True) as (figure, axes):
        for panel, (title, bins) in zip(axes, series.items(), strict=True):
            _reliability_panel(panel, title, bins)
        axes[0].set_ylabel("accuracy")
        return _svg(figure, name)


def _reliability_panel(panel: "Axes", title: str, bins: ReliabilityBins) -> None:
    counts = bins.count.tolist()
    width = 1 / len(counts)
    share = [count / max(1, sum(counts)) for count in counts]
    for index, (count, confidence, accuracy) in enumerate(
        zip(counts, bins.confidence.tolist(), bins.accuracy.tolist(), strict=True)
    ):
        if not count:
            continue
        left = index * width
        panel.bar(left, accuracy, width, align="edge", color=BARS, alpha=0.85, edgecolor="white")
        low, high = sorted((accuracy, confidence))
        panel.bar(
            left,
            high - low,
            width,
            bottom=low,
            align="edge",
            color=OUTLIER,
            alpha=0.35,
            hatch="//",
            edgecolor="white",
        )
    panel.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--")
    panel.step(
        [index * width for index in range(len(counts) + 1)],
        [*share, share[-1]],
        where="post",
        color=INK,
        linewidth=0.8,
        alpha=0.5,
        label="share of pictures",
    )
    panel.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", title=title)


def score_histogram(
    series: Mapping[str, tuple[Float[Tensor, " n"], Float[Tensor, " o"]]],
    *,
    label: str,
    name: str = "scores",
    bins: int = 24,
) -> str:
    """Scores of known against unknown inputs, a panel for each entry.

    Args:
        series: Scores of inliers and of outliers by the panel's title.
        label: What the score is.
        name: Different for each figure of a page.
        bins: Bars from zero to the largest score.
    """
    with _drawing(len(series), share=True) as (figure, axes):
        for panel, (title, (inliers, outliers)) in zip(axes, series.items(), strict=True):
            top = max(float(inliers.max()), float(outliers.max()), 1e-6)
            for scores, colour, side in (
                (inliers, INLIER, "known classes"),
                (outliers, OUTLIER, "never seen"),
            ):
                panel.hist(
                    scores.tolist(),
                    bins=bins,
                    range=(0, top),
                    weights=[100 / len(scores)] * len(scores),
                    color=colour,
                    alpha=0.6,
                    label=side,
                )
            panel.set(xlabel=label, title=title)
        axes[0].set_ylabel("share of pictures (%)")
        axes[-1].legend()
        return _svg(figure, name)


def picture_address(image: Float[Tensor, "height width"]) -> str:
    """A grey picture with values in [0, 1] as a data address (PNG)."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, 1 - image.numpy(), cmap="gray", vmin=0, vmax=1, format="png", metadata={})
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()
