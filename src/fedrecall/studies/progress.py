"""What a person sees while a study is run: a live table on a terminal, a line for every finished run elsewhere."""

from dataclasses import dataclass, replace
from time import monotonic
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedrecall.config.experiment import Experiment
from fedrecall.runs.progress import is_interactive
from fedrecall.runs.records import RoundRecord
from fedrecall.studies.runner import Summary, Watch
from fedrecall.studies.study import Cell, Study, scaled

REFRESH_RATE = 4  # times a second that the live table is drawn


@dataclass(frozen=True)
class RowProgress:
    """One row of the study, as the table shows it."""

    runs: int
    done: int = 0
    cell: Cell | None = None  # the last one that was begun or finished
    number: int | None = None  # of its rounds
    accuracy: float | None = None
    best: float | None = None
    seconds: float | None = None  # a round


class StudyProgress(Watch):
    """Shows every run of a study."""

    def __init__(self, study: Study, console: Console) -> None:
        self._study, self._console = study, console
        cells = study.cells()
        self._runs, self._done = len(cells), 0
        self._rounds = {cell.folder: Experiment(**cell.config).run.rounds for cell in cells}
        self._left, self._made, self._began = dict(self._rounds), 0, monotonic()
        self._lines = {row: RowProgress(sum(cell.row == row for cell in cells)) for row in study.rows}
        self._said: set[str] = set()
        self._live = Live(console=console, get_renderable=self.__rich__, refresh_per_second=REFRESH_RATE)

    def __enter__(self) -> Self:
        if is_interactive(self._console):
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if is_interactive(self._console):
            self._live.stop()

    def began(self, cell: Cell) -> None:
        """A run starts."""
        line = self._lines[cell.row]
        self._lines[cell.row] = RowProgress(line.runs, line.done, cell)

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """It has made another round."""
        line, accuracy = self._lines[cell.row], record["accuracy"]
        known = [value for value in (line.best, accuracy) if value is not None]
        self._lines[cell.row] = replace(
            line,
            number=record["round"],
            accuracy=line.accuracy if accuracy is None else accuracy,
            best=max(known, default=None),
            seconds=record["seconds"],
        )
        self._left[cell.folder], self._made = self._rounds[cell.folder] - record["round"], self._made + 1

    def ended(self, cell: Cell, summary: Summary, here: bool) -> None:
        """A cell is finished."""
        line = self._lines[cell.row]
        rounds = summary["rounds"]
        self._done += 1
        self._left[cell.folder] = 0
        each = summary["seconds"] / rounds if rounds else None
        self._lines[cell.row] = RowProgress(
            line.runs, line.done + 1, cell, rounds, summary.get("final"), summary.get("best"), each
        )
        if not is_interactive(self._console):
            self._say(f"{self._done}/{self._runs}  {self._name(cell)}: {_outcome(summary)}{'' if here else ' (kept)'}")

    def refused(self, cell: Cell, reason: str) -> None:
        """A cell cannot be run."""
        self._left[cell.folder] = 0
        if reason not in self._said:  # one missing data set is many cells, and one reason
            self._said.add(reason)
            self._say(f"cannot run {self._name(cell)}: {reason}")

    def waits(self, cells: list[Cell]) -> None:
        """Nothing is left but what other processes are running."""
        names = ", ".join(self._name(cell) for cell in cells[:3]) + (", ..." if len(cells) > 3 else "")
        text = f"waiting for another process: {names}"
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _name(self, cell: Cell) -> str:
        column = [cell.column] if len(self._study.columns) > 1 else []
        return ", ".join([cell.row, *column, f"seed {cell.seed}"])

    def __rich__(self) -> Group:
        grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        grid.add_column("method", no_wrap=True)
        grid.add_column("runs", justify="right")
        grid.add_column("at", overflow="ellipsis", no_wrap=True)
        for name in ("round", "accuracy", "best", "s/round"):
            grid.add_column(name, justify="right", no_wrap=True)
        for row, line in self._lines.items():
            busy = line.number is not None and line.cell is not None and line.number < self._rounds[line.cell.folder]
            grid.add_row(
                Text(row), *_cells(line, self._rounds, len(self._study.columns) > 1), style="bold" if busy else ""
            )
        return Group(grid, Text(self._progress(), style="dim"))

    def _progress(self) -> str:
        spent, rounds = monotonic() - self._began, sum(self._left.values())
        left = f", about {format_duration(spent / self._made * rounds)} left" if self._made and rounds else ""
        return "; ".join([f"{self._done} of {self._runs} runs, {format_duration(spent)}{left}", *scaled(self._study)])


def _cells(line: RowProgress, rounds: dict[str, int], columns: bool) -> list[str]:
    if line.cell is None:
        return [f"{line.done}/{line.runs}", *[""] * 5]
    where = [line.cell.column] if columns else []
    return [
        f"{line.done}/{line.runs}",
        ", ".join([*where, f"seed {line.cell.seed}"]),
        f"{line.number or 0}/{rounds[line.cell.folder]}",
        _percent(line.accuracy),
        _percent(line.best),
        "" if line.seconds is None else f"{line.seconds:.2f}",
    ]


def _outcome(summary: Summary) -> str:
    if "failed" in summary:
        return f"failed: {summary['failed']}"
    each = summary["seconds"] / max(1, summary["rounds"])
    return f"final {_percent(summary['final'])}  best {_percent(summary['best'])}  {each:.2f} s/round"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
