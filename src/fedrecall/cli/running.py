"""The commands that train: compare, reproduce, tune; and report, on what they leave."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli import completion
from fedrecall.cli.options import JsonOption, OutOption, SetOption
from fedrecall.errors import UserError


def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD",
            help="Names, with settings if need be: fedlmd fedlmd:tau=3,beta=2; without any, six methods.",
            autocompletion=completion.complete_methods,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Configuration; without one, skewed clients on digits.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Repetitions of every method; default: 5.")] = None,
    overrides: SetOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare methods side by side on the same federation.

    Each is run with several seeds; the others are compared with the first.
    """
    from fedrecall.cli import conduct

    conduct.compare_and_show(methods or [], config, overrides or [], seeds, out, as_json=as_json)


def reproduce(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A table or figure: fedlmd-table-1.", autocompletion=completion.complete_experiments
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show all IDs, and what each costs.")] = False,
    fraction: Annotated[float, typer.Option(metavar="F", help="Share of the rounds, e.g. 0.1.")] = 1.0,
    methods: Annotated[str | None, typer.Option(metavar="A,B", help="Some of its rows.")] = None,
    cells: Annotated[str | None, typer.Option(metavar="X,Y", help="Some of its columns.")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Repetitions; default: the paper's.")] = None,
    overrides: SetOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a paper's experiment, beside its printed numbers."""
    from fedrecall.cli import conduct

    if listed:
        conduct.list_experiments(as_json=as_json)
        return
    if which is None:
        hint = "name a table or figure; fedrecall reproduce --list prints all of them"
        raise UserError("cli.missing_argument", "reproduce requires the argument ID", "ID", hint)
    conduct.reproduce_and_show(
        which,
        fraction=fraction,
        rows=methods,
        columns=cells,
        seeds=seeds,
        overrides=overrides or [],
        out=out,
        as_json=as_json,
    )


def tune(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="Its name.", autocompletion=completion.complete_methods)
    ],
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Configuration; without one, skewed clients on digits.")
    ] = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Settings to try, with those tried before.")] = 20,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B|LOW..HIGH", help="Search this instead of the method's own grid; repeatable."),
    ] = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the search; one with trials goes on.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Search a method's settings, on data held out from clients.

    The best of them is written as a configuration.
    """
    from fedrecall.cli.tune_output import tune_and_show

    tune_and_show(method, config, trials=trials, over=over or [], overrides=overrides or [], out=out, as_json=as_json)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of studies, and run directories.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; default: report.html in DIR, or here for several.")
    ] = None,
) -> None:
    """Make an HTML page of studies and runs.

    Beside it, the tables as CSV, LaTeX and Markdown.
    """
    from fedrecall.reporting.html import write_report

    page, *tables = write_report(folders, out)
    typer.echo(f"report in {page}")
    if tables:
        typer.echo(f"its tables as CSV, LaTeX and Markdown in {tables[0].parent}")
