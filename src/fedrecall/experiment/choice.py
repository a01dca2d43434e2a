"""A table such as {name = "dirichlet", alpha = 0.1}: a name chooses a dataclass, the other keys are its fields."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedrecall.errors import UserError, unknown


@dataclass(frozen=True)
class Choice:
    """One kind of thing that a configuration chooses by name."""

    kind: str  # as it is called in messages
    valid: Mapping[str, type[Any]]
    default: str | None  # the name where none is given; None: it must be
    does: str  # the attribute by which a Python user's own object is known
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # preset -> name -> fields

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        """Made once: a study checks a thousand configurations."""
        return {name: TypeAdapter(cls) for name, cls in self.valid.items()}

    def build(self, table: Any) -> Any:
        """The object that a table (or a bare name) describes; an object that is one already passes through."""
        if isinstance(table, Own) or (hasattr(table, self.does) and not isinstance(table, type)):
            return table
        if not isinstance(table, str | Mapping):
            raise UserError(
                f"{self.kind} = {str(table).splitlines()[0]}: give a name, or a table with a name and settings; an "
                f"object of your own is passed to run({self.kind}=...)"
            )
        values = {"name": table} if isinstance(table, str) else dict(table)
        name = values.pop("name", self.default)
        if name is None:
            raise UserError(f'the {self.kind} needs a name, such as {self.kind}.name = "{next(iter(self.valid))}"')
        if name == "own":
            return Own(self.kind, str(values.get("of")))
        if not isinstance(name, str) or name not in self.valid:
            raise unknown(self.kind, name, self.valid)
        values = self._preset(name, values.pop("preset", None)) | values
        cls = self.valid[name]
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise self._unknown_key(name, key, known)
        try:  # JSON has the types of TOML, and lets a list be a tuple under strict rules
            return self._adapters[name].validate_json(json.dumps(values, default=_plain), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise _ill_typed([self.kind, *map(str, first["loc"])], first) from None

    def _preset(self, name: str, preset: Any) -> dict[str, Any]:
        if preset is None:
            return {}
        valid = [p for p, settings in self.presets.items() if name in settings]
        if preset not in valid:
            raise (
                unknown(f"preset of the {self.kind} {name}", preset, valid)
                if valid
                else UserError(f"the {self.kind} {name} has no presets")
            )
        return dict(self.presets[preset][name])

    def _unknown_key(self, name: str, key: str, known: list[str]) -> UserError:
        if not known:
            return UserError(f'unknown key "{key}": the {self.kind} {name} has no settings')
        return unknown(f"key of the {self.kind} {name}", key, known)

    def dump(self, chosen: Any) -> dict[str, Any]:
        """The complete table of a chosen object, with every field."""
        if isinstance(chosen, Own):
            return {"name": "own", "of": chosen.of}
        own = {"name": "own", "of": type(chosen).__name__}  # no configuration can make it again
        named = next(({"name": name} for name, cls in self.valid.items() if type(chosen) is cls), own)
        return named | {k: v for k, v in asdict(chosen).items() if v is not None}


@dataclass(frozen=True)
class Own:
    """Stands in a configuration for an object that was given in Python: it names it, and cannot make it again."""

    kind: str
    of: str

    def build(self, *_: object) -> Any:
        """Refuse to be used as a model."""
        raise self._missing()

    def assign(self, *_: object) -> Any:
        """Refuse to be used as a partition."""
        raise self._missing()

    def init(self, *_: object) -> Any:
        """Refuse to be used as a method."""
        raise self._missing()

    needs_aux = personal = False  # as far as is known of a method

    def _missing(self) -> UserError:
        return UserError(
            f"this configuration used a {self.kind} given in Python ({self.of}): pass it again, {self.kind}="
        )


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)  # a numpy number is a number


def explain(error: ValidationError, model: type[BaseModel]) -> UserError:
    """The first thing wrong with a configuration, as one line that names the key."""
    # A misspelt key is also a missing one, and says more.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    if first["type"] == "missing":
        return UserError(f"{'.'.join(path)} is missing: give it")
    if first["type"] == "extra_forbidden":
        *sections, key = path
        for section in sections:
            model = cast(type[BaseModel], model.model_fields[section].annotation)
        if not sections and (holders := [name for name, field in model.model_fields.items() if _has(field, key)]):
            return UserError(f'unknown section "{key}": did you mean "{holders[0]}.{key}"?')
        where = f"key in [{'.'.join(sections)}]" if sections else "section"
        return unknown(where, key, model.model_fields)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return UserError(message)
    return _ill_typed(path, first)


def _has(field: FieldInfo, key: str) -> bool:
    """Whether a section has a key."""
    return isinstance(field.annotation, type) and key in getattr(field.annotation, "model_fields", {})


def _ill_typed(path: list[str], wrong: ErrorDetails) -> UserError:
    """A value that its key cannot have."""
    key, value = ".".join(path), wrong["input"]
    if wrong["type"] == "literal_error":
        return unknown(key, value, re.findall("'([^']*)'", wrong["ctx"]["expected"]))
    if wrong["type"] == "model_type":
        return UserError(f"{key} = {value!r} must be a table: set its keys, such as {key}.KEY=VALUE")
    return UserError(f"{key} = {value!r}: {wrong['msg']}")
