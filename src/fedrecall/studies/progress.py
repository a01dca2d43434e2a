"""Progress of a study: a live table on a terminal or in a notebook, a line for every finished run elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Self

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedrecall.runs.progress import LiveOutput
from fedrecall.runs.records import RoundRecord
from fedrecall.studies.runner import StudyEvent, Summary
from fedrecall.studies.study import Cell, Study


@dataclass(frozen=True)
class RowProgress:
    """Progress of one row of the study."""

    runs: int
    done: int = 0
    cell: Cell | None = None
    """Cell that was started or finished last."""
    number: int | None = None
    """Rounds that this cell has completed."""
    accuracy: float | None = None
    best: float | None = None
    seconds: float | None = None
    """Seconds per round."""


class StudyProgress:
    """A context manager that displays the events of a study on a console."""

    def __init__(self, study: Study, console: Console, folder: Path | None = None, notes: Sequence[str] = ()) -> None:
        """Describe the display; `notes` are printed below the heading."""
        cells = study.cells()
        self._study, self._console, self._folder, self._notes = study, console, folder, notes
        self._runs, self._done = len(cells), 0
        self._rounds = {cell.folder: study.experiments[cell.folder].run.rounds for cell in cells}
        self._rounds_left, self._rounds_done, self._start = dict(self._rounds), 0, monotonic()
        self._rows = {row: RowProgress(sum(cell.row == row for cell in cells)) for row in study.rows}
        self._printed: set[str] = set()
        self._output = LiveOutput(self.__rich__, console)

    def __enter__(self) -> Self:
        if not self._console.is_jupyter:  # the table in a notebook is complete
            where = "" if self._folder is None else f", in {self._folder}"
            for line in (f"{self._study.title}: {describe_size(self._study)}{where}", *self._notes):
                self._output.print(line)
        self._output.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._output.__exit__()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            resume = "" if self._folder is None else f"; resume with the same command and --out {self._folder}"
            self._output.print(f"interrupted: {self._done} of {self._runs} runs are finished{resume}")

    def update(self, event: StudyEvent) -> None:
        """Display one event."""
        cell, row = event.cell, self._rows[event.cell.row]
        if event.kind == "started":
            self._rows[cell.row] = RowProgress(row.runs, row.done, cell)
        elif event.record is not None:
            self._add_round(cell, event.record)
        elif event.summary is not None:
            self._add_run(cell, event.summary, kept=event.kind == "kept")
        elif event.kind == "rejected":
            self._rounds_left[cell.folder] = 0
            self._print_once(str(event.error), f"cannot run {self._name(cell)}: {event.error}")
        else:
            self._print_once(event.kind, f"waiting for another process: {self._name(cell)}")
        self._output.refresh()

    def _add_round(self, cell: Cell, record: RoundRecord) -> None:
        row, accuracy = self._rows[cell.row], record["accuracy"]
        self._rows[cell.row] = replace(
            row,
            number=record["round"],
            accuracy=row.accuracy if accuracy is None else accuracy,
            best=max((value for value in (row.best, accuracy) if value is not None), default=None),
            seconds=record["seconds"],
        )
        self._rounds_left[cell.folder] = self._rounds[cell.folder] - record["round"]
        self._rounds_done += 1

    def _add_run(self, cell: Cell, summary: Summary, *, kept: bool) -> None:
        row, rounds = self._rows[cell.row], summary["rounds"]
        seconds = summary["seconds"] / rounds if rounds else None
        self._rows[cell.row] = RowProgress(
            row.runs, row.done + 1, cell, rounds, summary.get("final"), summary.get("best"), seconds
        )
        self._rounds_left[cell.folder] = 0
        self._done += 1
        if not self._output.is_live:
            note = " (kept)" if kept else ""
            self._output.print(f"{self._done}/{self._runs}  {self._name(cell)}: {_format_summary(summary)}{note}")

    def _print_once(self, key: str, text: str) -> None:
        """Print one line per key: a missing data set rejects many cells for one reason."""
        if key not in self._printed:
            self._printed.add(key)
            self._output.print(text)

    def _name(self, cell: Cell) -> str:
        column = [cell.column] if len(self._study.columns) > 1 else []
        return ", ".join([cell.row, *column, f"seed {cell.seed}"])

    def __rich__(self) -> Group:
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method", no_wrap=True)
        table.add_column("runs", justify="right")
        table.add_column("at", overflow="ellipsis", no_wrap=True)
        for name in ("round", "accuracy", "best", "s/round"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, row in self._rows.items():
            running = row.cell is not None and (row.number or 0) < self._rounds[row.cell.folder]
            style = "bold" if running and row.number is not None else ""
            table.add_row(Text(name), *self._format_row(row), style=style)
        return Group(table, Text(self._format_total(), style="dim"))

    def _format_row(self, row: RowProgress) -> list[str]:
        runs = f"{row.done}/{row.runs}"
        if row.cell is None:
            return [runs, *[""] * 5]
        column = [row.cell.column] if len(self._study.columns) > 1 else []
        return [
            runs,
            ", ".join([*column, f"seed {row.cell.seed}"]),
            f"{row.number or 0}/{self._rounds[row.cell.folder]}",
            _percent(row.accuracy),
            _percent(row.best),
            "" if row.seconds is None else f"{row.seconds:.2f}",
        ]

    def _format_total(self) -> str:
        elapsed, rounds = monotonic() - self._start, sum(self._rounds_left.values())
        per_round = elapsed / self._rounds_done if self._rounds_done else None
        left = f", about {format_duration(per_round * rounds)} left" if per_round and rounds else ""
        total = f"{self._done} of {self._runs} runs, {format_duration(elapsed)}{left}"
        return "; ".join([total, *self._study.scale_note()])


def describe_size(study: Study) -> str:
    """Return the numbers of runs, rows, columns and seeds as text."""
    sizes = {"row": len(study.rows), "column": len(study.columns), "seed": len(study.seeds)}
    shape = ", ".join(f"{size} {name}{'s' * (size > 1)}" for name, size in sizes.items())
    runs = len(study.cells())
    return f"{runs} run{'s' * (runs > 1)} ({'; '.join([shape, *study.scale_note()])})"


def format_duration(seconds: float) -> str:
    """Return a number of seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _format_summary(summary: Summary) -> str:
    if "failed" in summary:
        return f"failed: {summary['failed']}"
    seconds = summary["seconds"] / max(1, summary["rounds"])
    return f"final {_percent(summary['final'])}  best {_percent(summary['best'])}  {seconds:.2f} s/round"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f} %"
