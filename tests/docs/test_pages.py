"""Tests of the documentation: its code runs, its commands parse, its links have targets, its site builds."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

import fedrecall as fr
from fedrecall import cli
from fedrecall.config.schema import key_infos
from support.browser import IS_INSTALLED, REQUIREMENT, start_browser, visit
from support.markdown import DOCS, PAGES, ROOT, anchor, blocks, commands, execute, headings, links, script

TUTORIAL, FAQ = DOCS / "getting-started.md", DOCS / "faq.md"
METHODS = {DOCS / "vocabulary.md", *(DOCS / "methods").glob("*.md")}  # tested by test_methods.py

pages = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def with_code(language: str, *others: Path) -> pytest.MarkDecorator:
    """Return a parameter for the pages with code blocks in this language, except the pages of other tests."""
    found = [path for path in PAGES if path not in METHODS | {*others} and blocks(path, language)]
    return pytest.mark.parametrize("path", found, ids=lambda path: path.stem)


@with_code("python", TUTORIAL, ROOT / "README.md")
def test_python_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    execute(path)


@with_code("toml")
def test_toml_is_a_configuration(path: Path) -> None:
    for block in blocks(path, "toml"):
        fr.Experiment(**tomllib.loads(block.text))


@with_code("sh", TUTORIAL, FAQ)
def test_commands_parse(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in (command for block in blocks(path, "sh") for command in commands(block)):
        program, *args = shlex.split(command)
        if program == "make":
            assert set(args) <= targets, command
        elif program == "fedrecall":
            parse(args)
        elif program == "python" and not args[0].startswith("-"):
            assert (ROOT / args[0]).is_file(), command


def parse(args: list[str]) -> None:
    """Parse a command line without running it; its --set options must be a valid configuration."""
    command = typer.main.get_command(cli.app)
    if args == ["--version"]:
        return
    while hasattr(command, "commands"):
        assert args[0] in command.commands, args
        command, args = command.commands[args[0]], args[1:]
    context = command.make_context(command.name, list(args))
    if context.params.get("config") is None and context.params.get("overrides"):
        fr.Experiment.load(None, context.params["overrides"])


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Function that runs a command in an empty folder and returns its exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(command: str) -> tuple[int, str]:
        program, *args = shlex.split(command)
        assert program == "fedrecall"
        monkeypatch.setattr(sys, "argv", [program, *args])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output = capsys.readouterr()
        return int(end.value.code or 0), output.out + output.err

    return run


def test_the_tutorial_runs_from_top_to_bottom(command_line, tmp_path: Path) -> None:
    configuration, *_ = blocks(TUTORIAL, "toml")
    (tmp_path / "experiment.toml").write_text(configuration.text)
    for command in (command for block in blocks(TUTORIAL, "sh") for command in commands(block)):
        if not command.startswith("pip "):
            code, output = command_line(command)
            assert code == 0, output
    execute(TUTORIAL)
    assert (tmp_path / "results/two/report.html").exists()
    assert (tmp_path / "results/one/model.safetensors").exists()


def test_the_errors_of_the_faq_are_those_of_the_commands(command_line) -> None:
    pairs = blocks(FAQ, "sh", "text")
    assert len(pairs) >= 20
    for shell, message in zip(pairs[::2], pairs[1::2], strict=True):
        assert (shell.language, message.language) == ("sh", "text")
        *before, last = commands(shell)
        for command in before:
            assert command_line(command)[0] == 0
        code, output = command_line(last)
        assert (code, script("make_faq").shortened(output)) == (2, message.text), "python docs/make_faq.py writes them"


@pages
def test_links_have_targets(path: Path) -> None:
    for target in links(path):
        if target.startswith("https://"):
            continue
        file, _, fragment = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.is_file(), target
        assert not fragment or fragment in map(anchor, headings(page)), target


def test_every_example_is_shown() -> None:
    text = "".join(path.read_text() for path in PAGES)
    names = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert names
    assert [name for name in names if f"examples/{name}" not in text] == []


def test_the_configuration_page_has_every_key() -> None:
    module = script("make_configuration")
    for text in (module.page(), module.PAGE.read_text()):
        keys = set(re.findall(r"`([\w-]+)`", text))
        assert {key.rpartition(".")[2] for key in key_infos()} <= keys, "python docs/make_configuration.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site_and_loads_nothing_from_other_servers(site: Path) -> None:
    built = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")}
    assert {str(path.relative_to(DOCS)) for path in PAGES if path.is_relative_to(DOCS)} < built
    assert {"index.md", "changelog.md", "contributing.md"} < built
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.search(r"<(?:script|img|iframe|source)[^>]+src(?:set)?=\"?(?:https?:)?//", text), page
        assert not re.search(r"<link[^>]+rel=\"?(?:stylesheet|preconnect|preload)[^>]+href=\"?(?:https?:)?//", text), (
            page
        )
        assert "arithmatex" not in text, f"an equation of {page} is not MathML"
        assert "--8&lt;--" not in text, page


@pytest.mark.skipif(not IS_INSTALLED, reason=REQUIREMENT)
def test_pages_fit_a_phone_and_load_without_a_network(site: Path) -> None:
    with start_browser() as browser:
        for page in ("index", "configuration", "methods/fedssd", "architecture", "api"):
            with visit(browser, site / f"{page}.html", width=360, is_mobile=True) as opened:
                assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360, page
                assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
                missing = "[...document.querySelectorAll('img')].filter(i => i.complete && !i.naturalWidth).length"
                assert opened.page.evaluate(missing) == 0, f"{page} has a missing picture"


def test_the_api_page_has_all_public_names_and_its_examples_are_code(site: Path) -> None:
    text = (site / "api.html").read_text()
    assert [name for name in fr.__all__ if f'id="fedrecall.{name}"' not in text] == []
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text
    assert "<p>&gt;&gt;&gt;" not in text
    assert "<blockquote>" not in text
    assert "path/&lt;class&gt;/" in text, "the docstring of from_folder is rendered as HTML"
