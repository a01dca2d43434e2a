"""What `fedrecall tune` prints."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from fedrecall.cli import output
from fedrecall.runs.progress import is_interactive
from fedrecall.runs.records import RoundRecord
from fedrecall.studies.tuning.search import (
    VALIDATION_FRACTION,
    TuningResult,
    Watch,
    import_optuna,
    resolve_search,
    tune,
)
from fedrecall.studies.tuning.space import Settings
from fedrecall.studies.tuning.trials import Trial, format_settings

MAX_TRIALS_LISTED = 10  # trials in the table; the file has all


def tune_and_show(
    method: str,
    config: Path | None,
    *,
    trials: int,
    over: Sequence[str],
    overrides: Sequence[str],
    out: Path | None,
    as_json: bool = False,
) -> None:
    """Search, with a line for every trial; then the best of them, and where its configuration is."""
    import_optuna()
    tables, space = resolve_search(method, config, over, overrides)
    folder = out or Path("tuning") / f"{method}-{tables['data']['name']}"
    console = output.make_console(as_json)
    _say(console, f"tuning {method} on {tables['data']['name']}, in {folder}")
    _say(console, f"space ({space.source}):")
    for key, values in space.dimensions.items():
        _say(console, f"  {key} in {values}")
    _say(
        console,
        f"scored on {100 * VALIDATION_FRACTION:.0f} % of every client's examples, held out; the test set is not used",
    )
    try:
        with TuningProgress(console, trials) as watch:
            found = tune(method, config, trials=trials, over=over, overrides=overrides, out=folder, watch=watch)
    except KeyboardInterrupt:
        _say(console, "interrupted: the finished trials are kept; the same command goes on")
        raise SystemExit(130) from None
    document = {
        "folder": found.folder,
        "space": {key: str(values) for key, values in space.dimensions.items()},
        "trials": [asdict(trial) for trial in found.trials],
        "best": None if found.best is None else asdict(found.best),
        "config": found.config,
    }
    if not as_json:
        _show(found, console)
    if found.config is None:
        file = folder / "trials.csv"
        text = f"{file}: no trial is complete"
        raise output.Incomplete("tune.no_complete_trial", text, str(file), "try a smaller local.lr", document)
    if as_json:
        output.print_json(document)


class TuningProgress(Watch):
    """A line for every trial that ends; on a terminal a bar for the one that runs."""

    def __init__(self, console: Console, trials: int) -> None:
        self._console, self._trials = console, trials
        self._bar = Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            disable=not is_interactive(console),
            transient=True,
        )
        self._task = self._bar.add_task("dealing out the data", total=None)

    def __enter__(self) -> "TuningProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def began(self, number: int, settings: Settings, rounds: int) -> None:
        """A trial starts."""
        self._bar.reset(
            self._task, total=rounds, description=f"trial {number}/{self._trials}  {format_settings(settings)}"
        )

    def round(self, line: RoundRecord) -> None:
        """It has made another round."""
        self._bar.update(self._task, completed=line["round"])

    def ended(self, trial: Trial) -> None:
        """It is finished."""
        width = len(str(self._trials))
        head = f"trial {trial.number:{width}}/{self._trials}  {format_settings(trial.settings)}"
        _say(self._console, f"{head}  {_outcome(trial)}  {trial.seconds:.1f} s")


def _show(found: TuningResult, console: Console) -> None:
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("trial", *found.space.dimensions, "validation"):
        grid.add_column(title, justify="right", overflow="fold")
    ranked = sorted(found.trials, key=lambda trial: (-(trial.value or 0.0), -len(trial.curve), trial.number))
    for trial in ranked[:MAX_TRIALS_LISTED]:
        grid.add_row(str(trial.number), *(f"{v:.6g}" for v in trial.settings.values()), _outcome(trial))
    console.print()
    console.print(grid)
    if len(ranked) > MAX_TRIALS_LISTED:
        _say(console, f"... and {len(ranked) - MAX_TRIALS_LISTED} more")
    console.print()
    _say(console, f"all trials in {found.folder / 'trials.csv'}")
    if found.best is not None:
        _say(console, f"best: {format_settings(found.best.settings)}, {_outcome(found.best)} on held-out examples")
        _say(console, "train with it on all of the clients' data, and test:")
        _say(console, f"  fedrecall run {found.config}")


def _outcome(trial: Trial) -> str:
    if trial.value is not None:
        return f"{100 * trial.value:.2f} %"
    return "diverged" if trial.outcome == "failed" else f"pruned after round {max(trial.curve)}"


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
