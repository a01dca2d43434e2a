"""`fedrecall compare`, `fedrecall reproduce` and `fedrecall report`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrecall.cli import completion
from fedrecall.cli.options import (
    AlphaOption,
    ClientsOption,
    DataOption,
    JsonOption,
    ModelOption,
    OutOption,
    RoundsOption,
    SampleOption,
    SeedOption,
    SetOption,
)
from fedrecall.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedrecall.reporting.comparison import Comparison
    from fedrecall.studies.study import Study


def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD",
            help="Names, with settings if desired: fedlmd fedlmd:tau=3,beta=2; or package.module:Class. "
            "Default: six methods.",
            autocompletion=completion.complete_methods,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG.toml",
            help="Configuration. Default: 40 clients with two digits each, four per round.",
        ),
    ] = None,
    data: DataOption = None,
    model: ModelOption = None,
    clients: ClientsOption = None,
    sample: SampleOption = None,
    alpha: AlphaOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Repetitions of every method. Default: 5.")] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Yardsticks: central, local, majority; none. Default: central,majority for your own data.",
        ),
    ] = None,
    overrides: SetOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on the same federation.

    Each method runs with several seeds; the first one is the reference of the others.
    """
    from fedrecall import api
    from fedrecall.cli import output
    from fedrecall.runs.directory import new_run_directory
    from fedrecall.studies.compare import DEFAULT_SEEDS, NO_BASELINES

    console = output.make_console(as_json)
    try:
        comparison = api.compare(
            methods or [],
            config=config,
            data=data,
            model=model,
            clients=clients,
            sample=sample,
            alpha=alpha,
            rounds=rounds,
            seed=seed,
            overrides=overrides or [],
            seeds=DEFAULT_SEEDS if seeds is None else seeds,
            baselines=None if baselines is None else [n for n in baselines.split(",") if n not in ("", NO_BASELINES)],
            out=out or (lambda study: new_run_directory(study.id)),
            progress=console,
            partial=True,
        )
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    document = _print_comparison(comparison, console, as_json)
    if as_json:
        output.print_json(document)


def reproduce(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Tables and figures: fedlmd-table-1; or a file with a definition or a plan.",
            autocompletion=completion.complete_experiments,
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all IDs and their cost.")] = False,
    fraction: Annotated[float, typer.Option(metavar="F", help="Fraction of the rounds, e.g. 0.1.")] = 1.0,
    methods: Annotated[str | None, typer.Option(metavar="A,B", help="Some of its rows.")] = None,
    cells: Annotated[str | None, typer.Option(metavar="X,Y", help="Some of its columns.")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Repetitions. Default: the paper's.")] = None,
    overrides: SetOption = None,
    out: OutOption = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Finished runs of all studies: equal runs are made once.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search the papers' grids on held-out client data first.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the papers' experiments, beside their printed numbers."""
    if listed:
        _list_experiments(as_json)
        return
    if not which:
        hint = "name a table or figure; fedrecall reproduce --list prints all of them"
        raise UserError("cli.missing_argument", "reproduce requires the argument ID", "ID", hint)
    from fedrecall import api
    from fedrecall.cli import output
    from fedrecall.studies.plan import read_plan

    console, planned = output.make_console(as_json), read_plan(which)
    documents, incomplete = list[Mapping[str, Any]](), None
    for entry in planned:
        try:
            comparison = api.reproduce(
                entry.id,
                fraction=entry.fraction if entry.fraction < 1 else fraction,
                methods=entry.methods or methods,
                cells=entry.cells or cells,
                seeds=entry.seeds or seeds,
                overrides=[*entry.overrides, *(overrides or [])],
                out=partial(_study_folder, out, tuned=tune) if out is None or len(planned) > 1 else out,
                store=store,
                tune=tune,
                progress=console,
                partial=True,
            )
            documents.append(_print_comparison(comparison, console, as_json))
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except output.Incomplete as error:  # the other studies of the plan are run nevertheless
            documents, incomplete = [*documents, error.document], incomplete or error
    if incomplete is not None:
        raise incomplete
    if as_json:
        output.print_json(documents[0] if len(planned) == 1 else {"studies": documents})


def _study_folder(out: Path | None, study: "Study", *, tuned: bool) -> Path:
    """Return the folder of a reproduction: in `out`, or by default in reproductions/."""
    from fedrecall.studies.reproduce import default_folder

    folder = default_folder(study)
    folder = folder.with_name(f"{folder.name}-tuned") if tuned else folder
    return folder if out is None else out / folder.name


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


def _print_comparison(comparison: "Comparison", console: "Console", as_json: bool) -> dict[str, Any]:
    """Print the tables, write them and the figures, and return the tables; raise an error with them if runs lack."""
    from fedrecall.cli import output
    from fedrecall.reporting.figures import draw_all
    from fedrecall.reporting.tables import print_table, to_dict, write_tables

    results, folder, tables = comparison.study_results, comparison.folder, comparison.tables()
    if comparison.runs:
        brief = results.study.paper is None  # the complete table is in the files
        for table in () if as_json else comparison.tables(brief=brief):
            console.print()
            print_table(table, console)
        console.print()
        write_tables(results)
        drawn = draw_all(results)
        figures = f", figures in {folder / 'figures'}" if drawn.figures else ""
        output.print_line(console, f"tables in {folder / 'tables'}{figures}")
        for name, reason in drawn.skipped.items():
            output.print_line(console, f"figure {name} is not drawn: {reason}")
        output.print_line(console, f"HTML page of the study: fedrecall report {folder}")
    document = {
        "folder": folder,
        "study": results.study.id,
        "tables": {table.name: to_dict(table) for table in tables},
    }
    if comparison.rejected:
        reasons = dict.fromkeys(map(str, comparison.rejected.values()))
        text = f"{len(comparison.rejected)} of {len(results.study.cells())} runs cannot be made: {'; '.join(reasons)}"
        raise output.Incomplete("study.runs_failed", text, str(folder), document=document)
    return document


def _list_experiments(as_json: bool) -> None:
    """Print every table and figure of the papers, and its cost."""
    from rich.console import Console
    from rich.table import Table

    from fedrecall.cli import output
    from fedrecall.studies import papers
    from fedrecall.studies.cost import cost, estimated_hours, format_estimate
    from fedrecall.studies.definitions import experiment_ids

    studies = [papers.load_definition(name) for name in experiment_ids()]
    rows = [(study, cost(study), estimated_hours(study)) for study in studies]
    if as_json:
        output.print_json({s.id: {"title": s.title, **c._asdict(), "hours": hours} for s, c, hours in rows})
        return
    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True)
    table.add_column("title", overflow="fold")
    for title in ("runs", "M passes", "hours"):
        table.add_column(title, justify="right", no_wrap=True)
    for study, total, hours in rows:
        passes = format_estimate(total.passes / 1e6)
        table.add_row(study.id, study.title, str(total.runs), passes, format_estimate(hours))
    console.print(table)
    output.print_line(console, "Hours are estimates for this machine. Options that run a part: reproduce --help")
