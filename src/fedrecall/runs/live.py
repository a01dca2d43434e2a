"""A run's progress as Python users see it: live in a notebook or on a terminal, else only if it is asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from time import monotonic
from typing import Any

from rich.console import Console, RenderableType

from fedrecall.runs.progress import RunProgress
from fedrecall.runs.records import RoundRecord

REFRESH_RATE = 4  # times a second that an output is drawn

NOTEBOOK_COLUMNS = 100  # letters of a line in a notebook


def should_show(console: Console, progress: bool | None) -> bool:
    """Whether progress is shown: as the caller says, or else where it can be live."""
    return console.is_jupyter or console.is_terminal if progress is None else progress


@contextmanager
def run_progress(rounds: int, title: str, progress: bool | None) -> Iterator[Callable[[RoundRecord], None]]:
    """Someone who shows how a run goes on; with None, only where it can be live."""
    console = Console(stderr=True)
    if not should_show(console, progress):
        yield lambda _: None
    elif console.is_jupyter:
        with NotebookRunProgress(rounds, title) as shown:
            yield shown
    else:
        with RunProgress(rounds, title, console) as shown:
            yield shown


class NotebookOutput:
    """A place in a notebook's cell that is drawn anew; it needs IPython, which is there, and no widgets."""

    def __init__(self, content: Callable[[], RenderableType]) -> None:
        from IPython.display import display

        self._content, self._drawn = content, monotonic()
        self._handle: Any = display(self._rendered(), raw=True, display_id=True)

    def refresh(self) -> None:
        """Draw it anew, unless that has just been done."""
        if monotonic() - self._drawn > 1 / REFRESH_RATE:
            self._drawn = monotonic()
            self._handle.update(self._rendered(), raw=True)

    def close(self) -> None:
        """Draw it for the last time."""
        self._handle.update(self._rendered(), raw=True)

    def _rendered(self) -> dict[str, str]:
        console = Console(file=StringIO(), record=True, width=NOTEBOOK_COLUMNS, force_jupyter=False)
        console.print(self._content())
        text = console.export_text(clear=False)
        style = "white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace"
        return {
            "text/plain": text,
            "text/html": console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'),
        }


class NotebookRunProgress(RunProgress):
    """The line of a run in a notebook's cell."""

    def __init__(self, rounds: int, title: str) -> None:
        super().__init__(rounds, title, Console(force_terminal=True))

    def __enter__(self) -> "NotebookRunProgress":
        self._output = NotebookOutput(self._bar.get_renderable)
        return self

    def __exit__(self, *_: object) -> None:
        self._output.close()

    def __call__(self, line: RoundRecord) -> None:
        """One more round is done."""
        super().__call__(line)
        self._output.refresh()
