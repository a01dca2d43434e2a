"""The system's browser, controlled by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATH = next((path for name in NAMES if (path := shutil.which(name))), None)
IS_INSTALLED = PATH is not None and find_spec("playwright") is not None
REQUIREMENT = f"needs playwright and a browser on the PATH: {', '.join(NAMES)}"


@dataclass
class Visit:
    """An open page, the errors and warnings of its scripts and policy, and the addresses that it requested."""

    page: "Page"
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def start_browser() -> Iterator["Browser"]:
    """Start a headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PATH, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def visit(browser: "Browser", path: Path, *, width: int = 1200, height: int = 900, **options: Any) -> Iterator[Visit]:
    """Open a file in a window of its own; options are those of a Playwright context, e.g. `color_scheme`."""
    with browser.new_context(viewport={"width": width, "height": height}, **options) as context:
        opened = Visit(context.new_page())
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("pageerror", lambda error: opened.problems.append(str(error)))
        opened.page.on(
            "console",
            lambda message: opened.problems.append(message.text) if message.type in ("error", "warning") else None,
        )
        opened.page.goto(path.absolute().as_uri())
        yield opened
