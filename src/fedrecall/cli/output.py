"""What a script reads: one JSON document on standard output, and nothing else there."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrecall.errors import UserError


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


def print_json(value: Any) -> None:
    """Write a value as JSON, whatever the width of the terminal."""
    print(json.dumps(to_json_types(value), indent=2, allow_nan=False))  # noqa: T201  (it is for programs, not for people)


def print_error(error: UserError) -> None:
    """Write an error as JSON, with the results that the command had produced before."""
    found = error.document if isinstance(error, Incomplete) else {}
    what = {"code": error.code, "message": error.message, "key": error.key, "hint": error.hint}
    print_json({**found, "error": what})


def to_json_types(value: Any) -> Any:
    """The same in JSON's own types: what is no finite number is null, a path is text."""
    if isinstance(value, Mapping):
        return {str(key): to_json_types(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json_types(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def make_console(as_json: bool = False) -> Console:
    """Where people read: beside the JSON, on standard error."""
    return Console(stderr=as_json)
