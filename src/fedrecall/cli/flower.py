"""`fedrecall flower`."""

import json
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli.options import ConfigArgument, ConfigOption, SetOption


class StatusForm(StrEnum):
    """Form of the output of `fedrecall flower status`."""

    TEXT = "text"
    JSON = "json"
    PROMETHEUS = "prometheus"


app = typer.Typer(help="Create a real federation with Flower, or try one here.", no_args_is_help=True)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the app; it must be empty or new.")],
    config: ConfigOption = None,
    overrides: SetOption = None,
    module: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Python file or package of your own that the app brings along; repeatable."),
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="KIND", help="Write files to run the daemons: systemd, compose or nginx; repeatable."
        ),
    ] = None,
) -> None:
    """Write a Flower app of a configuration, with instructions."""
    from fedrecall.flower.app_template import write_app

    write_app(folder, config, overrides or [], module or [], operation or [])
    typer.echo(f"Flower app in {folder}; instructions in {folder / 'README.md'}")


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the keys; existing files are kept.")],
    host: Annotated[
        list[str], typer.Option(metavar="NAME", help="Name or address by which nodes reach the server; repeatable.")
    ],
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of nodes that receive a key pair.")] = 0,
) -> None:
    """Create the certificates and keys that are missing.

    A certificate authority, the server's certificate and the nodes' keys.
    """
    from fedrecall.flower.certificates import check_certificates, make_certificates

    for path in make_certificates(folder, host, nodes):
        typer.echo(path)
    for warning in check_certificates(folder, host):
        typer.echo(f"warning: {warning}", err=True)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the certificates.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or address by which nodes reach the server; repeatable."),
    ] = None,
) -> None:
    """Check certificates: warn of those that expire within 30 days, fail for an expired one or another host."""
    from fedrecall.flower.certificates import check_certificates

    for warning in check_certificates(folder, host or []):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{folder}: the certificates are valid")


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory, on the machine of the SuperLink.")],
    form: Annotated[
        StatusForm, typer.Option("--format", help="Lines to read, JSON, or Prometheus' text format.")
    ] = StatusForm.TEXT,
    serve: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve the metrics at http://127.0.0.1:PORT/metrics.")
    ] = None,
) -> None:
    """Print the state of a federation: rounds, nodes, missing clients, the last error."""
    from fedrecall.flower.status import metrics_server, read_status

    if serve is not None:
        with metrics_server(directory, "127.0.0.1", serve) as server:
            typer.echo(f"metrics of {directory} at http://127.0.0.1:{server.server_port}/metrics, until Ctrl-C")
            server.serve_forever()
    found = read_status(directory)
    if form is StatusForm.PROMETHEUS:
        typer.echo(found.prometheus(), nl=False)
    elif form is StatusForm.JSON:
        typer.echo(json.dumps(found.content))
    else:
        for line in found.lines():
            typer.echo(line)


@app.command()
def demo(
    config: ConfigArgument = None,
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run directory.")] = Path("runs/flower-demo"),
) -> None:
    """Run a configuration as a real federation on this machine.

    Every client is a process; connections use TLS, and nodes are authenticated.
    """
    from fedrecall.flower.demo import run_demo

    with closing(run_demo(config, overrides or [], out)) as lines:
        for line in lines:
            typer.echo(line)
