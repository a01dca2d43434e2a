"""`fedrecall flower`."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli.options import ConfigArgument, ConfigOption, SetOption

app = typer.Typer(help="Create a real federation with Flower, or try one here.", no_args_is_help=True)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the app; it must be empty or new.")],
    config: ConfigOption = None,
    overrides: SetOption = None,
) -> None:
    """Write a Flower app of a configuration, with instructions."""
    from fedrecall.flower.app_template import write_app

    write_app(folder, config, overrides or [])
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

    Every client is a process; connections use TLS, and nodes are authenticated.
    """
    from fedrecall.flower.demo import run_demo

    with closing(run_demo(config, overrides or [], out)) as lines:
        for line in lines:
            typer.echo(line)
