"""What the commands print."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedrecall.data.draw import draw
from fedrecall.experiment.config import Experiment, method_choice
from fedrecall.experiment.progress import RunProgress
from fedrecall.experiment.run import run
from fedrecall.experiment.setup import deal, read, setup


def run_and_show(config: Path | None, overrides: Sequence[str], out: Path | None) -> None:
    """Run a configuration with a live display, then print the summary and where the files are."""
    experiment = Experiment.load(config, overrides)
    method = method_choice.dump(experiment.method)["name"]
    title = f"{method} on {experiment.data.name}"
    out = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{method}-{experiment.data.name}"
    console = Console()
    with RunProgress(experiment.run.rounds, title, console) as progress:
        result = run(experiment, out=out, watch=progress)
    summary = result.summary
    accuracy = "  ".join(f"{name} {100 * summary[name]:.2f} %" for name in ("final", "best", "last10"))
    console.print(f"accuracy: {accuracy}", highlight=False)
    console.print(f"{title}: {summary['rounds']} rounds, {summary['seconds']:.1f} s, files in {out}", highlight=False)


def show_choices(kind: str, table: Mapping[str, type]) -> None:
    """Names, what they are, and their settings with defaults."""
    grid = Table(kind, "what it is", "settings", box=None, header_style="bold")
    for name, cls in table.items():
        settings = ", ".join(f"{f.name} = {f.default}" for f in fields(cls))
        grid.add_row(name, (cls.__doc__ or "").splitlines()[0], settings)
    Console().print(grid)
