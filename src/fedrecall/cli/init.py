"""`fedrecall init`."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli import completion


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration to write; it must not exist.")] = Path(
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
        str | None, typer.Option(metavar="COLUMN", help="The table's client column. For <client>/<class>/<image>: yes.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(metavar="N", help="Resize the folder's images to N x N, if their sizes differ.")
    ] = None,
) -> None:
    """Write a configuration that explains every key, ready to run."""
    from fedrecall.config.template import write_template

    write_template(file, data=data, method=method, label=label, client=client, size=size)
    typer.echo(f"configuration in {file}; edit it, then:")
    typer.echo(f"  fedrecall show partition {file}   # the classes of every client")
    typer.echo(f"  fedrecall run {file}")
