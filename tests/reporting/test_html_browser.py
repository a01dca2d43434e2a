"""The report in a real browser: what a reader sees, clicks, types and prints."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from fedrecall.reporting.figures import style
from fedrecall.reporting.html import write_report
from fedrecall.studies.study import Cell, Study
from support.browser import NAMES, Browser, installed
from support.folders import write_study

pytestmark = pytest.mark.skipif(installed() is None, reason=f"needs a browser on the PATH: {', '.join(NAMES)}")

METHODS = {"FedAvg": 0.5, "FedProx": 0.3, "FedLMD": 0.7}


def grows(cell: Cell, number: int) -> float:
    return METHODS.get(cell.row, 0.4) + 0.01 * number + 0.02 * cell.seed


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(started: Browser, page: Path) -> Iterator[Browser]:
    started.open(page)
    yield started
    assert started.complaints() == []
    assert [address for address in started.requests() if not address.startswith("data:image/png")] == [page.as_uri()]


PAPER = "#study-1-paper table"


def names(browser: Browser, table: str = PAPER) -> list[str]:
    """The rows that are to be seen, in their order."""
    return browser.run(
        f"[...document.querySelectorAll({json.dumps(table + ' tbody tr')})]"
        ".filter(row => row.offsetParent).map(row => row.cells[0].textContent)"
    )


def sorts(browser: Browser) -> list[str]:
    return browser.run(f"[...document.querySelectorAll('{PAPER} thead th')].map(th => th.getAttribute('aria-sort'))")


def colour(browser: Browser, selector: str, key: str) -> str:
    return browser.run(f"getComputedStyle(document.querySelector({json.dumps(selector)}))[{json.dumps(key)}]")


def lines(browser: Browser, panel: int = 0) -> list[str]:
    """The rows whose lines a panel shows."""
    return browser.run(
        f"[...document.querySelectorAll('.chart')[{panel}].querySelectorAll('svg > .series')].map(g => g.dataset.row)"
    )


def test_a_click_sorts_a_table(browser: Browser) -> None:
    assert names(browser) == ["FedAvg", "FedProx", "FedLMD"]
    browser.click(f"{PAPER} th:nth-child(2) button")
    assert names(browser) == ["FedLMD", "FedAvg", "FedProx"], "the best comes first"
    assert sorts(browser) == ["none", "descending", "none"]
    browser.click(f"{PAPER} th:nth-child(2) button")
    assert names(browser) == ["FedProx", "FedAvg", "FedLMD"]
    assert sorts(browser) == ["none", "ascending", "none"]
    browser.click(f"{PAPER} th:nth-child(1) button")
    assert names(browser) == ["FedAvg", "FedLMD", "FedProx"], "names by the alphabet"
    assert sorts(browser)[0] == "ascending"


@pytest.mark.parametrize("key", ["Enter", " "])
def test_the_keyboard_sorts_too(browser: Browser, key: str) -> None:
    browser.run(f"document.querySelector('{PAPER} th:nth-child(3) button').focus()")
    assert colour(browser, ":focus", "outlineStyle") == "solid", "one sees where one is"
    browser.press(key)
    assert names(browser) == ["FedLMD", "FedAvg", "FedProx"]
    assert sorts(browser) == ["none", "none", "descending"]


def test_what_has_no_number_stays_below(browser: Browser) -> None:
    table = "#study-1-comparison .scroll:first-of-type table"
    browser.click(f"{table} th:nth-child(5) button")  # the difference to FedAvg, which FedAvg does not have
    assert names(browser, table) == ["FedLMD", "FedProx", "FedAvg"]
    browser.click(f"{table} th:nth-child(5) button")
    assert names(browser, table) == ["FedProx", "FedLMD", "FedAvg"]


def test_toggles_hide_lines_and_rows(browser: Browser) -> None:
    assert lines(browser) == lines(browser, 1) == ["0", "1", "2"]
    browser.click(".toggles label:nth-of-type(2)")
    assert lines(browser) == lines(browser, 1) == ["0", "2"]
    for table in (PAPER, "#study-1-comparison .scroll:first-of-type table", "#study-1-cost table"):
        assert names(browser, table) == ["FedAvg", "FedLMD"]
    folded = "[...document.querySelectorAll('#study-1-configuration details[data-row]')].map(d => d.hidden)"
    assert browser.run(folded) == [False, True, False]
    browser.click(".toggles label:nth-of-type(2)")
    assert lines(browser) == ["0", "1", "2"]
    assert names(browser) == ["FedAvg", "FedProx", "FedLMD"]


TICKS = (
    "[...document.querySelector('.chart').querySelectorAll('text[text-anchor=end]')].map(t => Number(t.textContent))"
)


def pixels(browser: Browser, colour: str) -> int:
    """How many of the first panel's are of a colour."""
    seen = Image.open(io.BytesIO(browser.picture(".chart"))).convert("RGB")
    wanted = tuple(bytes.fromhex(colour.removeprefix("#")))
    return sum(count for count, found in seen.getcolors(1 << 24) if found == wanted)


def test_lines_have_the_colours_of_their_methods(browser: Browser) -> None:
    blue = style.colour_of("FedLMD")
    assert pixels(browser, blue) > 100
    browser.click(".toggles label:nth-of-type(3)")
    assert pixels(browser, blue) == 0


def test_the_scale_fits_what_is_shown(browser: Browser) -> None:
    assert min(browser.run(TICKS)) < 45
    browser.click(".toggles label:nth-of-type(2)")
    assert min(browser.run(TICKS)) >= 50, "without the lowest line"


def test_pointing_at_a_round_tells_its_values(browser: Browser) -> None:
    x, y = browser.middle(".chart")
    browser.hover(x, y)
    said = browser.run("[...document.querySelectorAll('.chart')[0].querySelectorAll('.tip p')].map(p => p.textContent)")
    number = int(said[0].removeprefix("Round "))
    assert number in (6, 7), "in the middle"
    assert said[1:] == [
        f"{name}{100 * METHODS[name] + number + 1:.2f} % ± 1.41" for name in ("FedLMD", "FedAvg", "FedProx")
    ]
    browser.hover(2, 2)
    assert browser.run("document.querySelector('.tip').hidden")


def test_the_arrow_keys_tell_them_too(browser: Browser) -> None:
    browser.run("document.querySelector('.chart').focus()")
    for key, said in (("End", "Round 12"), ("ArrowLeft", "Round 11"), ("Home", "Round 1"), ("ArrowRight", "Round 2")):
        browser.press(key)
        assert browser.run("document.querySelector('.tip p').textContent") == said
    assert browser.run("document.querySelector('.tip').getAttribute('role')") == "status", "it is read out"
    browser.press("Escape")
    assert browser.run("document.querySelector('.tip').hidden")


def test_another_measure(browser: Browser) -> None:
    browser.click(".measures label:nth-of-type(3)")
    label = browser.run("document.querySelector('.chart svg').getAttribute('aria-label')")
    assert label.startswith("Dirichlet 0.05: forgetting by round; at the end FedAvg 10.00 points")


def test_the_button_makes_it_dark_and_light(browser: Browser) -> None:
    light = colour(browser, "body", "backgroundColor"), colour(browser, "body", "color")
    line = colour(browser, ".series .line", "stroke")
    browser.click("#theme")
    dark = colour(browser, "body", "backgroundColor"), colour(browser, "body", "color")
    assert light != dark
    assert contrast(*light) > 7 < contrast(*dark)
    assert colour(browser, ".series .line", "stroke") != line
    assert browser.run("document.getElementById('theme').textContent") == "Light"
    browser.click("#theme")
    assert (colour(browser, "body", "backgroundColor"), colour(browser, "body", "color")) == light


def test_it_follows_the_system(started: Browser, page: Path) -> None:
    started.open(page, prefers_color_scheme="dark")
    dark = colour(started, "body", "backgroundColor")
    for selector in (".note", "dt", "a", ".caution, .warning, .badges li", "th button"):
        assert contrast(colour(started, selector, "color"), colour(started, "section", "backgroundColor")) > 4.5
    started.click("#theme")
    assert colour(started, "body", "backgroundColor") != dark


def contrast(a: str, b: str) -> float:
    """Of two colours such as rgb(1, 2, 3), by the WCAG."""

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


def test_a_phone_shows_all_of_it(started: Browser, page: Path) -> None:
    started.open(page, width=360, height=740)
    assert started.run("document.documentElement.scrollWidth") == 360
    assert started.run(OVERFLOWING) == []
    assert started.run("[...document.querySelectorAll('.chart svg')].every(s => s.clientWidth > 280)")
    small = "[...document.querySelectorAll('button, label, nav a')].filter(e => e.offsetParent && e.offsetHeight < 24)"
    assert started.run(f"{small}.map(e => e.textContent)") == [], "fingers need some room"
    started.click(".toggles label:nth-of-type(1)")
    assert lines(started) == ["1", "2"]


def test_a_window_that_changes_is_drawn_anew(browser: Browser) -> None:
    browser.resize(700)
    drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(%s))))"
    assert browser.run(
        drawn
        % "document.querySelector('.chart svg').viewBox.baseVal.width === document.querySelector('.chart').clientWidth"
    )


def test_paper_has_no_controls(started: Browser, page: Path) -> None:
    started.open(page, prefers_color_scheme="dark")
    started.emulate(media="print", prefers_color_scheme="dark")
    seen = started.run(
        "[...document.querySelectorAll('nav, #theme, fieldset, .files, input')].filter(e => e.offsetParent).length"
    )
    assert seen == 0
    assert colour(started, "body", "backgroundColor") == "rgb(255, 255, 255)", "ink is dear"
    assert started.run("document.querySelector('.legend').offsetHeight") > 0, "the curves are told apart"
    assert started.run("document.querySelector('thead th').textContent") == "method", "headings stay"
    assert started.run("document.querySelector('thead th').offsetHeight") > 0
    assert started.pdf().startswith(b"%PDF")


def test_copying_a_table(browser: Browser, page: Path) -> None:
    browser.permit("clipboardReadWrite", "clipboardSanitizedWrite")

    def copied(button: str) -> str:
        browser.click(button)
        said = f"document.querySelector({json.dumps(button)}).textContent"
        browser.run(
            f"new Promise(done => {{ const wait = () => {said} === 'Copied' ? done() : setTimeout(wait, 5); wait(); }})"
        )
        return browser.run("navigator.clipboard.readText()")

    tables = page.parent / "tables"
    assert copied("#study-1-paper .files button:nth-of-type(1)") == (tables / "two-columns.csv").read_text()
    assert copied("#study-1-paper .files button:nth-of-type(2)") == (tables / "two-columns.tex").read_text()
    shown = browser.run("document.querySelector('#study-1-repeat code').textContent")
    assert copied("#study-1-repeat button") == shown


def test_without_scripts_there_is_a_figure(started: Browser, page: Path) -> None:
    started.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        started.open(page)
        document = started.send("DOM.getDocument", depth=-1)["root"]["nodeId"]

        def count(selector: str) -> int:
            return len(started.send("DOM.querySelectorAll", nodeId=document, selector=selector)["nodeIds"])

        assert count(".static figure svg") == 1
        assert count("thead th button") == 0, "nothing that does nothing"
        assert count(".live[hidden] .chart:empty") == 2
        assert count("fieldset.toggles[hidden]") == count("#theme[hidden]") == 1
    finally:
        started.send("Emulation.setScriptExecutionDisabled", value=False)


def test_hostile_names_do_nothing(started: Browser, tmp_path: Path) -> None:
    names_ = ["<script>hacked = 1</script>", '"><img src=x onerror=hacked=1>', "</script><script>hacked=1</script>"]
    study = Study(
        id="hostile",  # a name that is part of a path is checked before
        title="<img src=x onerror=hacked=1>",
        base={"run": {"rounds": 3}, "federation": {"clients": 3, "sample": 2}},
        rows={name: {"method": {"name": "fedavg"}} for name in names_},
        columns={"' onfocus='hacked=1' autofocus='": {}},
    )
    page = write_report([write_study(study, tmp_path / "<script>hacked=1<", grows)], tmp_path / "page.html")[0]
    started.open(page)
    x, y = started.middle(".chart")
    started.hover(x, y)  # the tip shows names
    assert started.run("document.querySelectorAll('.tip b').length") == 3
    assert started.run("typeof hacked") == "undefined"
    assert started.run("document.querySelectorAll('img').length") == 0
    assert sorted(names(started, "#study-1-cost table")) == sorted(names_)
    assert started.complaints() == []


def test_several_studies_have_toggles_of_their_own(started: Browser, page: Path, tmp_path: Path) -> None:
    started.open(write_report([page.parent, page.parent], tmp_path / "both.html")[0])
    started.click("#study-2 .toggles label:nth-of-type(1)")
    assert names(started, "#study-1-paper table") == ["FedAvg", "FedProx", "FedLMD"]
    assert names(started, "#study-2-paper table") == ["FedProx", "FedLMD"]
    assert started.complaints() == []
