"""`fedrecall reproduce`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrecall.cli import completion
from fedrecall.cli.options import JsonOption, OutOption, SetOption
from fedrecall.errors import UserError

if TYPE_CHECKING:
    from fedrecall.studies.study import Study


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
    methods: Annotated[str | None, typer.Option(metavar="A,B", help="Rows to run, by name.")] = None,
    cells: Annotated[str | None, typer.Option(metavar="X,Y", help="Columns to run, by name.")] = None,
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
            documents.append(output.print_comparison(comparison, console, as_json))
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
