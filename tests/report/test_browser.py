"""Pages in a browser: nothing is fetched, every figure shows, and a keyboard is enough.

Needs Chromium and the extra ``browser``: ``make test-browser``.
"""

import os
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from coset.demo import Settings, run_demo, write_report
from coset.studies.page import write_report as write_page
from coset.studies.runs import Run

pytestmark = pytest.mark.browser

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="needs the extra browser: pip install coset[browser]"
    )
    program = os.environ.get("COSET_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium, or name it in COSET_CHROMIUM")
    with sync_api.sync_playwright() as player:
        chromium = player.chromium.launch(executable_path=program, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of the published run, and that of the demo with these studies below."""
    folder, run = tmp_path_factory.mktemp("pages"), Run.open(RESULTS)
    made = {"studies": folder / "studies.html", "demo": folder / "demo.html"}
    write_page(run, made["studies"])
    write_report(made["demo"], run_demo(Settings(members=2, epochs=2)), run)
    return made


@pytest.fixture
def opened(browser, pages):
    """Opens a page without a network; what it says and asks for is kept, and must be nothing."""
    contexts, said, asked = [], [], []

    def open_page(name="studies", *, width=1200, scheme="light", **how):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, **how
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(pages[name].as_uri())
        page.wait_for_function(
            "[...document.querySelectorAll('.explorer')].every((e) => e.querySelector('svg'))"
        )
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in asked) == len(contexts)


MARKS = """(svg) => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll('path, use, image, circle, rect')].filter((mark) => {
    const own = mark.getBoundingClientRect();
    return own.width > 1 || own.height > 1;
  });
  return [box.width, box.height, marks.length];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["studies", "demo"])
def test_every_figure_shows_something(opened, name, scheme):
    page = opened(name, scheme=scheme)
    drawings = page.locator("figure svg:not([aria-hidden])")
    assert drawings.count() > 10
    for drawing in drawings.all():
        width, height, marks = drawing.evaluate(MARKS)
        assert width > 150
        assert height > 100
        assert marks > 8
    pictures = page.locator("figure img").all()
    assert all(picture.evaluate("(e) => e.naturalWidth > 0") for picture in pictures)


@pytest.mark.parametrize("name", ["studies", "demo"])
@pytest.mark.parametrize("width", [360, 1200])
def test_no_page_is_wider_than_its_window(opened, name, width):
    page = opened(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # nothing is cut off either, but in tables that scroll by themselves
    beyond = page.evaluate(
        """(width) => [...document.querySelectorAll('main *')].filter((element) =>
             !element.closest('.wide') && !element.closest('svg') &&
             element.getBoundingClientRect().right > width + 1).length""",
        width,
    )
    assert beyond == 0


def test_text_stands_out_in_the_dark(opened):
    colours = {}
    for scheme in ("light", "dark"):
        page = opened(scheme=scheme)
        colours[scheme] = page.evaluate(
            """() => [getComputedStyle(document.querySelector('section')).backgroundColor,
                      getComputedStyle(document.querySelector('.panels svg text')).fill]"""
        )
    for scheme, (ground, ink) in colours.items():
        assert (_brightness(ground) > _brightness(ink)) == (scheme == "light")
        assert abs(_brightness(ground) - _brightness(ink)) > 100


def _brightness(colour):
    parts = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(parts) / 3


def _focused(page):
    return page.evaluate(
        """() => { const at = document.activeElement;
                   return [at.tagName, at.type || '', at.closest('.explorer') !== null]; }"""
    )


def test_every_control_of_an_explorer_is_reached_and_moved_by_keys(opened):
    page = opened()
    explorers = page.locator(".explorer")
    assert explorers.count() > 0
    controls = explorers.locator("select, input")
    reached = 0
    for _ in range(300):
        page.keyboard.press("Tab")
        tag, kind, inside = _focused(page)
        if tag == "BODY":
            break
        if not inside or tag not in ("SELECT", "INPUT"):
            continue
        reached += 1
        before = _state(page)
        key = {"range": "ArrowRight", "checkbox": "Space"}.get(kind, "ArrowDown")
        page.keyboard.press(key)
        if _state(page) == before:  # at its end
            page.keyboard.press({"ArrowRight": "ArrowLeft", "ArrowDown": "ArrowUp"}[key])
        assert _state(page) != before, f"{tag} {kind} changes nothing"
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    assert reached == controls.count()


def _state(page):
    """What the explorer with the focus says and draws."""
    return page.evaluate(
        """() => { const root = document.activeElement.closest('.explorer');
                   return root.querySelector('.said').textContent
                     + [...root.querySelectorAll('svg')].map((svg) => svg.outerHTML).join(''); }"""
    )


def test_the_same_network_is_never_picked_twice(opened):
    page = opened()
    first, second = (page.locator("[data-explorer=pair] select").nth(k) for k in (0, 1))
    first.select_option("1")
    assert second.input_value() != "1"
    second.select_option("1")
    assert first.input_value() != "1"


def test_the_path_ends_at_the_losses_of_the_two_networks(opened):
    """Said values are those of the numbers in the page, both ways round."""
    page = opened()
    root = page.locator("[data-explorer=pair]")
    numbers = root.locator("script[type='application/json']").evaluate(
        "(script) => JSON.parse(script.textContent)"
    )
    there = numbers["losses"][0][0]
    point = root.locator("input[type=range]")
    said = {}
    for end, place in (("start", "0"), ("end", str(len(numbers["points"]) - 1))):
        point.fill(place)
        said[end] = root.locator(".said").inner_text()
    assert f"{there[0]:.3g} as trained" in said["start"]
    assert f"{there[-1]:.3g} as trained" in said["end"]
    root.locator("select").nth(0).select_option("1")
    root.locator("select").nth(1).select_option("0")
    assert f"{there[0]:.3g} as trained" in root.locator(".said").inner_text()


def test_the_page_prints(opened, tmp_path):
    page = opened()
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 50_000


@pytest.mark.parametrize("name", ["studies", "demo"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened, name, scheme):
    pytest.importorskip("axe_playwright_python", reason="needs the extra browser")
    page = opened(name, scheme=scheme)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    # the insides of static figures are thousands of nodes, and alike: their ink is tested above
    found = page.evaluate("axe.run({exclude: [['.panels svg > *']]})")["violations"]
    serious = [
        (each["id"], each["nodes"][0]["html"][:200], len(each["nodes"]))
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
