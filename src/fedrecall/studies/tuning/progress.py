"""Progress of a search: a line for every finished trial, and on a terminal a bar for the running one."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from fedrecall.runs.progress import LiveOutput
from fedrecall.studies.tuning.search import Search, TuningEvent
from fedrecall.studies.tuning.trials import Trial, format_settings


class TuningProgress:
    """A context manager that displays the events of a search on a console."""

    def __init__(self, search: Search, console: Console) -> None:
        self._search = search
        self._bar = Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
        )
        self._task = self._bar.add_task("loading the data", total=None)
        self._output = LiveOutput(self._bar.get_renderable, console, transient=True)

    def __enter__(self) -> Self:
        search = self._search
        self._output.print(f"tuning {search.method} on {search.data_name}, in {search.folder}")
        self._output.print(f"space ({search.space.source}):")
        for key, values in search.space.dimensions.items():
            self._output.print(f"  {key} in {values}")
        percent = f"{100 * search.validation:.0f} %"
        self._output.print(f"scored on {percent} of every client's examples, held out; the test set is not used")
        self._output.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._output.__exit__()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._output.print(f"interrupted: finished trials are kept; resume with --out {self._search.folder}")

    def update(self, event: TuningEvent) -> None:
        """Display one event."""
        total = self._search.num_trials
        title = f"trial {event.number:{len(str(total))}}/{total}  {format_settings(event.settings)}"
        if event.kind == "started":
            self._bar.reset(self._task, total=self._search.rounds, description=title)
        elif event.record is not None:
            self._bar.update(self._task, completed=event.record["round"])
        elif event.trial is not None:
            self._output.print(f"{title}  {format_outcome(event.trial)}  {event.trial.seconds:.1f} s")
        self._output.refresh()


def format_outcome(trial: Trial) -> str:
    """Return a trial's validation accuracy, or the reason why it has none."""
    if trial.value is not None:
        return f"{100 * trial.value:.2f} %"
    return "diverged" if trial.outcome == "failed" else f"pruned after round {max(trial.curve)}"
