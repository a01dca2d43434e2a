"""Errors that the user can fix: one class with a stable code, one line of text, no traceback."""

import errno
import logging
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Self

MEMORY_ERRORS = ("can't allocate memory", "cannot allocate memory", "failed to map segment", "can't start new thread")

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # disk full, quota or file size limit exceeded

MAX_PROBLEMS = 20  # problems of one file or folder in an error; more are counted


class UserError(Exception):
    """Invalid input or environment. The command line prints one line and exits with code 2.

    `code` is a stable dotted name such as `config.unknown_key`; `fedrecall doctor --explain CODE` describes it. `key`
    is the configuration key or path concerned. `message` states what is wrong, `hint` what to do.

    >>> import fedrecall as fr
    >>> try:
    ...     fr.run(method="fedlmt")
    ... except fr.UserError as error:
    ...     print(error.code, error.key, error.hint, sep="; ")
    config.unknown_name; method.name; did you mean "fedlmd"?
    """

    def __init__(self, code: str, message: str, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(code, message, key, hint)
        self.code, self.message, self.key, self.hint = code, message, key, hint

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class SeveralProblems(UserError):
    """Several errors of one file or folder, listed in one line."""

    found: tuple[UserError, ...] = ()


class Problems:
    """Collects the errors of a file or folder; on exit they are raised, several as one error that lists them."""

    def __init__(self, where: str) -> None:
        self._where, self.found = where, list[UserError]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not self.found:
            return
        if len(self.found) == 1:
            raise self.found[0]
        by_hint = dict[str | None, list[str]]()  # what to do is stated once for all problems that have it in common
        for error in self.found:
            text = error.message.removeprefix(f"{self._where}: ").removeprefix(f"{self._where}/")
            by_hint.setdefault(error.hint, []).append(text)
        each = max(1, MAX_PROBLEMS // len(by_hint))
        texts = [_list_some(texts, each) + (f": {hint}" if hint else "") for hint, texts in by_hint.items()]
        message = f"{self._where}: {len(self.found)} problems: {_list_some(texts, MAX_PROBLEMS)}"
        several = SeveralProblems("data.several_problems", message, self._where)
        several.found = tuple(self.found)
        raise several

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep an error of the block for the end."""
        try:
            yield
        except SeveralProblems as error:
            self.found += error.found
        except UserError as error:
            self.found.append(error)


def _list_some(texts: list[str], most: int) -> str:
    more = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def unknown_name(
    what: str, name: object, valid: Iterable[str], code: str = "config.unknown_name", key: str | None = None
) -> UserError:
    """Return the error for a name that is not one of the valid names, with the nearest valid one as its hint.

    >>> print(unknown_name("method", "fedavgg", ["fedavg", "fedprox"]))
    unknown method "fedavgg" (valid: fedavg, fedprox): did you mean "fedavg"?
    """
    names = sorted(valid)
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else None
    return UserError(code, f'unknown {what} "{name}" (valid: {", ".join(names)})', key or what, hint)


def missing_extra(package: str, extra: str) -> UserError:
    """Return the error for an optional package that is not installed.

    The hint installs from a checkout, because the package is not on PyPI.
    """
    hint = f'run pip install ".[{extra}]" in the folder of the repository'
    return UserError("install.missing_extra", f"{package} is not installed", package, hint)


@cache
def warn_once(log: logging.Logger, message: str) -> None:
    """Log a warning, the first time in this process."""
    log.warning(message)


def limit_reached(error: Exception) -> UserError | None:
    """Return the error for a limit of the system (open files, memory, file size, processes); None for any other."""
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in MEMORY_ERRORS):
        what, hint = "not enough memory", "free memory, lower engine.workers, or use less data"
    elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        what, hint = "too many open files", 'raise the limit (ulimit -n), or set engine.name = "serial"'
    elif isinstance(error, OSError) and (error.errno in FULL_ERRORS or "No usable temporary directory" in str(error)):
        what, hint = f"cannot write files ({error.strerror})", "free disk space, or raise the limit (ulimit -f)"
    else:
        return None
    return UserError("system.limit_reached", f"the system has reached a limit: {what}", None, hint)


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return the first line of an exception's text, at most `limit` characters; its class name if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:limit] if lines else type(error).__name__


def printable(text: object, limit: int = 1000) -> str:
    r"""Return text of another machine as one line of at most `limit` printable characters.

    Control characters, among them escape sequences of terminals and marks that reorder text, become spaces.

    >>> printable("no\x1b[31m more\n")
    'no [31m more'
    """
    start = str(text)[: 4 * limit]
    return " ".join("".join(c if c.isprintable() else " " for c in start).split())[:limit]


def explanations() -> dict[str, str]:
    """Return the explanation of every error code."""
    return tomllib.loads((resources.files("fedrecall") / "error_codes.toml").read_text())
