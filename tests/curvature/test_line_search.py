"""The minimum of a convex function of one number, against its closed form."""

import math

import pytest

from coset.curvature.line_search import lowest_along


@pytest.mark.parametrize("place", [1e-4, 0.3, 1.0, 7.0, 1e4])
def test_a_parabola(place):
    assert lowest_along(lambda at: (5 * (at - place), 5.0)) == pytest.approx(place, rel=1e-3)


@pytest.mark.parametrize("place", [0.01, 0.7, 3.0, 100.0])
@pytest.mark.parametrize("steepness", [0.1, 10.0, 1000.0])
def test_where_curvature_vanishes_on_both_sides(place, steepness):
    """``log cosh`` is straight but for a corner: plain Newton steps leave it without end."""

    def look(length):
        slope = math.tanh(steepness * (length - place))
        return slope, steepness * (1 - slope**2)

    assert lowest_along(look) == pytest.approx(place, rel=1e-3)
