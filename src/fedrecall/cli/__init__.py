"""The command line: it parses arguments, calls `fedrecall.api`, and prints what that returns.

Every command imports what it needs when it runs, so that `--help` does not wait for torch.
"""

import sys
from typing import Annotated

import typer

from fedrecall._version import __version__
from fedrecall.cli import completion, doctor, flower, init, output, run, show, study, tune
from fedrecall.errors import UserError, limit_reached

app = typer.Typer(
    help="Federated learning that does not forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    init.init,
    run.run,
    study.compare,
    study.reproduce,
    tune.tune,
    study.report,
    doctor.doctor,
):
    app.command()(command)

app.add_typer(show.app, name="show")

app.add_typer(flower.app, name="flower")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedrecall {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. A `UserError` is one line on standard error, with --json also JSON; exit code 2."""
    try:
        with completion.joined_bash_words():
            app()
    except Exception as raised:
        error = raised if isinstance(raised, UserError) else limit_reached(raised)
        if error is None:
            raise
        typer.echo(f"error: {error} [{error.code}]", err=True)
        if "--json" in sys.argv[1:]:
            output.print_error(error)
        sys.exit(2)
