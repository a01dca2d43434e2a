"""The report in a real browser: display, mouse, keyboard, clipboard and print."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from fedrecall.reporting.figures import style
from fedrecall.reporting.html import write_report
from fedrecall.studies.study import Cell, Study
from support.browser import IS_INSTALLED, REQUIREMENT, start_browser, visit
from support.folders import write_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason=REQUIREMENT)

METHODS = {"FedAvg": 0.5, "FedProx": 0.3, "FedLMD": 0.7}


def grows(cell: Cell, number: int) -> float:
    return METHODS.get(cell.row, 0.4) + 0.01 * number + 0.02 * cell.seed


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = Study(
        id="two-columns",
        title="Two columns, three methods",
        paper="fedlmd",
        base={"run": {"rounds": 12}, "federation": {"clients": 3, "sample": 2}},
        rows={name: {"method": {"name": name.lower()}} for name in METHODS},
        columns={"Dirichlet 0.05": {"local": {"epochs": 1}}, "a column with a name that is rather long": {}},
        seeds=(0, 1),
        printed={"final": {"FedAvg": [33.02, 70.0], "FedLMD": [50.45, None]}},
    )
    return write_report([write_study(study, tmp_path_factory.mktemp("r") / "study", grows, local=0.1)])[0]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with start_browser() as started:
        yield started


@pytest.fixture
def page(browser: "Browser", report: Path) -> "Iterator[Page]":
    with visit(browser, report) as opened:
        yield opened.page
        assert opened.problems == []
        assert [url for url in opened.requests if not url.startswith("data:image/png")] == [report.as_uri()]


PAPER = "#study-1-paper table"


def names(page: "Page", table: str = PAPER) -> list[str]:
    """Return the names of the visible rows in their order."""
    return page.evaluate(
        f"[...document.querySelectorAll({json.dumps(table + ' tbody tr')})]"
        ".filter(row => row.offsetParent).map(row => row.cells[0].textContent)"
    )


def sorts(page: "Page") -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll('{PAPER} thead th')].map(th => th.getAttribute('aria-sort'))")


def colour(page: "Page", selector: str, key: str) -> str:
    return page.evaluate(f"getComputedStyle(document.querySelector({json.dumps(selector)}))[{json.dumps(key)}]")


def lines(page: "Page", panel: int = 0) -> list[str]:
    """Return the positions of the rows whose lines a panel has."""
    return page.evaluate(
        f"[...document.querySelectorAll('.chart')[{panel}].querySelectorAll('svg > .series')].map(g => g.dataset.row)"
    )


def test_a_click_sorts_a_table(page: "Page") -> None:
    assert names(page) == ["FedAvg", "FedProx", "FedLMD"]
    page.click(f"{PAPER} th:nth-child(2) button")
    assert names(page) == ["FedLMD", "FedAvg", "FedProx"], "the best comes first"
    assert sorts(page) == ["none", "descending", "none"]
    page.click(f"{PAPER} th:nth-child(2) button")
    assert names(page) == ["FedProx", "FedAvg", "FedLMD"]
    assert sorts(page) == ["none", "ascending", "none"]
    page.click(f"{PAPER} th:nth-child(1) button")
    assert names(page) == ["FedAvg", "FedLMD", "FedProx"], "names by the alphabet"
    assert sorts(page)[0] == "ascending"


@pytest.mark.parametrize("key", ["Enter", " "])
def test_the_keyboard_sorts_too(page: "Page", key: str) -> None:
    page.evaluate(f"document.querySelector('{PAPER} th:nth-child(3) button').focus()")
    assert colour(page, ":focus", "outlineStyle") == "solid", "the focus is visible"
    page.keyboard.press(key)
    assert names(page) == ["FedLMD", "FedAvg", "FedProx"]
    assert sorts(page) == ["none", "none", "descending"]


def test_cells_without_a_number_stay_at_the_bottom(page: "Page") -> None:
    table = "#study-1-comparison .scroll:first-of-type table"
    page.click(f"{table} th:nth-child(5) button")  # the difference to FedAvg, which FedAvg does not have
    assert names(page, table) == ["FedLMD", "FedProx", "FedAvg"]
    page.click(f"{table} th:nth-child(5) button")
    assert names(page, table) == ["FedProx", "FedLMD", "FedAvg"]


def test_toggles_hide_lines_and_rows(page: "Page") -> None:
    assert lines(page) == lines(page, 1) == ["0", "1", "2"]
    page.click(".toggles label:nth-of-type(2)")
    assert lines(page) == lines(page, 1) == ["0", "2"]
    for table in (PAPER, "#study-1-comparison .scroll:first-of-type table", "#study-1-cost table"):
        assert names(page, table) == ["FedAvg", "FedLMD"]
    folded = "[...document.querySelectorAll('#study-1-configuration details[data-row]')].map(d => d.hidden)"
    assert page.evaluate(folded) == [False, True, False]
    page.click(".toggles label:nth-of-type(2)")
    assert lines(page) == ["0", "1", "2"]
    assert names(page) == ["FedAvg", "FedProx", "FedLMD"]


TICKS = (
    "[...document.querySelector('.chart').querySelectorAll('text[text-anchor=end]')].map(t => Number(t.textContent))"
)


def pixels(page: "Page", colour: str) -> int:
    """Count the pixels of a colour in the first panel."""
    screenshot = Image.open(io.BytesIO(page.locator(".chart").first.screenshot())).convert("RGB")
    expected = tuple(bytes.fromhex(colour.removeprefix("#")))
    return sum(count for count, found in screenshot.getcolors(1 << 24) if found == expected)


def test_lines_have_the_colours_of_their_methods(page: "Page") -> None:
    blue = style.colour_of("FedLMD")
    assert pixels(page, blue) > 100
    page.click(".toggles label:nth-of-type(3)")
    assert pixels(page, blue) == 0


def test_the_scale_fits_what_is_shown(page: "Page") -> None:
    assert min(page.evaluate(TICKS)) < 45
    page.click(".toggles label:nth-of-type(2)")
    assert min(page.evaluate(TICKS)) >= 50, "without the lowest line"


def test_pointing_at_a_round_shows_its_values(page: "Page") -> None:
    page.hover(".chart")
    texts = page.locator(".chart").first.locator(".tip p").all_text_contents()
    number = int(texts[0].removeprefix("Round "))
    assert number in (6, 7), "in the middle"
    assert texts[1:] == [
        f"{name}{100 * METHODS[name] + number + 1:.2f} % ± 1.41" for name in ("FedLMD", "FedAvg", "FedProx")
    ]
    page.mouse.move(2, 2)
    assert page.evaluate("document.querySelector('.tip').hidden")


def test_the_arrow_keys_show_them_too(page: "Page") -> None:
    page.evaluate("document.querySelector('.chart').focus()")
    for key, expected in (
        ("End", "Round 12"),
        ("ArrowLeft", "Round 11"),
        ("Home", "Round 1"),
        ("ArrowRight", "Round 2"),
    ):
        page.keyboard.press(key)
        assert page.evaluate("document.querySelector('.tip p').textContent") == expected
    assert page.evaluate("document.querySelector('.tip').getAttribute('role')") == "status", (
        "screen readers announce it"
    )
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelector('.tip').hidden")


def test_another_measure(page: "Page") -> None:
    page.click(".measures label:nth-of-type(3)")
    label = page.evaluate("document.querySelector('.chart svg').getAttribute('aria-label')")
    assert label.startswith("Dirichlet 0.05: global minus local accuracy by round; at the end FedAvg 10.00 points")


def test_the_button_makes_it_dark_and_light(page: "Page") -> None:
    light = colour(page, "body", "backgroundColor"), colour(page, "body", "color")
    line = colour(page, ".series .line", "stroke")
    page.click("#theme")
    dark = colour(page, "body", "backgroundColor"), colour(page, "body", "color")
    assert light != dark
    assert contrast(*light) > 7 < contrast(*dark)
    assert colour(page, ".series .line", "stroke") != line
    assert page.evaluate("document.getElementById('theme').textContent") == "Light"
    page.click("#theme")
    assert (colour(page, "body", "backgroundColor"), colour(page, "body", "color")) == light


def test_it_follows_the_system(browser: "Browser", report: Path) -> None:
    with visit(browser, report, color_scheme="dark") as opened:
        page = opened.page
        dark = colour(page, "body", "backgroundColor")
        for selector in (".note", "dt", "a", ".caution, .warning, .badges li", "th button"):
            assert contrast(colour(page, selector, "color"), colour(page, "section", "backgroundColor")) > 4.5
        page.click("#theme")
        assert colour(page, "body", "backgroundColor") != dark


def contrast(a: str, b: str) -> float:
    """Compute the WCAG contrast of two colours such as rgb(1, 2, 3)."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


OVERFLOWING = """
[...document.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest(".scroll, .paper, pre");
}).map(e => e.tagName + "." + e.className)
"""


def test_a_phone_shows_all_of_it(browser: "Browser", report: Path) -> None:
    small = "[...document.querySelectorAll('button, label, nav a')].filter(e => e.offsetParent && e.offsetHeight < 24)"
    with visit(browser, report, width=360, height=740, is_mobile=True) as opened:
        page = opened.page
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate("[...document.querySelectorAll('.chart svg')].every(s => s.clientWidth > 280)")
        assert page.evaluate(f"{small}.map(e => e.textContent)") == [], "large enough for fingers"
        page.click(".toggles label:nth-of-type(1)")
        assert lines(page) == ["1", "2"]


def test_charts_follow_the_size_of_the_window(page: "Page") -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(%s))))"
    assert page.evaluate(
        drawn
        % "document.querySelector('.chart svg').viewBox.baseVal.width === document.querySelector('.chart').clientWidth"
    )


def test_print_has_no_controls(page: "Page") -> None:
    page.emulate_media(media="print", color_scheme="dark")
    controls = page.locator("nav, #theme, fieldset, .files, input")
    assert controls.count() > 0
    assert not any(control.is_visible() for control in controls.all())
    assert colour(page, "body", "backgroundColor") == "rgb(255, 255, 255)", "no ink for a dark page"
    assert page.locator(".legend").first.is_visible(), "it explains the lines"
    assert page.locator("thead th").first.is_visible()
    assert page.locator("thead th").first.text_content() == "method", "headings stay"
    assert page.pdf().startswith(b"%PDF")


def test_copying_a_table(page: "Page", report: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def copied(button: str) -> str:
        page.click(button)
        page.wait_for_function("button => document.querySelector(button).textContent === 'Copied'", arg=button)
        return page.evaluate("navigator.clipboard.readText()")

    tables = report.parent / "tables"
    assert copied("#study-1-paper .files button:nth-of-type(1)") == (tables / "two-columns.csv").read_text()
    assert copied("#study-1-paper .files button:nth-of-type(2)") == (tables / "two-columns.tex").read_text()
    assert copied("#study-1-repeat button") == page.text_content("#study-1-repeat code")


def test_without_scripts_there_is_a_figure(browser: "Browser", report: Path) -> None:
    with visit(browser, report, java_script_enabled=False) as opened:
        page = opened.page
        assert page.locator(".static figure svg").count() == 1
        assert page.locator("thead th button").count() == 0, "no control without effect"
        assert page.locator(".live[hidden] .chart:empty").count() == 2
        assert page.locator("fieldset.toggles[hidden]").count() == page.locator("#theme[hidden]").count() == 1


def test_injected_names_run_no_code(browser: "Browser", tmp_path: Path) -> None:
    injections = ["<script>hacked = 1</script>", '"><img src=x onerror=hacked=1>', "</script><script>hacked=1</script>"]
    study = Study(
        id="hostile",  # a name that is part of a path is checked before
        title="<img src=x onerror=hacked=1>",
        base={"run": {"rounds": 3}, "federation": {"clients": 3, "sample": 2}},
        rows={name: {"method": {"name": "fedavg"}} for name in injections},
        columns={"' onfocus='hacked=1' autofocus='": {}},
    )
    report = write_report([write_study(study, tmp_path / "<script>hacked=1<", grows)], tmp_path / "page.html")[0]
    with visit(browser, report) as opened:
        page = opened.page
        page.hover(".chart")  # the tip has names
        assert page.locator(".tip b").count() == 3
        assert page.evaluate("typeof hacked") == "undefined"
        assert page.locator("img").count() == 0
        assert sorted(names(page, "#study-1-cost table")) == sorted(injections)
        assert opened.problems == []


def test_several_studies_have_toggles_of_their_own(browser: "Browser", report: Path, tmp_path: Path) -> None:
    with visit(browser, write_report([report.parent, report.parent], tmp_path / "both.html")[0]) as opened:
        page = opened.page
        page.click("#study-2 .toggles label:nth-of-type(1)")
        assert names(page, "#study-1-paper table") == ["FedAvg", "FedProx", "FedLMD"]
        assert names(page, "#study-2-paper table") == ["FedProx", "FedLMD"]
        assert opened.problems == []
