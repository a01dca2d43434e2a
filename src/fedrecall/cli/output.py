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
