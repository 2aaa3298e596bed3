"""The proof that units stay against full gains."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from coset.alignment.whole_axes.axes import Axis, AxisTerm
from coset.alignment.whole_axes.staying import Known, surely_stay, unit_products

SIZE = 12


def term(place, slot):
    return AxisTerm(f"{place} {slot}", Axis(place, "units", None), slot, frozenset(), 0, (), ())


TERMS = [term(0, 0), term(1, 0), term(2, 1)]


def shaped(rng, place):
    shape = [3, 5, 4]
    shape[place] = SIZE
    return rng.standard_normal(shape)


def gains(sides, terms):
    """One matrix for each of two slots, by their definition."""
    found = np.zeros((2, SIZE, SIZE))
    for one in terms:
        to, now = (np.moveaxis(x, one.own.place, 0).reshape(SIZE, -1) for x in sides[one.tensor])
        found[one.slot] += to @ now.T
    return found


@pytest.mark.parametrize("signs", [0, 1])
@pytest.mark.parametrize("noise", [0.1, 1.0, 4.0])
def test_what_is_proved_is_so(noise, signs):
    """Never said when another permutation or a flip is better; said when copies are clear."""
    rng, said = np.random.default_rng(0), []
    for _ in range(60):
        sides = {one.tensor: [shaped(rng, one.own.place)] * 2 for one in TERMS}
        sides = {n: (a, b + noise * rng.standard_normal(b.shape)) for n, (a, b) in sides.items()}

        def best(terms, sides=sides):
            slots = gains(sides, terms)
            return np.abs(slots[:signs]).sum(0) + slots[signs:].sum(0), slots

        part, slots = best(TERMS[:2])
        worth = slots.diagonal(axis1=1, axis2=2)
        prices = rng.standard_normal(SIZE) * noise if len(said) % 2 else 0.0
        said.append(
            surely_stay(
                Known(part, worth, signs, prices), TERMS[2:], lambda t, s=sides: s[t.tensor]
            )
        )
        if said[-1]:
            full, slots = best(TERMS)
            assert linear_sum_assignment(full, maximize=True)[1].tolist() == list(range(SIZE))
            assert (slots[:signs].diagonal(axis1=1, axis2=2) >= 0).all()
    assert any(said) == (noise < 4)
    assert all(said) == (noise < 1)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_units_are_multiplied_with_those_in_their_places(place):
    rng = np.random.default_rng(place)
    left, right = shaped(rng, place), shaped(rng, place)
    others = tuple(axis for axis in range(3) if axis != place)
    np.testing.assert_allclose(
        unit_products(left, right, term(place, 0)), (left * right).sum(others)
    )
