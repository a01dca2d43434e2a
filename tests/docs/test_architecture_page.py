"""The page on the architecture agrees with the code: its picture, its packages and the way of a batch."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import fedrecall as fr
from support.markdown import DOCS, ROOT, script, table

PAGE = DOCS / "architecture.md"
SOURCE = ROOT / "src" / "fedrecall"
WAY = re.findall(r"^\d+\. `(fedrecall\.[\w.]+)`", PAGE.read_text(), re.M)
NAMED = sorted(set(re.findall(r"`(fedrecall\.[\w.]+)`", PAGE.read_text())))


def resolve(name: str) -> Any:
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("name", [n for n in NAMED if not n.startswith("fedrecall.flower")])
def test_names_on_the_page_exist(name: str) -> None:
    assert callable(resolve(name))


def test_the_picture_shows_the_imports_of_the_code() -> None:
    maker = script("make_architecture")
    for file, theme in maker.THEMES.items():
        assert (DOCS / "images" / file).read_text() == maker.draw(theme), "run python docs/make_architecture.py"


def test_every_package_is_described() -> None:
    packages = {p.stem for p in SOURCE.iterdir() if (p / "__init__.py").exists()} | {"api"}
    assert {row[0].strip("`") for row in table(PAGE, "package")} == packages
    assert packages <= set(script("make_architecture").PLACES)


def test_the_way_of_a_batch_is_the_way_that_a_run_takes(tmp_path: Path) -> None:
    codes: dict[CodeType, str] = {resolve(name).__code__: name for name in WAY}
    order: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := codes.get(frame.f_code)) and name not in order:
            order.append(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        settings = {"engine": {"name": "serial"}, "model": {"name": "mlp"}, "federation": {"clients": 4}}
        fr.run(fr.Experiment(**settings, run={"rounds": 1}), out=tmp_path / "run", progress=False)
    finally:
        sys.setprofile(before)
    assert order == WAY
