"""The commands to begin with: init, doctor."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedrecall.cli import completion
from fedrecall.cli.options import JsonOption
from fedrecall.errors import explanations, unknown_name


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration; it must not exist.")] = Path(
        "experiment.toml"
    ),
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|FOLDER|TABLE",
            help="A named data set, a folder of images, or a .csv or .parquet file.",
            autocompletion=completion.complete_datasets,
        ),
    ] = "digits",
    method: Annotated[
        str, typer.Option(metavar="NAME", help="The method.", autocompletion=completion.complete_methods)
    ] = "fedavg",
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The table's label column.")] = None,
    client: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Its client column; of a folder: yes, if it has clients.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(metavar="N", help="Resize the folder's images to N x N, if their sizes differ.")
    ] = None,
) -> None:
    """Write a configuration with every key explained, ready to run."""
    from fedrecall.config.template import write_template

    write_template(file, data=data, method=method, label=label, client=client, size=size)
    typer.echo(f"configuration in {file}; read it, change it, then:")
    typer.echo(f"  fedrecall show partition {file}   # who has which classes")
    typer.echo(f"  fedrecall run {file}")


def doctor(
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="CODE", help="Explain an error code instead, e.g. config.conflict.", autocompletion=completion.codes
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is installed, what works, and what is missing.

    Packages, engines, workers, devices, memory, disk and data sets, each with how to get it.
    """
    if explain is not None:
        from fedrecall.cli import output

        known = explanations()
        if explain not in known:
            area = explain.partition(".")[0]
            near = [code for code in known if code.startswith(f"{area}.")] or known
            raise unknown_name("error code", explain, near, "cli.unknown_error_code", "--explain")
        if as_json:
            output.print_json({"code": explain, "explanation": known[explain]})
        else:
            output.make_console().print(Text(f"{explain}: {known[explain]}"))
        return
    from fedrecall.cli.diagnosis import examine_and_show

    if not examine_and_show(as_json):
        raise typer.Exit(1)
