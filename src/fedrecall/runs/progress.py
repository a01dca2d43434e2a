"""The progress display of a run, and the output that all progress displays use.

There are three outputs: a terminal and a notebook cell are redrawn, anything else receives plain lines.
"""

from collections.abc import Callable
from io import StringIO
from time import monotonic
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedrecall.runs.records import RoundRecord

REFRESH_RATE = 4  # redraws a second: more make a slow terminal flicker

NOTEBOOK_COLUMNS = 100  # characters in a line of a notebook cell

NOTEBOOK_STYLE = "white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace"


def progress_console(progress: bool | Console | None) -> Console:
    """Return the console of a progress display: a given one, standard error, or a silent one.

    True shows the progress, False does not. None shows it in a notebook and on a terminal, where it can be redrawn.
    """
    if isinstance(progress, Console):
        return progress
    console = Console(stderr=True)
    if progress or (progress is None and (console.is_jupyter or console.is_terminal)):
        return console
    return Console(quiet=True, force_terminal=False, force_jupyter=False)


def is_interactive(console: Console) -> bool:
    """Return True if the console is a terminal that can redraw a line."""
    return console.is_terminal and not console.is_dumb_terminal


class LiveOutput:
    """An output that is redrawn while its context lasts. A console that cannot be redrawn shows printed lines only."""

    def __init__(self, content: Callable[[], RenderableType], console: Console, *, transient: bool = False) -> None:
        self._content, self._console, self._transient = content, console, transient
        self.is_live = console.is_jupyter or is_interactive(console)
        self._terminal: Live | None = None
        self._cell: Any = None  # IPython's handle of a notebook cell
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._console.is_jupyter:
            from IPython.display import display

            self._cell, self._drawn = display(self._rendered(), raw=True, display_id=True), monotonic()
        elif self.is_live:
            self._terminal = Live(
                console=self._console,
                get_renderable=self._content,
                refresh_per_second=REFRESH_RATE,
                transient=self._transient,
            )
            self._terminal.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            self._terminal.stop()
        if self._cell is not None:
            self._cell.update(self._rendered(), raw=True)

    def refresh(self) -> None:
        """Redraw a notebook cell, at most at the refresh rate. A terminal is redrawn by a thread of rich."""
        if self._cell is not None and monotonic() - self._drawn > 1 / REFRESH_RATE:
            self._drawn = monotonic()
            self._cell.update(self._rendered(), raw=True)

    def print(self, line: str) -> None:
        """Print a line, above the content that is redrawn."""
        self._console.print(Text(line), soft_wrap=True)

    def _rendered(self) -> dict[str, str]:
        """Return the content as text and HTML. Without widgets it is stored in the notebook as any other output."""
        console = Console(file=StringIO(), record=True, width=NOTEBOOK_COLUMNS, force_jupyter=False)
        console.print(self._content())
        code_format = f'<pre style="{NOTEBOOK_STYLE}">{{code}}</pre>'
        return {
            "text/plain": console.export_text(clear=False),
            "text/html": console.export_html(inline_styles=True, code_format=code_format),
        }


class RunProgress:
    """The progress of a run: a bar where it can be redrawn, else a line for every round."""

    def __init__(self, rounds: int, title: str, console: Console) -> None:
        self._rounds = rounds
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TextColumn("{task.fields[seconds]} s/round"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._task = self._bar.add_task(title, total=rounds, accuracy="-", seconds="-")
        self._output = LiveOutput(self._bar.get_renderable, console)

    def __enter__(self) -> Self:
        self._output.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._output.__exit__()

    def update(self, record: RoundRecord) -> None:
        """Show a round that has ended."""
        number, seconds = record["round"], f"{record['seconds']:.2f}"
        accuracy = "-" if record["accuracy"] is None else f"{100 * record['accuracy']:.2f} %"
        if self._output.is_live:
            self._bar.update(self._task, completed=number, accuracy=accuracy, seconds=seconds)
            self._output.refresh()
        else:
            width = len(str(self._rounds))
            self._output.print(f"round {number:{width}}/{self._rounds}  accuracy {accuracy}  {seconds} s")
