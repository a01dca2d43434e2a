"""Choices by name: a table such as {name = "dirichlet", alpha = 0.1} names a class and sets its fields."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema, core_schema

from fedrecall.config.own_code import check_arguments, import_object, is_code_path, untrusted
from fedrecall.config.validation import nearest_key, type_error, unknown_key
from fedrecall.data.transforms import TRANSFORM_PRESETS, Transform
from fedrecall.errors import UserError, unknown_name

AUGMENTATIONS = ("none", *TRANSFORM_PRESETS)
AugmentationName = Annotated[str, Field(json_schema_extra={"enum": list(AUGMENTATIONS)})]


def _require_known_augmentation(augment: Any) -> Any:
    if isinstance(augment, str) and augment not in AUGMENTATIONS:
        raise unknown_name("augmentation", augment, AUGMENTATIONS, key="data.augment")
    return augment


Augmentation = Annotated[
    str | dict[str, Any],
    BeforeValidator(_require_known_augmentation, json_schema_input_type=AugmentationName | Transform),
]

PYTHON_OBJECT = "own"  # name in the table of an object passed in Python

T = TypeVar("T")


@dataclass(frozen=True)
class PythonObject:
    """Record of an object passed in Python: a configuration can name it, and cannot make it."""

    kind: str
    class_name: str

    @property
    def missing(self) -> UserError:
        """Error for a run that needs the object."""
        return UserError(
            "config.needs_python_object",
            f"{self.kind}: the configuration refers to a {self.kind} passed in Python ({self.class_name})",
            self.kind,
            f"pass it again: run(..., {self.kind}=...)",
        )


@dataclass(frozen=True)
class OwnCode(PythonObject):
    """A class or function that the configuration names as "package.module:Class", with its settings.

    `imported` is the object that it makes, or for a model the function that makes the module; None before the import.
    """

    path: str
    settings: Mapping[str, Any]
    imported: Any = field(default=None, compare=False)

    @property
    def missing(self) -> UserError:
        """Error for a run that needs the code, before it was imported."""
        return untrusted([self.path], self.kind)


def resolved(chosen: T | PythonObject | None) -> T | None:
    """Return a chosen object; None if there is only a record of it."""
    if isinstance(chosen, OwnCode):
        imported: T | None = chosen.imported
        return imported
    return None if isinstance(chosen, PythonObject) else chosen


def require(chosen: T | PythonObject) -> T:
    """Return a chosen object, or raise an error if there is only a record of it."""
    found = resolved(chosen)
    if found is None and isinstance(chosen, PythonObject):
        raise chosen.missing
    return found  # type: ignore[return-value]  # None only if None was chosen


@dataclass(frozen=True, eq=False)  # the identity is the hash, which `Annotated[...] | None` needs
class NamedChoice:
    """Type of a configuration key whose value is one of several classes, chosen by name.

    As metadata of `Annotated` it validates a table, dumps the object as a table, and describes every class in the JSON
    schema. A pydantic union by discriminator would either refuse tables (strict) or accept tau = "3" (lax), and its
    errors have other keys; validation here is strict and reports the key of the configuration.
    """

    kind: str
    classes: Mapping[str, type[Any]]
    base: type[Any]  # class or protocol of the objects
    default: str | None = None  # name of a table without one; None: the name is required
    section: str | None = None  # section of the key; None: the choice is a section itself
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # preset -> name -> fields
    importable: bool = False  # the name may be that of user code, "package.module:Class"

    @property
    def key(self) -> str:
        """Configuration key of the table."""
        return self.kind if self.section is None else f"{self.section}.{self.kind}"

    @property
    def python_call(self) -> str:
        """Call that passes an object of the user: `run` has a keyword for a choice that is a section, and partition."""
        has_keyword = self.section is None or self.kind == "partition"
        return f"run({self.kind}=...)" if has_keyword else f'run({{"{self.section}": {{"{self.kind}": ...}}}})'

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {name: TypeAdapter(cls) for name, cls in self.classes.items()}

    def build(self, table: Any) -> Any:
        """Return the object that a table or a bare name describes; return an object of the kind unchanged."""
        if isinstance(table, (PythonObject, self.base)) and not isinstance(table, type):
            return table
        if not isinstance(table, str | Mapping):
            text = str(table).partition("\n")[0]
            raise UserError(
                "config.invalid_value",
                f"{self.key} = {text}: neither a name nor a table with a name and settings",
                self.key,
                f'set {self.key}.name = "{next(iter(self.classes))}", or pass your own object: {self.python_call}',
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
        if name == PYTHON_OBJECT:
            return PythonObject(self.kind, str(values.get("of")))
        if self.importable and is_code_path(name):
            return OwnCode(self.kind, str(name).rpartition(":")[2], str(name), values)
        if not isinstance(name, str) or name not in self.classes:
            key = self.key if isinstance(table, str) else f"{self.key}.name"
            raise unknown_name(self.kind, name, self.classes, key=key)
        values = self._preset(name, values.pop("preset", None)) | values
        return self._validate(self._adapters[name], self.classes[name], name, values)

    def import_code(self, code: OwnCode) -> OwnCode:
        """Import user code, and validate its settings as those of the named classes."""
        found, settings = import_object(code.path, f"{self.key}.name"), dict(code.settings)
        made: Any
        if isinstance(found, type) and is_dataclass(found):
            made = self._validate(TypeAdapter(found), found, code.path, settings)
        elif inspect.isclass(found) or inspect.isroutine(found):
            check_arguments(found, settings, self.key)
            made = partial(found, **settings) if self.kind == "model" else found(**settings)
        else:
            check_arguments(lambda: None, settings, self.key)
            made = found
        is_protocol = getattr(self.base, "_is_protocol", False)  # other objects are checked where they are used
        if not is_protocol and not isinstance(made, self.base):
            key, base = f"{self.key}.name", self.base.__name__
            message = f'{key} = "{code.path}": not a class derived from fedrecall.{base}'
            raise UserError("config.invalid_value", message, key, f"derive it from fedrecall.{base}")
        return replace(code, imported=made)

    def _validate(self, adapter: TypeAdapter[Any], cls: type[Any], name: str, values: Mapping[str, Any]) -> Any:
        """Return an object of a class with settings of strict types; errors have the configuration key."""
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise self._unknown_key(name, key, known)
        try:  # JSON has the types of TOML, and strict validation of JSON accepts a list for a tuple
            return adapter.validate_json(json.dumps(values, default=_to_json_value), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise type_error([self.key, *map(str, first["loc"])], first) from None
        except UserError as error:  # raised by the class, which may not know its configuration key
            if error.key not in known:
                raise
            raise UserError(error.code, error.message, f"{self.key}.{error.key}", error.hint) from None

    def dump(self, chosen: Any) -> dict[str, Any]:
        """Return the complete table of a chosen object, with every field of a dataclass."""
        if isinstance(chosen, OwnCode):
            made: Any = chosen.imported
            complete = asdict(made) if is_dataclass(made) and not isinstance(made, type) else chosen.settings
            return {"name": chosen.path, **{k: v for k, v in complete.items() if v is not None}}
        if isinstance(chosen, PythonObject):
            return {"name": PYTHON_OBJECT, "of": chosen.class_name}
        own = {"name": PYTHON_OBJECT, "of": type(chosen).__name__}
        named = next(({"name": name} for name, cls in self.classes.items() if type(chosen) is cls), own)
        # an object of the user may be of any class
        values = asdict(chosen) if is_dataclass(chosen) and not isinstance(chosen, type) else {}
        return named | {k: v for k, v in values.items() if v is not None and k not in named}

    def _preset(self, name: str, preset: Any) -> dict[str, Any]:
        if preset is None:
            return {}
        valid = self._preset_names(name)
        if preset not in valid:
            key = f"{self.key}.preset"
            if valid:
                raise unknown_name(f"preset of the {self.kind} {name}", preset, valid, key=key)
            message = f"{key} = {preset}: the {self.kind} {name} has no presets"
            raise UserError("config.unknown_name", message, key, f"remove {key}")
        return dict(self.presets[preset][name])

    def _preset_names(self, name: str) -> list[str]:
        return [preset for preset, settings in self.presets.items() if name in settings]

    def _unknown_key(self, name: str, key: str, known: list[str]) -> UserError:
        path = f"{self.key}.{key}"
        others = [other for other, cls in self.classes.items() if key in {f.name for f in fields(cls)}]
        if others:
            message = f"{path}: a setting of {', '.join(others)}, not of the {self.kind} {name}"
            near = nearest_key(path)
            meant = f'did you mean "{near}"? Otherwise ' if near not in (None, path) else ""
            return UserError("config.unknown_key", message, path, f"{meant}remove {path}, or set {self.key}.name")
        if not known and nearest_key(path) is None:
            message = f"{path}: the {self.kind} {name} has no settings"
            return UserError("config.unknown_key", message, path, f"remove {path}, or set {self.key}.name")
        return unknown_key(path, f"key of the {self.kind} {name}", known)

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by `build`, serialise by `dump`."""
        return core_schema.no_info_plain_validator_function(
            self.build, serialization=core_schema.plain_serializer_function_ser_schema(self.dump)
        )

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe a bare name, the table of each class with its settings, and the table of a Python object.

        The settings are those of a model with a field of each class. It is made here, because to read the classes'
        source takes longer than to import the package.
        """
        config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
        fields_of_all: dict[str, Any] = {name: (cls, ...) for name, cls in self.classes.items()}
        all_classes = create_model("Classes", __config__=config, **fields_of_all)
        properties = handler.resolve_ref_schema(handler(all_classes.__pydantic_core_schema__))["properties"]
        members = [handler.resolve_ref_schema(properties[name]) for name in self.classes]
        tables = [self._member_schema(name, member) for name, member in zip(self.classes, members, strict=True)]
        own = {
            "title": "PythonObject",
            "description": "Record of an object passed in Python.",
            "type": "object",
            "properties": {"name": {"const": PYTHON_OBJECT}, "of": {"type": "string", "description": "Its class."}},
            "required": ["name"],
        }
        code = {
            "title": "OwnCode",
            "description": "Your own code, with its settings.",
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": ":", "description": '"package.module:Class".'}},
            "required": ["name"],
        }
        return {"oneOf": [{"enum": list(self.classes)}, *tables, own, *([code] if self.importable else [])]}

    def _member_schema(self, name: str, member: dict[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = {"name": {"const": name}}
        if presets := self._preset_names(name):
            properties["preset"] = {"enum": presets, "description": "Settings of a paper. Keys set beside it win."}
        required = {} if name == self.default else {"required": ["name"]}
        return {**member, "properties": properties | member.get("properties", {}), **required}


def _to_json_value(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)  # a numpy number is a number
