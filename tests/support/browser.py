"""A real browser, driven over a pipe by the DevTools protocol: no driver, no websocket, no port."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from select import select
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60  # seconds for one answer; a busy machine starts a browser slowly


def installed() -> str | None:
    """The path of a browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One headless browser with one page; `events` holds all that the page reported, oldest first."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        # The protocol's pipes are file descriptors 3 and 4 of the browser, whatever their numbers are here.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, str(installed()), *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select([self._in], [], [], PATIENCE)[0], "the browser does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        first, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(first)

    def open(self, page: Path, *, width: int = 1200, height: int = 900, **media: str) -> None:
        """Load a file in a window of this size, with media features such as prefers_color_scheme="dark"."""
        self.events.clear()
        self.resize(width, height)
        self.emulate(**media)
        self.send("Page.navigate", url=page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def resize(self, width: int, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def emulate(self, media: str = "", **features: str) -> None:
        """Print or screen, and media features."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", media=media, features=named)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for."""
        found = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """A click of the mouse into the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element is, after it was scrolled to."""
        box = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        return box[0], box[1]

    def press(self, key: str) -> None:
        """A key of the keyboard."""
        text: Mapping[str, str] = {"Enter": "\r", " ": " "}
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text[key]} if key in text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key if key != " " else "Space", **extra)

    def permit(self, *permissions: str) -> None:
        """What a page would ask for, and only gets while its window is in front."""
        self.send("Browser.grantPermissions", permissions=list(permissions))
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)

    def complaints(self) -> list[str]:
        """Errors and warnings: of scripts, of the console, of the page's policy."""
        self.run("0")  # what was reported so far has come before this answer
        wrong = []
        for event in self.events:
            given = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                wrong.append(json.dumps(given["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
                wrong.append(json.dumps(given["args"]))
            elif event["method"] == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                wrong.append(given["entry"]["text"])
        return wrong

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        self.run("0")
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def picture(self, selector: str = "html") -> bytes:
        """An element, or the whole page, as a PNG."""
        box = self.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        up = self.run("scrollY")
        clip = {"x": box["x"], "y": box["y"] + up, "width": box["width"], "height": box["height"], "scale": 1}
        return base64.b64decode(self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])
