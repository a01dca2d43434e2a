"""`fedrecall show`: what there is to choose from."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli.options import Config, Json, Overrides

app = typer.Typer(help="Show what there is to choose from, and who has which data.", no_args_is_help=True)


@app.command()
def methods(as_json: Json = False) -> None:
    """The methods, with their hyper-parameters."""
    from fedrecall.cli import console

    console.show_choices("method", as_json)


@app.command()
def models(as_json: Json = False) -> None:
    """The models, with their settings."""
    from fedrecall.cli import console

    console.show_choices("model", as_json)


@app.command()
def partitions(as_json: Json = False) -> None:
    """The laws that deal data out to clients, with their settings."""
    from fedrecall.cli import console

    console.show_choices("partition", as_json)


@app.command()
def rules(as_json: Json = False) -> None:
    """Robust rules of aggregation (server.robust), with settings."""
    from fedrecall.cli import console

    console.show_choices("robust", as_json)


@app.command()
def attacks(as_json: Json = False) -> None:
    """Simulated attacks (federation.attack), with their settings."""
    from fedrecall.cli import console

    console.show_choices("attack", as_json)


@app.command()
def datasets(as_json: Json = False) -> None:
    """The named data sets."""
    from fedrecall.cli import console

    console.show_datasets(as_json)


@app.command()
def probes(as_json: Json = False) -> None:
    """What else a run can look at (run.probes), and what it costs."""
    from fedrecall.cli import console

    console.show_probes(as_json)


@app.command()
def partition(
    config: Config = None,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture: PNG, SVG or PDF.")] = Path("partition.png"),
    as_json: Json = False,
) -> None:
    """Who has which classes: a table, and a picture to a file."""
    from fedrecall.cli import console

    console.show_partition(config, overrides or [], out, as_json)
