"""Completion of arguments in the shell. A person waits for it, so nothing here imports torch."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO

from fedrecall.config import schema
from fedrecall.errors import explanations
from fedrecall.studies.definitions import experiment_ids

Completions = list[tuple[str, str]]  # a completion and its description


def complete_methods(incomplete: str) -> Completions:
    """Complete the name of a method."""
    members = schema.choice_members(schema.choice_schema("method"))
    return [(name, schema.first_paragraph(member)) for name, member in members.items() if name.startswith(incomplete)]


def complete_models(incomplete: str) -> Completions:
    """Complete the name of a model."""
    members = schema.choice_members(schema.choice_schema("model"))
    return [(name, schema.first_paragraph(member)) for name, member in members.items() if name.startswith(incomplete)]


def complete_datasets(incomplete: str) -> Completions:
    """Complete the name of a data set. If none matches, the shell completes a path."""
    names = [str(name) for name in schema.key_infos()["data.name"].values if name not in ("folder", "table", "own")]
    return [(name, "data set") for name in names if name.startswith(incomplete)]


def complete_experiments(incomplete: str) -> list[str]:
    """Complete the ID of a paper's experiment."""
    return [name for name in experiment_ids() if name.startswith(incomplete)]


def complete_error_codes(incomplete: str) -> Completions:
    """Complete an error code."""
    return [(code, text) for code, text in explanations().items() if code.startswith(incomplete)]


def complete_settings(incomplete: str) -> Completions:
    """Complete a configuration key, and the value of the only key that matches."""
    typed, equals, _ = incomplete.partition("=")
    infos = schema.key_infos()
    found = {key: info for key, info in infos.items() if (key == typed if equals else key.startswith(typed))}
    if len(found) > 1:
        return [(f"{key}=", info.description) for key, info in found.items()]
    settings = [f"{key}={_toml(value)}" for key, info in found.items() for value in info.values or ("",)]
    return [(setting, "") for setting in settings if setting.startswith(incomplete)]


@contextmanager
def joined_bash_words() -> Iterator[None]:
    """Complete words that contain "=" in bash, which splits them there and expects the last piece only.

    A completion class cannot do this: typer keeps its own private, and registers them again for every command.
    """
    if os.environ.get("_FEDRECALL_COMPLETE") != "complete_bash" or "=" not in os.environ["COMP_WORDS"].split("\n"):
        yield
        return
    words, position = join_words(os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"]))
    os.environ |= {"COMP_WORDS": shlex.join(words), "COMP_CWORD": str(position)}
    prefix, completions = "".join(words[position].rpartition("=")[:2]), StringIO()
    try:
        with redirect_stdout(completions):
            yield
    finally:  # typer exits after it has printed the completions
        print(*(line.removeprefix(prefix) for line in completions.getvalue().splitlines()), sep="\n")  # noqa: T201


def join_words(pieces: list[str], index: int) -> tuple[list[str], int]:
    """Join words that were split at "="; return them and the position of the word that contains piece `index`.

    >>> join_words(["run", "--set", "method.name", "=", "fed"], 4)
    (['run', '--set', 'method.name=fed'], 2)
    """
    words, positions = list[str](), list[int]()
    for i, piece in enumerate(pieces):
        if words and "=" in (piece, pieces[i - 1]):
            words[-1] += piece
        else:
            words.append(piece)
        positions.append(len(words) - 1)
    return words, positions[index]


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
