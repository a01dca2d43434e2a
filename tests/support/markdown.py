"""Pages of the documentation, their code blocks, tables, headings and links."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Code block of a page."""

    language: str
    text: str


def prose(path: Path) -> str:
    """Return the page without its code blocks."""
    return FENCED.sub("", path.read_text())


def blocks(path: Path, *languages: str) -> list[Block]:
    """Return the code blocks of a page in these languages."""
    found = (Block(match[2], match[3]) for match in FENCED.finditer(path.read_text()))
    return [block for block in found if block.language in languages]


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block, without comments and with continuation lines joined."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    return [line for line in (re.sub(r"\s+#\s.*", "", line).strip() for line in joined.splitlines()) if line]


def table(path: Path, first: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this title; an empty list if there is no such table."""
    found = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.*\n?)*)", prose(path), flags=re.MULTILINE)
    assert len(found) <= 1, f"{path.name} has several tables of {first}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in "".join(found).splitlines()]


def headings(path: Path) -> list[str]:
    """Return the headings of all levels."""
    return re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """Return the fragment of a heading's link in mkdocs and on GitHub."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def links(path: Path) -> list[str]:
    """Return the targets of the page's links and pictures."""
    found = re.findall(r"\]\(([^)\s]+)\)|src(?:set)?=\"([^\"]+)\"", prose(path))
    return [link or image for link, image in found]


def execute(path: Path) -> dict[str, object]:
    """Run all Python blocks of a page in order and return the defined names."""
    names: dict[str, object] = {"__name__": path.stem}
    for block in blocks(path, "python"):
        exec(compile(block.text, str(path), "exec"), names)
    return names


def script(name: str) -> ModuleType:
    """Import a script of docs/ that writes a part of the documentation."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
