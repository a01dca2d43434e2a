"""Search spaces: that of a method, or one written as texts such as "local.lr=0.001..0.1"."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_code
from fedrecall.config.tables import Tables, lookup, merge_tables
from fedrecall.errors import UserError
from fedrecall.methods.search_spaces import SEARCH_SPACES, FloatRange, GridValues, Number, SearchSpace

TUNABLE_SECTIONS = ("method", "local", "server")  # keys of other sections change the federation

Settings = dict[str, Number]  # values by dotted key


def search_space(method: str, texts: Sequence[str]) -> SearchSpace:
    """Return the space of a method, or that of the texts: "key=a,b,c" is a grid, "key=low..high" a range."""
    if not texts:
        if method not in SEARCH_SPACES:
            message, hint = f"method = {method}: it has no search space", "pass one: --over method.mu=0.01,0.1"
            raise UserError("tune.invalid_space", message, "over", hint)
        return SEARCH_SPACES[method]
    given = [texts] if isinstance(texts, str) else texts
    return SearchSpace("--over", dict(_dimension(text) for text in given))


def _dimension(text: str) -> tuple[str, GridValues | FloatRange]:
    key, _, values = (part.strip() for part in text.partition("="))
    section, _, name = key.partition(".")
    if section not in TUNABLE_SECTIONS or not name:
        wrong = f'"{text}": only keys of {", ".join(TUNABLE_SECTIONS)} can be tuned'
        raise UserError("tune.invalid_space", wrong, key, "name one of them, such as method.mu=0.01,0.1")
    try:
        if ".." in values:
            low, high = map(float, values.split(".."))
            if not low < high:
                wrong = f'"{text}": the lower end of a range must be below the upper end'
                hint = f"write {key}={high:g}..{low:g}" if high < low else "write two different numbers"
                raise UserError("tune.invalid_space", wrong, key, hint)
            return key, FloatRange(low, high)
        return key, GridValues(tuple(_number(value) for value in values.split(",")))
    except ValueError:
        wrong, hint = f'"{text}": not numbers', f"write a list {key}=0.01,0.1 or a range {key}=0.01..0.1"
        raise UserError("tune.invalid_space", wrong, key, hint) from None


def _number(text: str) -> Number:
    """Parse a number; an integer stays one, as keys of counts require."""
    return int(text) if text.strip().lstrip("+-").isdigit() else float(text)


def grid_points(tables: Tables, space: SearchSpace) -> list[Settings] | None:
    """Return the valid points of a grid; None if the space has a range."""
    grids = {key: values.of for key, values in space.dimensions.items() if isinstance(values, GridValues)}
    if len(grids) < len(space.dimensions):
        return None
    points = (dict(zip(grids, values, strict=True)) for values in product(*grids.values()))
    return [settings for settings in points if is_valid(tables, settings)]


def is_valid(tables: Tables, settings: Settings) -> bool:
    """Return True if the configuration with these settings is valid; FedCAD, for example, needs beta <= gamma."""
    try:
        import_own_code(Experiment(**apply_settings(tables, settings)))
    except UserError:
        return False
    return True


def require_valid(tables: Tables, space: SearchSpace) -> None:
    """Raise an error, with the reason, if no settings of the space are valid."""
    first = {
        key: values.of[0] if isinstance(values, GridValues) else values.low for key, values in space.dimensions.items()
    }
    if not (grid_points(tables, space) or is_valid(tables, first)):
        import_own_code(Experiment(**apply_settings(tables, first)))


def current_settings(tables: Tables, space: SearchSpace) -> Settings | None:
    """Return the configuration's values of the keys; None if they are outside the space."""
    complete = import_own_code(Experiment(**tables)).to_tables()
    settings = {key: lookup(complete, key) for key in space.dimensions}
    return settings if all(settings[key] in values for key, values in space.dimensions.items()) else None


def apply_settings(tables: Tables, settings: Settings) -> Tables:
    """Return the configuration with the settings."""
    return merge_tables(tables, *_nested(settings))


def _nested(settings: Settings) -> Iterator[Mapping[str, Any]]:
    for key, value in settings.items():
        inner: Any = value
        for part in reversed(key.split(".")):
            inner = {part: inner}
        yield inner
