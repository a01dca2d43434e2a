"""JSON schema of the configuration, made from its types. As a program it rewrites the snapshot, schema.json."""

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.config.schema import SCHEMA_FILE, Schema


def make_schema() -> Schema:
    """Make the schema from the types of the configuration, without references."""

    class TomlSchema(GenerateJsonSchema):
        """JSON schema of TOML tables: no null, no titles made of keys, chosen objects as tables."""

        def nullable_schema(self, schema: Any) -> Schema:
            return self.generate_inner(schema["schema"])

        def default_schema(self, schema: Any) -> Schema:
            out = super().default_schema(schema)
            if out.get("default") is None:
                out.pop("default", None)
            return out

        def encode_default(self, dft: Any) -> Any:
            found = (choice.dump(dft) for choice in CHOICES.values() if type(dft) in choice.classes.values())
            return super().encode_default(next(found, dft))

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    found = Experiment.model_json_schema(schema_generator=TomlSchema)
    schema: Schema = _inline(found, found.get("$defs", {}))
    schema["description"] = "Configuration of a run of fedrecall."
    for section in schema["properties"].values():
        section.pop("default", None)  # the sum of its keys' defaults
    return {"$schema": TomlSchema.schema_dialect, **schema}


def _inline(node: Any, definitions: Schema) -> Any:
    """Replace references by the definitions."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    target = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
    merged = {**target, **{key: value for key, value in node.items() if key not in ("$ref", "$defs")}}
    return {key: _inline(value, definitions) for key, value in merged.items()}


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(make_schema(), indent=1) + "\n")
