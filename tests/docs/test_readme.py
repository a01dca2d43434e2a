"""Tests of the README's statements. test_pages.py runs its commands."""

import re
from typing import Any

import pytest

import fedrecall as fr
from support.markdown import DOCS, ROOT, blocks, commands, execute, links, table

README = ROOT / "README.md"


def test_python_has_the_result_of_its_comment(capsys: pytest.CaptureFixture[str]) -> None:
    comparison: Any = execute(README)["comparison"]
    assert "last 10 less fedavg" in capsys.readouterr().out
    stated = re.findall(r"(\d+) points .* (\d+) to (\d+);", README.read_text())[0]
    found = comparison.to_dict()["fedlmd"]["last 10 less fedavg"]
    for number, value in zip(stated, (found["mean"], found["low"], found["high"]), strict=True):
        assert abs(int(number) - value) < 3, "another processor may round differently, but not by this much"


def test_it_is_one_screen() -> None:
    assert len(README.read_text().splitlines()) < 110
    shown = [command for block in blocks(README, "sh") for command in commands(block)]
    assert shown[:2] == ["make demo", "make test"]


def test_every_method_is_listed() -> None:
    assert all(f"`{name}`" in README.read_text() for name in fr.METHODS)


def test_the_costs_of_the_methods_are_those_of_the_index() -> None:
    index = {row[0].split("]")[0].strip("["): row for row in table(DOCS / "methods" / "index.md", "Method")}
    rows = table(README, "Method")
    assert len(rows) >= 8
    for name, _, cost, _ in ((re.sub(r"\W*([\w-]+)`.*", r"\1", row[0]), *row[1:]) for row in rows):
        _, _, down, up, keeps, extra, _ = index[name]
        assert ("twice the download" in cost) == down.startswith("2"), name
        assert up.startswith("1")
        assert keeps == "nothing"
        assert ("teacher" in cost) == ("teacher" in extra), name


def test_all_pages_for_users_are_linked() -> None:
    linked = {target.removeprefix("docs/") for target in links(README)}
    assert {"getting-started.md", "choose.md", "configuration.md", "faq.md", "architecture.md"} <= linked
