"""Progress as Python users see it: live in a notebook or on a terminal, nothing elsewhere unless it is asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from time import monotonic
from typing import Any

from rich.console import Console, RenderableType

from fedrecall.experiment.board import FRESH, Board
from fedrecall.experiment.progress import RunProgress
from fedrecall.experiment.record import Record
from fedrecall.experiment.study import Cell, Study
from fedrecall.experiment.sweep import Summary, Watch

WIDTH = 100  # letters of a line in a notebook


@contextmanager
def study_progress(study: Study, progress: bool | None) -> Iterator[Watch]:
    """Someone who shows how a study goes on; with None, only where it can be live."""
    console = Console(stderr=True)
    if progress is False or (progress is None and not (console.is_jupyter or console.is_terminal)):
        yield Watch()
    elif console.is_jupyter:
        with NotebookBoard(study) as board:
            yield board
    else:
        with Board(study, console) as board:
            yield board


@contextmanager
def run_progress(rounds: int, title: str, progress: bool | None) -> Iterator[Callable[[Record], None]]:
    """Someone who shows how a run goes on; with None, only where it can be live."""
    console = Console(stderr=True)
    if progress is False or (progress is None and not (console.is_jupyter or console.is_terminal)):
        yield lambda _: None
    elif console.is_jupyter:
        with NotebookRun(rounds, title) as shown:
            yield shown
    else:
        with RunProgress(rounds, title, console) as shown:
            yield shown


class Output:
    """A place in a notebook's cell that is drawn anew; it needs IPython, which is there, and no widgets."""

    def __init__(self, content: Callable[[], RenderableType]) -> None:
        from IPython.display import display

        self._content, self._drawn = content, monotonic()
        self._handle: Any = display(self._rendered(), raw=True, display_id=True)

    def refresh(self) -> None:
        """Draw it anew, unless that has just been done."""
        if monotonic() - self._drawn > 1 / FRESH:
            self._drawn = monotonic()
            self._handle.update(self._rendered(), raw=True)

    def close(self) -> None:
        """Draw it for the last time."""
        self._handle.update(self._rendered(), raw=True)

    def _rendered(self) -> dict[str, str]:
        console = Console(file=StringIO(), record=True, width=WIDTH, force_jupyter=False)
        console.print(self._content())
        text = console.export_text(clear=False)
        style = "white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace"
        return {
            "text/plain": text,
            "text/html": console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'),
        }


class NotebookBoard(Board):
    """The table of a study's runs in a notebook's cell."""

    def __init__(self, study: Study) -> None:
        super().__init__(study, Console(force_terminal=True))  # the table is live, so no line for every run

    def __enter__(self) -> "NotebookBoard":
        self._output = Output(self.__rich__)
        return self

    def __exit__(self, *_: object) -> None:
        self._output.close()

    def round(self, cell: Cell, record: Record) -> None:
        """A run has made another round."""
        super().round(cell, record)
        self._output.refresh()

    def ended(self, cell: Cell, summary: Summary, here: bool) -> None:
        """A cell is finished."""
        super().ended(cell, summary, here)
        self._output.refresh()


class NotebookRun(RunProgress):
    """The line of a run in a notebook's cell."""

    def __init__(self, rounds: int, title: str) -> None:
        super().__init__(rounds, title, Console(force_terminal=True))

    def __enter__(self) -> "NotebookRun":
        self._output = Output(self._bar.get_renderable)
        return self

    def __exit__(self, *_: object) -> None:
        self._output.close()

    def __call__(self, line: Record) -> None:
        """One more round is done."""
        super().__call__(line)
        self._output.refresh()
