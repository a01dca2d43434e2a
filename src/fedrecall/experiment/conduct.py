"""What `fedrecall compare` and `fedrecall reproduce` print."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fedrecall.errors import UserError
from fedrecall.experiment import papers
from fedrecall.experiment.board import Board
from fedrecall.experiment.compare import SEEDS, comparison_study
from fedrecall.experiment.cost import cost, hours
from fedrecall.experiment.reproduce import place, reproduction
from fedrecall.experiment.results import Results, load
from fedrecall.experiment.study import FILE, Study
from fedrecall.experiment.sweep import sweep
from fedrecall.experiment.tables import Table, comparison, paper_tables, show, write_tables


def compare_and_show(
    methods: Sequence[str], config: Path | None, overrides: Sequence[str], seeds: int | None, out: Path | None
) -> None:
    """Run methods side by side, print how they compare, and write down all of it."""
    study = comparison_study(methods, config, overrides, SEEDS if seeds is None else seeds)
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{study.id}"
    console = Console()
    _say(console, f"{study.title}: {_size(study)}, in {folder}")
    results = _run(study, folder, console, again=f"the same command with --out {folder} goes on")
    _show(results, [comparison(results, column) for column in results.study.columns], console)


def reproduce_and_show(
    which: str,
    *,
    fraction: float,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    seeds: int | None,
    overrides: Sequence[str],
    out: Path | None,
) -> None:
    """Run a paper's experiment, print its numbers beside the paper's, and write down all of it."""
    study = reproduction(which, fraction=fraction, rows=rows, columns=columns, seeds=seeds, overrides=overrides)
    folder, console = out or place(study), Console()
    _say(console, f"{study.title}: {_size(study)}, in {folder}")
    _say(console, f"{cost(study).passes / 1e6:,.1f} million sample passes, about {_hours(hours(study))} on this machine")
    results = _run(study, folder, console, again="the same command goes on")
    _show(results, paper_tables(results), console)


def list_experiments() -> None:
    """Every table and computed figure of the papers, and what it costs."""
    console = Console()
    grid = Grid(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("id", no_wrap=True)
    grid.add_column("what it is", overflow="fold")
    for title in ("runs", "M passes", "hours here"):
        grid.add_column(title, justify="right", no_wrap=True)
    with console.status("timing the networks"):
        for name in papers.ids():
            study = papers.definition(name)
            price = cost(study)
            grid.add_row(name, study.title, str(price.runs), f"{price.passes / 1e6:,.1f}", f"{hours(study):,.1f}")
    console.print(grid)
    _say(console, "A part: --methods, --cells, --seeds; fewer rounds: --fraction 0.1. Hours are estimates for all cores.")


def _run(study: Study, folder: Path, console: Console, *, again: str) -> Results:
    """Run what is left of a study; what cannot be run is said when the rest is done."""
    try:
        with Board(study, console) as board:
            refused = sweep(study, folder, board)
    except KeyboardInterrupt:
        kept = ""
        if (folder / FILE).exists():
            left = len(Results(study, folder).unfinished)
            kept = f": {len(study.cells()) - left} of {len(study.cells())} runs are finished; {again}"
        _say(console, f"interrupted{kept}")
        raise SystemExit(130) from None
    results = load(folder)
    if refused and not results.outcomes():
        raise UserError("; ".join(refused))
    return results


def _show(results: Results, tables: Sequence[Table], console: Console) -> None:
    from fedrecall.experiment.figures import draw_all

    for table in tables:
        console.print()
        show(table, console)
    console.print()
    write_tables(results)
    drawn = draw_all(results)
    folder = results.folder
    _say(console, f"tables in {folder / 'tables'}" + (f", figures in {folder / 'figures'}" if drawn.paths else ""))
    for name, reason in drawn.skipped.items():
        _say(console, f"figure {name} is not drawn: {reason}")
    _say(console, f"a page of all of it: fedrecall report {folder}")


def _size(study: Study) -> str:
    runs = len(study.cells())
    scaled = f", rounds scaled to {100 * study.fraction:g} %" if study.fraction < 1 else ""
    shape = f"{_count(study.rows, 'row')} x {_count(study.columns, 'column')} x {_count(study.seeds, 'seed')}"
    return f"{shape} = {runs} {'run' if runs == 1 else 'runs'}{scaled}"
