"""What `fedrecall compare` and `fedrecall reproduce` print."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fedrecall.cli import output
from fedrecall.reporting.tables import ReportTable, comparison_table, paper_tables, print_table, to_dict, write_tables
from fedrecall.runs.directory import new_run_path
from fedrecall.studies import papers
from fedrecall.studies.compare import DEFAULT_SEEDS, comparison_study
from fedrecall.studies.cost import cost, estimated_hours
from fedrecall.studies.progress import StudyProgress
from fedrecall.studies.reproduce import default_folder, reproduction_study
from fedrecall.studies.results import StudyResults, load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.study import Cell, Study, scaled


def compare_and_show(
    methods: Sequence[str],
    config: Path | None,
    overrides: Sequence[str],
    seeds: int | None,
    out: Path | None,
    *,
    as_json: bool = False,
) -> None:
    """Run methods side by side, print how they compare, and write down all of it."""
    study = comparison_study(methods, config, overrides, DEFAULT_SEEDS if seeds is None else seeds)
    folder = out or new_run_path(study.id)
    console = output.make_console(as_json)
    _say(console, f"{study.title}: {_describe_size(study)}, in {folder}")
    refused = _run(study, folder, console, again=f"the same command with --out {folder} goes on")
    results = load_results(folder)
    tables = [comparison_table(results, column) for column in results.study.columns]
    _show(results, tables, console, as_json)
    _finish(results, tables, refused, study, as_json)


def reproduce_and_show(
    which: str,
    *,
    fraction: float,
    rows: str | None,
    columns: str | None,
    seeds: int | None,
    overrides: Sequence[str],
    out: Path | None,
    as_json: bool = False,
) -> None:
    """Run a paper's experiment, print its numbers beside the paper's, and write down all of it."""
    study = reproduction_study(which, fraction=fraction, rows=rows, columns=columns, seeds=seeds, overrides=overrides)
    folder, console = out or default_folder(study), output.make_console(as_json)
    _say(console, f"{study.title}: {_describe_size(study)}, in {folder}")
    if StudyResults(study, folder).unfinished:  # timing the networks takes a while
        passes, time = _million(cost(study).passes), estimated_hours(study)
        needed = f"{max(1, round(60 * time))} min" if time < 1 else f"{_format_estimate(time)} h"
        _say(console, f"{passes} million sample passes, about {needed} on this machine for all of it")
    refused = _run(study, folder, console, again="the same command goes on")
    results = load_results(folder)
    tables = paper_tables(results)
    _show(results, tables, console, as_json)
    _finish(results, tables, refused, study, as_json)


def list_experiments(as_json: bool = False) -> None:
    """Every table and computed figure of the papers, and what it costs."""
    studies = [papers.load_definition(name) for name in papers.experiment_ids()]
    found = [(study, cost(study), estimated_hours(study)) for study in studies]
    if as_json:
        output.print_json({s.id: {"title": s.title, **price._asdict(), "hours": h} for s, price, h in found})
        return
    console = Console()
    grid = Grid(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("id", no_wrap=True)
    grid.add_column("what it is", overflow="fold")
    for title in ("runs", "M passes", "hours"):
        grid.add_column(title, justify="right", no_wrap=True)
    for study, price, time in found:
        grid.add_row(study.id, study.title, str(price.runs), _million(price.passes), _format_estimate(time))
    console.print(grid)
    _say(console, "Hours are estimates for this machine; --help says how to run a part.")


def _run(study: Study, folder: Path, console: Console, *, again: str) -> dict[str, list[Cell]]:
    """Run what is left of a study; returns what cannot be run, by the reason."""
    try:
        with StudyProgress(study, console) as board:
            return run_study(study, folder, board)
    except KeyboardInterrupt:
        runs, left = len(study.cells()), len(StudyResults(study, folder).unfinished)
        _say(console, f"interrupted: {runs - left} of {runs} runs are finished; {again}")
        raise SystemExit(130) from None


def _show(results: StudyResults, tables: Sequence[ReportTable], console: Console, as_json: bool) -> None:
    if not results.finished_runs():
        return
    from fedrecall.reporting.figures import draw_all

    for table in () if as_json else tables:
        console.print()
        print_table(table, console)
    console.print()
    write_tables(results)
    drawn, folder = draw_all(results), results.folder
    _say(console, f"tables in {folder / 'tables'}" + (f", figures in {folder / 'figures'}" if drawn.figures else ""))
    for name, reason in drawn.skipped.items():
        _say(console, f"figure {name} is not drawn: {reason}")
    _say(console, f"a page of all of it: fedrecall report {folder}")


def _finish(
    results: StudyResults, tables: Sequence[ReportTable], refused: dict[str, list[Cell]], study: Study, as_json: bool
) -> None:
    """Print the tables as JSON; raise an error, which carries them, if some runs cannot be made."""
    written = {table.name: to_dict(table) for table in tables}
    document = {"folder": results.folder, "study": results.study.id, "tables": written}
    if refused:
        count, runs = sum(map(len, refused.values())), len(study.cells())
        text = f"{count} of {runs} runs cannot be made: {'; '.join(refused)}"
        raise output.Incomplete("study.runs_failed", text, str(results.folder), document=document)
    if as_json:
        output.print_json(document)


def _describe_size(study: Study) -> str:
    parts = {"row": len(study.rows), "column": len(study.columns), "seed": len(study.seeds)}
    shape = ", ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in parts.items())
    runs = len(study.cells())
    return f"{runs} run{'s' * (runs > 1)} ({'; '.join([shape, *scaled(study)])})"


def _million(passes: float) -> str:
    return _format_estimate(passes / 1e6)


def _format_estimate(number: float) -> str:
    """As many digits as an estimate deserves."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}" if number >= 0.1 else "< 0.1"


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
