"""The command line. It translates arguments; each command is a few lines, and imports what it needs when it runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Federated learning that does not forget.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
show = typer.Typer(help="Show what there is to choose from, or how a configuration deals out its data.", no_args_is_help=True)
app.add_typer(show, name="show")

Config = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Configuration; without one, the quickstart on digits.")
]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. method.mu=0.1.")]


@app.command()
def run(
    config: Config = None,
    overrides: Overrides = [],  # noqa: B006 (typer's way)
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run directory; default: a new one in runs/.")] = None,
) -> None:
    """Train a federation."""
    from fedrecall.experiment.console import run_and_show

    run_and_show(config, overrides, out)


@show.command()
def methods() -> None:
    """The methods, with their hyper-parameters and defaults."""
    from fedrecall.experiment.console import show_choices
    from fedrecall.methods import METHODS

    show_choices("method", METHODS)
