"""What the shell may complete. It must be quick: names are read from the source, and torch stays where it is."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO

from fedrecall.config import schema
from fedrecall.errors import explanations
from fedrecall.studies.definitions import experiment_ids

Completions = list[tuple[str, str]]  # what can be typed, and what it means


def complete_methods(incomplete: str) -> Completions:
    """Names of methods."""
    members = schema.choice_members(schema.choice_schema("method"))
    return [(name, schema.summary(member)) for name, member in members.items() if name.startswith(incomplete)]


def complete_datasets(incomplete: str) -> Completions:
    """Names of data sets; a path is completed by the shell where no name fits."""
    names = [str(name) for name in schema.key_infos()["data.name"].values if name not in ("folder", "table", "own")]
    return [(name, "data set") for name in names if name.startswith(incomplete)]


def complete_experiments(incomplete: str) -> list[str]:
    """What can be reproduced."""
    return [name for name in experiment_ids() if name.startswith(incomplete)]


def codes(incomplete: str) -> Completions:
    """Error codes."""
    return [(code, text) for code, text in explanations().items() if code.startswith(incomplete)]


def complete_settings(incomplete: str) -> Completions:
    """Keys of a configuration; and their values, as soon as only one key is meant that has a list of them."""
    typed, equals, _ = incomplete.partition("=")
    infos = schema.key_infos()
    found = {key: info for key, info in infos.items() if (key == typed if equals else key.startswith(typed))}
    if len(found) > 1:
        return [(f"{key}=", info.description) for key, info in found.items()]
    settings = [f"{key}={_toml(value)}" for key, info in found.items() for value in info.values or ("",)]
    return [(setting, "") for setting in settings if setting.startswith(incomplete)]


@contextmanager
def whole_words() -> Iterator[None]:
    """Bash breaks words at "=", and wants the last piece completed: "method.name=fed" is one word inside."""
    if os.environ.get("_FEDRECALL_COMPLETE") != "complete_bash" or "=" not in os.environ["COMP_WORDS"].split("\n"):
        yield
        return
    words, at = join_words(os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"]))
    os.environ |= {"COMP_WORDS": shlex.join(words), "COMP_CWORD": str(at)}
    key, said = "".join(words[at].rpartition("=")[:2]), StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:  # the program exits when it has answered
        print(*(line.removeprefix(key) for line in said.getvalue().splitlines()), sep="\n")  # noqa: T201


def join_words(pieces: list[str], at: int) -> tuple[list[str], int]:
    """Words that were broken at "=", and which of them piece number `at` is in.

    >>> join_words(["run", "--set", "method.name", "=", "fed"], 4)
    (['run', '--set', 'method.name=fed'], 2)
    """
    words, where = list[str](), list[int]()
    for i, piece in enumerate(pieces):
        if words and "=" in (piece, pieces[i - 1]):
            words[-1] += piece
        else:
            words.append(piece)
        where.append(len(words) - 1)
    return words, where[at]


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
