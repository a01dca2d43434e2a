"""What is read from the source is what the classes are."""

from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from fedrecall.config import schema
from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.config.tables import apply_overrides
from fedrecall.data.catalog import DATASETS


@pytest.mark.parametrize("kind", CHOICES)
def test_names_and_fields(kind: str) -> None:
    assert schema.names(kind) == list(CHOICES[kind].classes)
    for name, cls in CHOICES[kind].classes.items():
        found = schema.chosen(kind, name)
        assert list(found.keys) == [field.name for field in fields(cast(Any, cls))]
        assert (cls.__doc__ or "").startswith(found.about)


def test_sections() -> None:
    found = schema.sections()
    assert list(found) == list(Experiment.model_fields)
    for name, section in found.items():
        annotation = Experiment.model_fields[name].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            assert list(section.keys) == list(annotation.model_fields)
            assert section.about == (annotation.__doc__ or "").splitlines()[0]
    assert schema.datasets() == list(DATASETS)


MODULE = '''
class Own(Section):
    """Said of it.

    And more.
    """

    beside: float = 0.5  # what it is: "#1"
    silent: int = 3
    broken: Path | None = (
        None  # in parentheses
    )
    chosen: Literal["a", "b"] | None = None  # é before it: ü
    switch: bool = False
    naked: str  # without a default
'''


def test_comments_and_values(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(MODULE, encoding="utf-8")
    assert schema.classes(file) == {
        "Own": schema.SectionInfo(
            "Said of it.",
            {
                "beside": schema.KeyInfo('what it is: "#1"', ()),
                "silent": schema.KeyInfo("", ()),
                "broken": schema.KeyInfo("in parentheses", ()),
                "chosen": schema.KeyInfo("é before it: ü", ("a", "b")),
                "switch": schema.KeyInfo("", (False, True)),
                "naked": schema.KeyInfo("without a default", ()),
            },
        )
    }
    assert schema.keys()["method.kd_scale"].values == ("none", "T2")


def test_every_offered_name_can_be_set() -> None:
    for kind, path in (("method", "method"), ("partition", "federation.partition"), ("model", "model")):
        for name in schema.keys()[f"{path}.name"].values:
            tables: dict[str, Any] = {}
            apply_overrides(tables, [f"{path}.name={name}"])
            assert CHOICES[kind].dump(CHOICES[kind].build({"name": name}))["name"] == name
            Experiment(**tables)
