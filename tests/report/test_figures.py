import base64
import io
import re
from xml.etree import ElementTree

import pytest
import torch

from coset.errors import CosetError
from coset.metrics import reliability
from coset.report.figures import picture_address, reliability_diagram, score_histogram


@pytest.fixture
def series(generator):
    probabilities = torch.rand(200, 4, generator=generator).mul(3).softmax(1)
    targets = torch.randint(4, (200,), generator=generator)
    bins = reliability(probabilities, targets, bins=10)
    return {"one": bins, "two": bins}


@pytest.fixture
def scores(generator):
    return {"one": (torch.rand(50, generator=generator), torch.rand(9, generator=generator) + 1)}


def test_figures_are_well_formed_and_repeat(series, scores):
    for draw in (
        lambda: reliability_diagram(series),
        lambda: score_histogram(scores, label="entropy"),
    ):
        first = draw()
        assert first == draw()
        assert ElementTree.fromstring(first).tag.endswith("svg")


def test_names_keep_identifiers_apart(scores):
    def identifiers(name):
        svg = score_histogram(scores, label="entropy", name=name)
        return set(re.findall(r'clipPath id="(\w+)"', svg))

    assert identifiers("a")
    assert not identifiers("a") & identifiers("b")


def test_titles_are_text(series):
    svg = reliability_diagram(series)
    assert ">one<" in svg.replace("\n", "")
    assert "confidence" in svg


def test_scores_of_zero_are_drawn(generator):
    zero = torch.zeros(5)
    assert "<svg" in score_histogram({"none": (zero, zero)}, label="entropy")


def test_drawing_leaves_matplotlib_as_it_was(series):
    import matplotlib

    before = dict(matplotlib.rcParams)
    reliability_diagram(series)
    assert dict(matplotlib.rcParams) == before


STYLES = {
    "dark": {"text.color": "white", "axes.facecolor": "black", "axes.grid": True},
    "large": {"font.size": 30, "lines.linewidth": 9, "savefig.bbox": "tight"},
    "by LaTeX": {"text.usetex": True},
    "upside down": {"image.origin": "lower"},
}


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_the_style_of_the_user_is_left_outside(style, series, scores):
    import matplotlib

    def drawn():
        picture = picture_address(torch.tensor([[0.0], [1.0]]))
        return reliability_diagram(series), score_histogram(scores, label="entropy"), picture

    expected = drawn()
    with matplotlib.rc_context(style):
        assert drawn() == expected


def test_titles_are_no_formulas(series, scores):
    title = "5 $ or 6_{ $"
    bins = series["one"]
    for svg in (
        reliability_diagram({title: bins}),
        score_histogram({title: scores["one"]}, label="entropy"),
    ):
        assert title in svg


@pytest.mark.parametrize("bad", [torch.zeros(0), torch.tensor([1.0, torch.nan])])
def test_scores_that_cannot_be_drawn_are_named(bad):
    with pytest.raises(CosetError, match="scores of 'one' that are missing or not finite"):
        score_histogram({"one": (torch.ones(2), bad)}, label="entropy")


def test_pictures_are_dark_ink_on_white():
    from matplotlib.image import imread

    address = picture_address(torch.tensor([[0.0, 1.0]]))
    assert address.startswith("data:image/png;base64,")
    pixels = imread(io.BytesIO(base64.b64decode(address.split(",")[1])))
    assert pixels[0, 0, :3].tolist() == [1, 1, 1]
    assert pixels[0, 1, :3].tolist() == [0, 0, 0]
