"""What the person at the keyboard can fix: one class, one line, no traceback."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad input. Its text says what is wrong, why, and what to do, in one line; the command line exits with 2.

    >>> import fedrecall as fr
    >>> try:
    ...     fr.run(method="fedlmt")
    ... except fr.UserError as error:
    ...     print(str(error)[:53])
    unknown method "fedlmt": did you mean "fedlmd"? Valid
    """


def unknown(what: str, name: object, valid: Iterable[str]) -> UserError:
    """`name` is not one of the valid names: the error that says so, with the nearest valid one.

    >>> print(unknown("method", "fedavgg", ["fedavg", "fedprox"]))
    unknown method "fedavgg": did you mean "fedavg"? Valid: fedavg, fedprox
    """
    names = sorted(valid)
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return UserError(f'unknown {what} "{name}": {hint}Valid: {", ".join(names)}')


def needs_extra(package: str, extra: str) -> UserError:
    """An optional part is not installed: the error that names the command which installs it."""
    return UserError(f'{package} is not installed; it is an optional part: pip install "fedrecall[{extra}]"')
