"""Output of the commands: text for people, and with --json one document on standard output."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrecall.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedrecall.reporting.comparison import Comparison


class Incomplete(UserError):
    """A command that failed after it had produced results: with --json, `document` is printed beside the error."""

    def __init__(
        self,
        code: str,
        message: str,
        key: str | None = None,
        hint: str | None = None,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, message, key, hint)
        self.document = document or {}


def make_console(as_json: bool = False) -> "Console":
    """Return the console for text: standard output, or standard error if --json occupies the former."""
    from rich.console import Console

    return Console(stderr=as_json)


def print_line(console: "Console", text: str) -> None:
    """Print text without markup, and without line breaks of its own: a path in two lines cannot be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def new_table(*columns: str) -> "Table":
    """Return an empty table in the style of all commands."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_json(value: Any) -> None:
    """Print a value as JSON, independent of the width of the terminal."""
    print(json.dumps(to_json_types(value), indent=2, allow_nan=False))  # noqa: T201  (read by programs: no console)


def print_error(error: UserError) -> None:
    """Print an error as JSON, beside the results that the command had produced before."""
    document = error.document if isinstance(error, Incomplete) else {}
    fields = {"code": error.code, "message": error.message, "key": error.key, "hint": error.hint}
    print_json({**document, "error": fields})


def to_json_types(value: Any) -> Any:
    """Convert a value to JSON's types: a number that is not finite becomes null, a path text."""
    if isinstance(value, Mapping):
        return {str(key): to_json_types(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json_types(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def print_comparison(comparison: "Comparison", console: "Console", as_json: bool) -> dict[str, Any]:
    """Print the tables, write them and the figures, and return them; raise an error with them if runs are missing."""
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
        print_line(console, f"tables in {folder / 'tables'}{figures}")
        for name, reason in drawn.skipped.items():
            print_line(console, f"figure {name} is not drawn: {reason}")
        print_line(console, f"HTML page of the study: fedrecall report {folder}")
    document = {
        "folder": folder,
        "study": results.study.id,
        "tables": {table.name: to_dict(table) for table in tables},
    }
    if comparison.rejected:
        reasons = dict.fromkeys(map(str, comparison.rejected.values()))
        text = f"{len(comparison.rejected)} of {len(results.study.cells())} runs cannot be made: {'; '.join(reasons)}"
        raise Incomplete("study.runs_failed", text, str(folder), document=document)
    return document
