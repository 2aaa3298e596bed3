"""How every figure of a report looks, and figures as SVG text.  Nothing here waits for torch."""

import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INLIER, OUTLIER = "#2b6cb0", "#dd6b20"
INK, FAINT = "#2d3748", "#cbd5e0"

ON_DARK: Mapping[str, str] = {
    INK: "#e2e8f0",
    FAINT: "#4a5568",
    INLIER: "#63b3ed",
    OUTLIER: "#f6ad55",
    "#2f855a": "#68d391",
    "#805ad5": "#b794f4",
    "#b7791f": "#ecc94b",
    "#c53030": "#fc8181",
    "#4a5568": "#cbd5e0",
    "#000000": "#ffffff",
}
"""What the colours of figures become on a dark page."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read, searched and scaled
    "font.size": 10,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # named in every word of a figure
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Our style on matplotlib's own, whatever the user has set, which is as it was afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


@contextmanager
def drawing(
    panels: int, *, heights: tuple[float, ...] = (1,), shared: bool = True
) -> Iterator[tuple["Figure", list[list["Axes"]]]]:
    """Panels side by side in our style.

    Args:
        panels: How many.
        heights: Relative heights of the rows of each panel.
        shared: Whether all panels of a row have the same vertical axis.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(
            figsize=(4.2 * panels, 3.6 + 0.5 * (len(heights) - 1)), layout="constrained"
        )
        axes = figure.subplots(
            len(heights),
            panels,
            squeeze=False,
            sharey="row" if shared else "none",
            height_ratios=heights,
        )
        yield figure, [list(row) for row in axes]


def svg(figure: "Figure", name: str, facts: Mapping[str, Any] | None = None) -> str:
    """A figure as SVG text, with what it was made from inside.

    Args:
        figure: The figure.
        name: Different for each figure of a page.
        facts: Written into the SVG's metadata: a figure that is copied still names its records.
    """
    import matplotlib

    buffer = io.StringIO()
    # the salt makes identifiers repeatable, and different in each figure of a page
    with matplotlib.rc_context({"svg.hashsalt": name}):
        known: dict[str, Any] = {"Date": None}
        if facts is not None:
            known["Description"] = json.dumps(facts, sort_keys=True, ensure_ascii=False)
        figure.savefig(buffer, format="svg", transparent=True, metadata=known, dpi=144)
    text = buffer.getvalue()
    return _shorter(text[text.index("<svg") :])


def _shorter(drawn: str) -> str:
    """A drawing whose places have two digits after the point: a hundredth of a point is no pixel.

    >>> _shorter('<path d="M 12.345678 9.876543"/><text x="1.005">0.12345</text>')
    '<path d="M 12.34 9.87"/><text x="1.00">0.12345</text>'
    """
    return re.sub(r'\b[dxy]="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), drawn)


def on_paper(drawn: str) -> str:
    """A drawing on white, to be read by itself: on a dark page its ink would be lost.

    >>> on_paper('<svg width="1"></svg>')
    '<svg width="1"><rect width="100%" height="100%" fill="#ffffff"/></svg>'
    """
    end = drawn.index(">", drawn.index("<svg")) + 1
    return drawn[:end] + '<rect width="100%" height="100%" fill="#ffffff"/>' + drawn[end:]
