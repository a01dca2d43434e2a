"""What the README shows, runs."""

import re
import tomllib
from pathlib import Path

import pytest
import typer.main

import fedrecall as fr
from fedrecall import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    assert found
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert 0.3 < float(capsys.readouterr().out) < 1


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml(text: str) -> None:
    assert fr.Experiment(**tomllib.loads(text)).federation.cohort == 10


def test_commands_exist() -> None:
    commands = typer.main.get_command(cli.app).commands
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    lines = [line.split("#")[0].split() for block in blocks("sh") for line in block.splitlines()]
    for program, name, *rest in lines:
        if program == "make":
            assert name in targets
        else:
            assert program == "fedrecall"
            assert name in commands
            if name == "show":
                assert rest[0] in commands["show"].commands


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_method_is_listed() -> None:
    assert all(f"`{name}`" in README for name in fr.METHODS)
