"""What the API pages make of our docstrings: examples are code, and a field's comment says what it is."""

import re
from pathlib import Path
from typing import Any

import griffe

from fedrecall.config.schema import classes

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)  # to the next empty line


class Docstrings(griffe.Extension):
    """For mkdocstrings, which reads the source and imports nothing."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Once an object is read: its docstring becomes Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Once a class is read: its fields' comments are what is documented of them."""
        known = classes(Path(str(cls.filepath))).get(cls.name)
        for name, key in known.keys.items() if known else ():
            field = cls.members.get(name)
            if key.comment and field is not None and field.docstring is None:
                field.docstring = griffe.Docstring(markdown(key.comment), parent=field)


def markdown(text: str) -> str:
    """Examples in fences; outside of them and of backticks <name> is no HTML."""
    parts, at = list[str](), 0
    for example in EXAMPLE.finditer(text):
        parts += [_plain(text[at : example.start()]), f"```pycon\n{example[0]}\n```"]
        at = example.end()
    return "".join([*parts, _plain(text[at:])])


def _plain(text: str) -> str:
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(text.split("`")))
