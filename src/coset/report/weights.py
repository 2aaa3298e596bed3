"""Figures of weights: marginals, pairs, masses, paths.  Numbers in, SVG text out."""

import math
from collections.abc import Iterable, Mapping
from typing import SupportsFloat

from coset.errors import CosetError
from coset.report.charts import Chart, Curve, draw_charts, draw_panels

Values = Iterable[SupportsFloat]
"""Numbers as lists, arrays and tensors of one axis have them."""


def _finite(values: Values, what: str) -> list[float]:
    """Plain numbers; refuses none at all, and what no axis can show."""
    try:
        plain = values.detach() if hasattr(values, "detach") else values
        found = [float(value) for value in plain]
    except (TypeError, ValueError) as error:
        raise CosetError(
            f"got {what} that are not numbers along one axis ({error})",
            "needed a list, an array or a tensor of one axis",
            "flatten it, or pick one weight of every member",
        ) from error
    bad = sum(not math.isfinite(value) for value in found)
    if bad or not found:
        raise CosetError(
            f"got {what} with {bad} of {len(found)} numbers that are not finite"
            if found
            else f"got no {what}",
            "needed finite numbers, one at least",
        )
    return found


def _alike(first: Values, second: Values, what: str) -> tuple[list[float], list[float]]:
    """Two lists of the same length."""
    pair = _finite(first, what), _finite(second, what)
    if len(pair[0]) != len(pair[1]):
        raise CosetError(
            f"got {what} of {len(pair[0])} and of {len(pair[1])} numbers",
            "needed as many of one as of the other",
        )
    return pair


def draw_marginals(
    samples: Mapping[str, Values], *, x: str = "weight", name: str = "marginals"
) -> str:
    """Histograms of one weight in several samples, on the same axes.

    Args:
        samples: The weight in every member, by the label of the sample.
        x: Label of the axis.
        name: Different for each figure of a page.

    >>> "<svg" in draw_marginals({"ours": [0.0, 1.0], "theirs": [0.5, 0.7]})
    True
    """
    curves = tuple(Curve(label, _finite(values, label)) for label, values in samples.items())
    return draw_charts([Chart("histogram", curves, x=x, y="share")], name=name)


def draw_pairs(
    samples: Mapping[str, tuple[Values, Values]], *, x: str = "", y: str = "", name: str = "pairs"
) -> str:
    """Two weights against each other, a panel for each sample.

    Args:
        samples: Both weights in every member, by the title of the panel.
        x: What the first weight is.
        y: What the second is.
        name: Different for each figure of a page.

    >>> "<svg" in draw_pairs({"before": ([0.0, 1.0], [1.0, 0.0])})
    True
    """
    charts = [
        Chart("points", (Curve("", *_alike(first, second, title)),), title, x, y)
        for title, (first, second) in samples.items()
    ]
    return draw_charts(charts, name=name)


def draw_mass_profile(mass: Values, minimum: Values, *, name: str = "mass") -> str:
    """Mass as trained against the smallest of the same function, and the excess in percent.

    Args:
        mass: Of every network, as :func:`coset.mass_profile` gives it.
        minimum: The smallest of the same function.
        name: Different for each figure of a page.

    >>> "<svg" in draw_mass_profile([2.0, 3.0], [1.5, 2.5])
    True
    """
    trained, smallest = _alike(mass, minimum, "masses")
    if min(smallest) <= 0:
        raise CosetError(f"got a smallest mass of {min(smallest):g}", "needed masses above zero")
    excess = [100 * (a / b - 1) for a, b in zip(trained, smallest, strict=True)]
    scatter = Chart(
        "points",
        (Curve("", trained, smallest),),
        "",
        "mass as trained",
        "smallest mass",
        diagonal=True,
    )
    spread = Chart("histogram", (Curve("", excess),), "", "excess of mass (%)", "share")
    return draw_charts([scatter, spread], name=name)


def draw_path(
    t: Values, losses: Mapping[str, Values], *, y: str = "loss", name: str = "path"
) -> str:
    """Loss along straight lines between two networks.

    Args:
        t: Places on the line, 0 at the first network and 1 at the second.
        losses: The loss at each, by the label of the line.
        y: What is measured.
        name: Different for each figure of a page.

    >>> "<svg" in draw_path([0.0, 0.5, 1.0], {"as trained": [0.1, 2.0, 0.1]})
    True
    """
    places = _finite(t, "places")
    curves = tuple(Curve(label, *_alike(places, values, label)) for label, values in losses.items())
    return draw_charts([Chart("lines", curves, x="t", y=y)], name=name)


def draw_before_and_after(
    before: tuple[Values, Values],
    after: tuple[Values, Values],
    *,
    names: tuple[str, str] = ("as trained", "canonical"),
    x: str = "weight",
    y: str = "another",
    name: str = "change",
) -> str:
    """What removing symmetries does to two weights: the marginal of the first, and both pairs.

    Args:
        before: Both weights in every member.
        after: The same places once symmetries are removed.
        names: What to call the two.
        x: What the first weight is.
        y: What the second is.
        name: Different for each figure of a page.

    Returns:
        Three drawings: side by side where there is room, else below each other.

    >>> draw_before_and_after(([0.0, 1.0], [1.0, 0.0]), ([0.0, 0.1], [1.0, 0.9])).count("<svg")
    3
    """
    pairs = [
        Curve(label, *_alike(*sample, label))
        for label, sample in zip(names, (before, after), strict=True)
    ]
    marginals = tuple(Curve(pair.label, pair.x) for pair in pairs)
    charts = [
        Chart("histogram", marginals, x=x, y="share"),
        *(Chart("points", (Curve("", pair.x, pair.y),), pair.label, x, y) for pair in pairs),
    ]
    return draw_panels(charts, name=name)
