"""`fedrecall show`: what there is to choose from."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli.options import ConfigArgument, JsonOption, SetOption

app = typer.Typer(help="Show what there is to choose from, and who has which data.", no_args_is_help=True)


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """The methods, with their hyper-parameters."""
    from fedrecall.cli import console

    console.show_registry("method", as_json)


@app.command()
def models(as_json: JsonOption = False) -> None:
    """The models, with their settings."""
    from fedrecall.cli import console

    console.show_registry("model", as_json)


@app.command()
def partitions(as_json: JsonOption = False) -> None:
    """The laws that deal data out to clients, with their settings."""
    from fedrecall.cli import console

    console.show_registry("partition", as_json)


@app.command()
def rules(as_json: JsonOption = False) -> None:
    """Robust rules of aggregation (server.robust), with settings."""
    from fedrecall.cli import console

    console.show_registry("robust", as_json)


@app.command()
def attacks(as_json: JsonOption = False) -> None:
    """Simulated attacks (federation.attack), with their settings."""
    from fedrecall.cli import console

    console.show_registry("attack", as_json)


@app.command()
def datasets(as_json: JsonOption = False) -> None:
    """The named data sets."""
    from fedrecall.cli import console

    console.show_datasets(as_json)


@app.command()
def probes(as_json: JsonOption = False) -> None:
    """What else a run can look at (run.probes), and what it costs."""
    from fedrecall.cli import console

    console.show_probes(as_json)


@app.command()
def partition(
    config: ConfigArgument = None,
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture: PNG, SVG or PDF.")] = Path("partition.png"),
    as_json: JsonOption = False,
) -> None:
    """Who has which classes: a table, and a picture to a file."""
    from fedrecall.cli import console

    console.show_partition(config, overrides or [], out, as_json)
