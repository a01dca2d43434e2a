"""The command line. It translates arguments; each command imports what it needs when it runs, so that help is quick."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedrecall import __version__
from fedrecall.errors import UserError

app = typer.Typer(
    help="Federated learning that does not forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
show = typer.Typer(
    help="Show what there is to choose from, or how a configuration deals out its data.", no_args_is_help=True
)
app.add_typer(show, name="show")
flower = typer.Typer(help="Real federations: make a Flower app, its keys, or try it all here.", no_args_is_help=True)
app.add_typer(flower, name="flower")

Config = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Configuration; without one, the quickstart on digits.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. method.mu=0.1; repeatable.")
]
StudyFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the runs; one that has some of them goes on.")
]


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


@app.command()
def run(
    config: Config = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run directory; default: a new one in runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run interrupted in DIR.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With --resume: even if its result would be another.")] = False,
) -> None:
    """Train a federation and keep what came of it in a run directory."""
    from fedrecall.experiment import console

    console.run_and_show(config, overrides or [], out, resume=resume, force=force)


@app.command()
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD", help="Names, with settings if need be: fedlmd fedlmd:tau=3,beta=2."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Configuration; without one, skewed clients on digits.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Repetitions of every method; default: 5.")] = None,
    overrides: Overrides = None,
    out: StudyFolder = None,
) -> None:
    """Run methods side by side on the same federation, and compare them with the first."""
    from fedrecall.experiment import conduct

    conduct.compare_and_show(methods or [], config, overrides or [], seeds, out)


@app.command()
def reproduce(
    which: Annotated[str | None, typer.Argument(metavar="ID", help="A table or figure, e.g. fedlmd-table-1.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show all IDs, and what each costs.")] = False,
    fraction: Annotated[float, typer.Option(metavar="F", help="Share of the rounds, e.g. 0.1.")] = 1.0,
    methods: Annotated[str | None, typer.Option(metavar="A,B", help="Some of its rows.")] = None,
    cells: Annotated[str | None, typer.Option(metavar="X,Y", help="Some of its columns.")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Repetitions; default: the paper's.")] = None,
    overrides: Overrides = None,
    out: StudyFolder = None,
) -> None:
    """Run a paper's experiment, and show its numbers beside the printed ones."""
    from fedrecall.experiment import conduct

    if listed:
        conduct.list_experiments()
        return
    if which is None:
        raise UserError("which table or figure? fedrecall reproduce --list shows all")
    conduct.reproduce_and_show(
        which,
        fraction=fraction,
        rows=methods,
        columns=cells,
        seeds=seeds,
        overrides=overrides or [],
        out=out,
    )


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of studies, and run directories.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; default: report.html in DIR, or here for several.")
    ] = None,
) -> None:
    """Make an HTML page of what studies and runs gave, and CSV and LaTeX of its tables."""
    from fedrecall.experiment.report import write_report

    page, *tables = write_report(folders, out)
    typer.echo(f"report in {page}")
    if tables:
        typer.echo(f"its tables as CSV, LaTeX and Markdown in {tables[0].parent}")


@flower.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the app; it must be empty or new.")],
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Configuration; without one, the quickstart on digits.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Write a Flower app that runs a configuration, and a page on how to start it."""
    from fedrecall.experiment.flower.new import new as write_app

    write_app(folder, config, overrides or [])
    typer.echo(f"Flower app in {folder}; how to run it is in {folder / 'README.md'}")


@flower.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the keys; what is there stays as it is.")],
    host: Annotated[
        list[str], typer.Option(metavar="NAME", help="Name or address by which nodes reach the server; repeatable.")
    ],
    nodes: Annotated[int, typer.Option(metavar="N", help="Key pairs for so many nodes.")] = 0,
) -> None:
    """Make an authority, the server's certificate and the nodes' keys, as far as they are missing."""
    from fedrecall.experiment.flower.certs import make_certificates

    for path in make_certificates(folder, host, nodes):
        typer.echo(path)


@flower.command()
def demo(
    config: Config = None,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run directory.")] = Path("runs/flower-demo"),
) -> None:
    """Run a configuration as a real federation on this machine: a process for every client, TLS, known nodes."""
    from fedrecall.experiment.flower.demo import demo as federate

    federate(config, overrides or [], out, typer.echo)


@show.command()
def methods() -> None:
    """The methods, with their hyper-parameters."""
    from fedrecall.experiment import console

    console.show_choices("method")


@show.command()
def models() -> None:
    """The models, with their settings."""
    from fedrecall.experiment import console

    console.show_choices("model")


@show.command()
def partitions() -> None:
    """The laws that deal data out to clients, with their settings."""
    from fedrecall.experiment import console

    console.show_choices("partition")


@show.command()
def datasets() -> None:
    """The named data sets."""
    from fedrecall.experiment import console

    console.show_datasets()


@show.command()
def probes() -> None:
    """What else a run can look at (run.probes), and what it costs."""
    from fedrecall.experiment import console

    console.show_probes()


@show.command()
def partition(
    config: Config = None,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture: PNG, SVG or PDF.")] = Path("partition.png"),
) -> None:
    """Who has which classes: a table, and a picture to a file."""
    from fedrecall.experiment import console

    console.show_partition(config, overrides or [], out)


def main() -> None:
    """Run the command line; what the user can fix is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
