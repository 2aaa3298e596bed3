"""The minimum of a convex function of one number."""

import math
from collections.abc import Callable

_ENOUGH = 1e-4
"""Share of the length that may be left open: what it costs is of second order."""

_TRIALS = 60
"""Lengths that are tried at most; two or three where nothing is saturated."""


def lowest_along(look: Callable[[float], tuple[float, float]]) -> float:
    """Where the slope vanishes, by Newton's method from one on.

    Kept between a length at which the function still falls and one at which it rises: where it is
    saturated there is no curvature, and Newton's method by itself jumps about.

    Args:
        look: Slope and curvature at a length; the slope at zero is negative.

    >>> lowest_along(lambda length: (2 * length - 6, 2))  # of length² - 6 length
    3.0
    """
    length, low, high, last = 1.0, 0.0, math.inf, math.inf
    for _ in range(_TRIALS):
        slope, curvature = look(length)
        step = slope / max(curvature, 1e-300)
        low, high = (low, length) if slope > 0 else (length, high)
        ahead = min(length - step, 2 * length + 1)
        if high < math.inf and (not low < ahead < high or abs(step) > last / 2):
            ahead = math.sqrt(low * high) if low > 0 else high / 16
        length, last = ahead, abs(step)
        if min(abs(step), high - low) <= _ENOUGH * length:
            break
    return length
