"""The command line. It translates arguments; each command imports what it needs when it runs, so that help is quick."""

import sys
from typing import Annotated

import typer

from fedrecall._version import __version__
from fedrecall.cli import completion, flower, running, show, starting
from fedrecall.errors import UserError

app = typer.Typer(
    help="Federated learning that does not forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    starting.init,
    running.run,
    running.compare,
    running.reproduce,
    running.tune,
    running.report,
    starting.doctor,
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
    """Run the command line. A `UserError` is one line on standard error, with --json also JSON, and exit code 2."""
    try:
        with completion.whole_words():
            app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        if "--json" in sys.argv[1:]:
            from fedrecall.cli import output

            output.print_error(error)
        sys.exit(2)
