"""`fedrecall report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of studies, and run directories.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page. Default: report.html in DIR, or here for several folders."),
    ] = None,
) -> None:
    """Write an HTML page of studies and runs.

    Its tables are written beside it as CSV, LaTeX and Markdown.
    """
    from fedrecall import api

    page, *tables = api.report(folders, out)
    typer.echo(f"report in {page}")
    if tables:
        typer.echo(f"its tables as CSV, LaTeX and Markdown in {tables[0].parent}")
