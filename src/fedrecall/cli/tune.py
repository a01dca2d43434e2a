"""`fedrecall tune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrecall.cli import completion
from fedrecall.cli.options import (
    AlphaOption,
    ClientsOption,
    DataOption,
    JsonOption,
    ModelOption,
    RoundsOption,
    SampleOption,
    SeedOption,
    SetOption,
)

if TYPE_CHECKING:
    from rich.console import Console

    from fedrecall.studies.tuning.search import TuningResult

MAX_TRIALS_LISTED = 10  # trials in the printed table; trials.csv has all


def tune(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="Method to tune.", autocompletion=completion.complete_methods)
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG.toml",
            help="Configuration. Default: 40 clients with two digits each, four per round.",
        ),
    ] = None,
    data: DataOption = None,
    model: ModelOption = None,
    clients: ClientsOption = None,
    sample: SampleOption = None,
    alpha: AlphaOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Settings to try, those of a resumed search included.")] = 20,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B|LOW..HIGH", help="Search these values instead of the method's; repeatable."),
    ] = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the search. A search in it is resumed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Search a method's settings, on data held out from clients.

    The best settings are written as a configuration.
    """
    from dataclasses import asdict

    from fedrecall import api
    from fedrecall.cli import output

    console = output.make_console(as_json)
    try:
        result = api.tune(
            method,
            config,
            trials=trials,
            over=over or [],
            data=data,
            model=model,
            clients=clients,
            sample=sample,
            alpha=alpha,
            rounds=rounds,
            seed=seed,
            overrides=overrides or [],
            out=out,
            progress=console,
        )
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    document = {
        "folder": result.folder,
        "space": {key: str(values) for key, values in result.space.dimensions.items()},
        "trials": [asdict(trial) for trial in result.trials],
        "best": None if result.best is None else asdict(result.best),
        "config": result.config,
    }
    if not as_json:
        _print_result(result, console)
    if result.best is None:
        file = result.folder / "trials.csv"
        text = f"{file}: no trial is complete"
        raise output.Incomplete("tune.no_complete_trial", text, str(file), "try a smaller local.lr", document)
    if as_json:
        output.print_json(document)


def _print_result(result: "TuningResult", console: "Console") -> None:
    """Print the best trials, and the command that trains with the best settings."""
    from rich.table import Table

    from fedrecall.cli import output
    from fedrecall.studies.tuning.progress import format_outcome
    from fedrecall.studies.tuning.trials import format_settings

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("trial", *result.space.dimensions, "validation"):
        table.add_column(title, justify="right", overflow="fold")
    ranked = sorted(result.trials, key=lambda trial: (-(trial.value or 0.0), -len(trial.curve), trial.number))
    for trial in ranked[:MAX_TRIALS_LISTED]:
        table.add_row(str(trial.number), *(f"{v:.6g}" for v in trial.settings.values()), format_outcome(trial))
    console.print()
    console.print(table)
    if len(ranked) > MAX_TRIALS_LISTED:
        output.print_line(console, f"... and {len(ranked) - MAX_TRIALS_LISTED} more")
    console.print()
    output.print_line(console, f"all trials in {result.folder / 'trials.csv'}")
    if result.best is not None:
        best = f"{format_settings(result.best.settings)}, {format_outcome(result.best)}"
        output.print_line(console, f"best: {best} on held-out examples")
        output.print_line(console, "train with these settings on all data of the clients, and test:")
        output.print_line(console, f"  fedrecall run {result.config}")
