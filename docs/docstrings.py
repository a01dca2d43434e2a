"""What the API pages make of our docstrings: examples are code, and a field's comment says what it is."""

import re
from pathlib import Path
from typing import Any

import griffe

from fedrecall.experiment.source import classes


class Docstrings(griffe.Extension):
    """For mkdocstrings, which reads the source and imports nothing."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Once an object is read: fence its examples."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"((?:^>>> .*\n?(?:^(?!$).*\n?)*)+)", fenced, obj.docstring.value, flags=re.M)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Once a class is read: its fields' comments are what is documented of them."""
        known = classes(Path(str(cls.filepath))).get(cls.name)
        for name, key in known.keys.items() if known else ():
            field = cls.members.get(name)
            if key.comment and field is not None and field.docstring is None:
                field.docstring = griffe.Docstring(key.comment, parent=field)


def fenced(example: re.Match[str]) -> str:
    """An interpreter's session, as a block of code."""
    return f"```pycon\n{example[1].rstrip()}\n```\n"
