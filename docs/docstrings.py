"""Markdown of the API pages: examples in docstrings become code blocks."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)  # up to the next empty line


class Docstrings(griffe.Extension):
    """Extension of griffe, with which mkdocstrings reads the source without importing it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Fence the examples, and escape < outside of them and of backticks."""
    parts, start = list[str](), 0
    for example in EXAMPLE.finditer(text):
        parts += [_escape(text[start : example.start()]), f"```pycon\n{example[0]}\n```"]
        start = example.end()
    return "".join([*parts, _escape(text[start:])])


def _escape(text: str) -> str:
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(text.split("`")))
