"""The command line: it parses arguments, calls `fedrecall.api`, and prints what that returns.

Every command imports what it needs when it runs, so that `--help` does not wait for torch.
"""

import sys
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedrecall._version import __version__
from fedrecall.cli import compare, completion, doctor, flower, init, output, predict, report, reproduce, run, show, tune
from fedrecall.errors import UserError, limit_reached


class Command(TyperCommand):
    """A command that reports an unknown option as a `UserError` with the nearest option or configuration key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":  # of click, or of typer's copy of it, depending on its version
                raise
            raise self._unknown_option(str(getattr(error, "option_name", ""))) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text. Older versions of typer write a backslash before the bracket of a default."""
        super().format_help(ctx, formatter)
        formatter.buffer[:] = [text.replace("\\[", "[") for text in formatter.buffer]

    def _unknown_option(self, option: str) -> UserError:
        from fedrecall.config.validation import nearest_key

        options = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
        near, key = get_close_matches(option, options, n=1), nearest_key(option.lstrip("-").replace("-", "_"))
        hint = f"did you mean {near[0]}?" if near else f"did you mean --set {key}=VALUE?" if key else None
        message = f"{self.name} has no option {option} (it has {', '.join(sorted(options))})"
        return UserError("cli.unknown_option", message, option, hint)


app = typer.Typer(
    help="Federated learning that does not forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    init.init,
    run.run,
    compare.compare,
    reproduce.reproduce,
    tune.tune,
    report.report,
    predict.predict,
    doctor.doctor,
):
    app.command()(command)

app.add_typer(show.app, name="show")

app.add_typer(flower.app, name="flower")

for group in (app, show.app, flower.app):
    for registered in group.registered_commands:
        registered.cls = Command


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
