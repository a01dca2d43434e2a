"""The shipped JSON schema describes every key, and agrees with the types and with the validation."""

import json
import re
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from fedrecall.config import schema
from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.config.make_schema import make_schema
from fedrecall.config.overrides import apply_overrides
from fedrecall.config.run_section import PROBE_NAMES
from fedrecall.data.catalog import DATASETS
from fedrecall.methods.presets import PRESETS
from fedrecall.runs.probes import PROBES


def without_descriptions(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: without_descriptions(v) for k, v in node.items() if k != "description" or not isinstance(v, str)}
    return [without_descriptions(item) for item in node] if isinstance(node, list) else node


def test_the_snapshot_is_up_to_date() -> None:
    """A changed description alone is not an error: the next `python -m fedrecall.config.schema` writes it."""
    made = json.loads(json.dumps(make_schema()))
    same = without_descriptions(made) == without_descriptions(schema.read_schema())
    assert same, "schema.json is out of date: python -m fedrecall.config.schema"


def test_every_key_has_a_description() -> None:
    assert [key for key, info in schema.key_infos().items() if not info.description] == []


def test_sections_and_keys() -> None:
    sections = schema.read_schema()["properties"]
    assert list(sections) == list(Experiment.model_fields)
    for name, section in sections.items():
        annotation = Experiment.model_fields[name].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            assert list(section["properties"]) == list(annotation.model_fields)
    assert schema.key_infos()["data.name"].values == (*DATASETS, "folder", "table", "own")
    assert schema.key_infos()["method.kd_scale"].values == ("none", "T2", "sum")
    assert schema.key_infos()["local.drop_last"].values == (False, True)


@pytest.mark.parametrize("kind", CHOICES)
def test_choices_and_their_settings(kind: str) -> None:
    choice = CHOICES[kind]
    members = schema.choice_members(schema.choice_schema(choice.key))
    assert list(members) == list(choice.classes)
    for name, member in members.items():
        assert list(schema.member_settings(member)) == [field.name for field in fields(choice.classes[name])]
        assert ("required" in member) == (name != choice.default)
    if kind == "method":
        assert members["fedcad"]["properties"]["preset"]["enum"] == [p for p, of in PRESETS.items() if "fedcad" in of]


def test_bounds_and_defaults() -> None:
    sections = schema.read_schema()["properties"]
    assert sections["federation"]["properties"]["fraction"].items() >= {"exclusiveMinimum": 0, "maximum": 1}.items()
    assert sections["local"]["properties"]["epochs"].items() >= {"type": "integer", "minimum": 1, "default": 5}.items()
    assert sections["federation"]["properties"]["partition"]["default"]["name"] == "dirichlet"
    assert "$ref" not in json.dumps(sections)
    assert not re.search(r"\bnull\b", json.dumps(sections))  # TOML has no null


@pytest.mark.parametrize("kind", CHOICES)
def test_every_listed_name_can_be_set(kind: str) -> None:
    choice = CHOICES[kind]
    for name in schema.key_infos()[f"{choice.key}.name"].values:
        tables: dict[str, Any] = {}
        apply_overrides(tables, [f"{choice.key}.name={name}"])
        built = choice.build({"name": name})
        assert choice.dump(built)["name"] == name
        if kind not in ("robust", "preaggregation", "privacy"):  # which need other settings too
            Experiment(**tables)


def test_names_of_probes() -> None:
    assert set(PROBE_NAMES) == set(PROBES)
