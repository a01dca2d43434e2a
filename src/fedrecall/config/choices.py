"""A table such as {name = "dirichlet", alpha = 0.1}: a name chooses a dataclass, the other keys are its fields."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedrecall.config.validation import _type_error
from fedrecall.errors import UserError, unknown_name


@dataclass(frozen=True)
class NamedChoice:
    """One kind of thing that a configuration chooses by name."""

    kind: str  # as it is called in messages
    classes: Mapping[str, type[Any]]
    default: str | None  # the name where none is given; None: it must be
    does: str  # the attribute by which a Python user's own object is known
    section: str | None = None  # the section that holds it; None: it is a section itself
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # preset -> name -> fields

    @property
    def key(self) -> str:
        """The configuration key of the table."""
        return self.kind if self.section is None else f"{self.section}.{self.kind}"

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        """Made once: a study checks a thousand configurations."""
        return {name: TypeAdapter(cls) for name, cls in self.classes.items()}

    def build(self, table: Any) -> Any:
        """The object that a table (or a bare name) describes; an object that is one already passes through."""
        if isinstance(table, PythonObject) or (hasattr(table, self.does) and not isinstance(table, type)):
            return table
        if not isinstance(table, str | Mapping):
            text = str(table).partition("\n")[0]
            raise UserError(
                "config.invalid_value",
                f"{self.key} = {text}: neither a name nor a table with a name and settings",
                self.key,
                f'set {self.key}.name = "{next(iter(self.classes))}", or pass your own object to run({self.kind}=...)',
            )
        values = {"name": table} if isinstance(table, str) else dict(table)
        name = values.pop("name", self.default)
        if name is None:
            raise UserError(
                "config.missing_key",
                f"{self.key}.name: the key is missing",
                f"{self.key}.name",
                f'set it, such as {self.key}.name = "{next(iter(self.classes))}"',
            )
        if name == "own":
            return PythonObject(self.kind, str(values.get("of")))
        if not isinstance(name, str) or name not in self.classes:
            raise unknown_name(
                self.kind, name, self.classes, key=self.key if isinstance(table, str) else f"{self.key}.name"
            )
        values = self._preset(name, values.pop("preset", None)) | values
        cls = self.classes[name]
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise self._unknown_key(name, key, known)
        try:  # JSON has the types of TOML, and lets a list be a tuple under strict rules
            return self._adapters[name].validate_json(json.dumps(values, default=_to_json_value), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise _type_error([self.key, *map(str, first["loc"])], first) from None
        except UserError as error:  # of the dataclass, which does not know the section that it is used in
            if error.key not in known:
                raise
            raise UserError(error.code, error.message, f"{self.key}.{error.key}", error.hint) from None

    def _preset(self, name: str, preset: Any) -> dict[str, Any]:
        if preset is None:
            return {}
        valid = [p for p, settings in self.presets.items() if name in settings]
        if preset not in valid:
            key = f"{self.key}.preset"
            if valid:
                raise unknown_name(f"preset of the {self.kind} {name}", preset, valid, key=key)
            message = f"{key} = {preset}: the {self.kind} {name} has no presets"
            raise UserError("config.unknown_name", message, key, f"remove {key}")
        return dict(self.presets[preset][name])

    def _unknown_key(self, name: str, key: str, known: list[str]) -> UserError:
        path = f"{self.key}.{key}"
        if not known:
            message = f"{path}: the {self.kind} {name} has no settings"
            return UserError("config.unknown_key", message, path, f"remove {path}, or set {self.key}.name")
        return unknown_name(f"key of the {self.kind} {name}", key, known, "config.unknown_key", path)

    def dump(self, chosen: Any) -> dict[str, Any]:
        """The complete table of a chosen object, with every field."""
        if isinstance(chosen, PythonObject):
            return {"name": "own", "of": chosen.class_name}
        own = {"name": "own", "of": type(chosen).__name__}  # no configuration can make it again
        named = next(({"name": name} for name, cls in self.classes.items() if type(chosen) is cls), own)
        return named | {k: v for k, v in asdict(chosen).items() if v is not None}


@dataclass(frozen=True)
class PythonObject:
    """Stands in a configuration for an object that was given in Python: it names it, and cannot make it again."""

    kind: str
    class_name: str

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
            "config.needs_python_object",
            f"{self.kind}: the configuration refers to a {self.kind} passed in Python ({self.class_name})",
            self.kind,
            f"pass it again: run(..., {self.kind}=...)",
        )


def _to_json_value(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)  # a numpy number is a number
