"""Figures of weights: drawn from tensors and lists alike, with what is wrong named."""

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from coset.errors import CosetError
from coset.report import (
    draw_before_and_after,
    draw_marginals,
    draw_mass_profile,
    draw_pairs,
    draw_path,
)

A, B = [0.5, 1.0, 2.0, 4.0], [1.0, 0.5, 3.0, 2.0]
DRAWN = {
    "marginals": lambda a, b: draw_marginals({"one": a, "other": b}),
    "pairs": lambda a, b: draw_pairs({"before": (a, b), "after": (b, a)}),
    "mass": lambda a, b: draw_mass_profile(b, a),
    "path": lambda a, b: draw_path(a, {"as trained": b}),
    "change": lambda a, b: draw_before_and_after((a, b), (b, a)),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_lists_arrays_and_tensors_give_the_same_figure(kind):
    drawn = DRAWN[kind](A, B)
    assert drawn == DRAWN[kind](np.array(A), np.array(B))
    assert drawn == DRAWN[kind](torch.tensor(A, requires_grad=True), torch.tensor(B))
    for svg in drawn.split("</svg>")[:-1]:
        ET.fromstring(svg + "</svg>")


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize(
    ("a", "word"),
    [
        ([0.0, math.nan, 1.0, 2.0], "not finite"),
        ([], "got no"),
        (["x", 1.0, 2.0, 3.0], "not numbers"),
        (torch.zeros(4, 2), "not numbers"),
    ],
)
def test_what_no_axis_can_show_is_refused(kind, a, word):
    if kind == "mass":
        with pytest.raises(CosetError, match=word):
            draw_mass_profile(a, B)
    else:
        with pytest.raises(CosetError, match=word):
            DRAWN[kind](a, B)


@pytest.mark.parametrize("kind", ["pairs", "path", "change"])
def test_numbers_that_do_not_pair_up_are_counted(kind):
    with pytest.raises(CosetError, match=r"of 3 and of 4|of 4 and of 3"):
        DRAWN[kind](A[:3], B)


def test_no_network_weighs_nothing():
    with pytest.raises(CosetError, match="smallest mass of 0"):
        draw_mass_profile([1.0], [0.0])


def test_the_excess_is_that_of_each_network():
    # 100 (3 / 2 − 1) = 50 and 100 (5 / 4 − 1) = 25 are the ends of the histogram's axis
    drawn = ET.fromstring(draw_mass_profile([3.0, 5.0], [2.0, 4.0]))
    labels = {element.text.strip() for element in drawn.iter() if element.text}
    assert {"25", "50"} <= labels
