"""What is tried: a method's own space, or one that is given as texts such as "local.lr=0.001..0.1"."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fedrecall.config.experiment import Experiment
from fedrecall.config.tables import Tables, merge_tables
from fedrecall.errors import UserError
from fedrecall.methods.search_spaces import SEARCH_SPACES, FloatRange, GridValues, Number, SearchSpace

TUNABLE_SECTIONS = ("method", "local", "server")  # all others would make it another federation

Settings = dict[str, Number]  # by dotted keys


def search_space(method: str, texts: Sequence[str]) -> SearchSpace:
    """The space of a method, unless another is given: "key=a,b,c" is a grid, "key=low..high" a range."""
    if not texts:
        return SEARCH_SPACES[method]
    return SearchSpace("given", dict(_dimension(text) for text in texts))


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
    """A whole number stays one: keys that count take no other."""
    return int(text) if text.strip().lstrip("+-").isdigit() else float(text)


def grid_points(tables: Tables, space: SearchSpace) -> list[Settings] | None:
    """All that a grid allows and the method accepts; None if a range is in it."""
    grids = {key: values.of for key, values in space.dimensions.items() if isinstance(values, GridValues)}
    if len(grids) < len(space.dimensions):
        return None
    every = (dict(zip(grids, chosen, strict=True)) for chosen in product(*grids.values()))
    return [settings for settings in every if is_valid(tables, settings)]


def is_valid(tables: Tables, settings: Settings) -> bool:
    """Whether a configuration can have these settings: FedCAD's beta is not above its gamma, for one."""
    try:
        Experiment(**apply_settings(tables, settings))
    except UserError:
        return False
    return True


def require_valid(tables: Tables, space: SearchSpace) -> None:
    """Refuse a space none of whose settings a configuration can have, with the reason."""
    first = {
        key: values.of[0] if isinstance(values, GridValues) else values.low for key, values in space.dimensions.items()
    }
    if not (grid_points(tables, space) or is_valid(tables, first)):
        Experiment(**apply_settings(tables, first))


def current_settings(tables: Tables, space: SearchSpace) -> Settings | None:
    """What the configuration itself says of the keys, if the space has it."""
    said = {key: _get(Experiment(**tables).to_tables(), key) for key in space.dimensions}
    return said if all(said[key] in values for key, values in space.dimensions.items()) else None


def apply_settings(tables: Tables, settings: Settings) -> Tables:
    """The configuration with them."""
    return merge_tables(tables, *_nested(settings))


def _nested(settings: Settings) -> Iterator[Mapping[str, Any]]:
    for key, value in settings.items():
        inner: Any = value
        for part in reversed(key.split(".")):
            inner = {part: inner}
        yield inner


def _get(tables: Mapping[str, Any], key: str) -> Any:
    found: Any = tables
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
