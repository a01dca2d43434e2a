"""`fedrecall flower`: real federations."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli.options import ConfigArgument, ConfigOption, SetOption

app = typer.Typer(help="Make a real federation with Flower, or try one here.", no_args_is_help=True)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the app; it must be empty or new.")],
    config: ConfigOption = None,
    overrides: SetOption = None,
) -> None:
    """Write a Flower app of a configuration, and how to start it."""
    from fedrecall.flower.app_template import write_app as write_app

    write_app(folder, config, overrides or [])
    typer.echo(f"Flower app in {folder}; how to run it is in {folder / 'README.md'}")


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the keys; what is there stays as it is.")],
    host: Annotated[
        list[str], typer.Option(metavar="NAME", help="Name or address by which nodes reach the server; repeatable.")
    ],
    nodes: Annotated[int, typer.Option(metavar="N", help="Key pairs for so many nodes.")] = 0,
) -> None:
    """Make the certificates and keys that are missing.

    An authority, the server's certificate and the nodes' keys.
    """
    from fedrecall.flower.certificates import make_certificates

    for path in make_certificates(folder, host, nodes):
        typer.echo(path)


@app.command()
def demo(
    config: ConfigArgument = None,
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run directory.")] = Path("runs/flower-demo"),
) -> None:
    """Run a configuration as a real federation on this machine.

    There is a process for every client, TLS, and only nodes that are known.
    """
    from fedrecall.flower.demo import run_demo as federate

    federate(config, overrides or [], out, typer.echo)
