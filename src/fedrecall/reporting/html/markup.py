"""HTML by small functions: whatever is not markup already is escaped, so that no name can become a part of the page."""

import html
import json
from collections.abc import Iterable
from urllib.parse import quote

VOID = ("br", "input", "meta")  # elements that have no end


class Html(str):
    """Markup. Every other string is text."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element: strings among its children are text, lists are spread, None is left out.

    Attributes are written `class_`, `data_row`; True is a bare one, None and False are left out.

    >>> tag("th", "a < b", scope="col", data_row=3)
    '<th scope="col" data-row="3">a &lt; b</th>'
    """
    said = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    return Html(f"<{name}{said}>" if name in VOID else f"<{name}{said}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """Elements and texts, one after the other."""
    return Html("".join(_child(child) for child in children))


def data_json(identity: str, content: object) -> Html:
    """Data for the page's script. JSON's own escapes keep `</script>` and `<!--` out of it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(text), type="application/json", id=identity)


def macro(label: str, name: str, kind: str, text: str, identity: str) -> Html:
    """A link that saves a text as a file; the text is in the link."""
    return tag("a", label, id=identity, href=f"data:{kind};charset=utf-8,{quote(text, safe='')}", download=name)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, list | tuple):
        return join(child)
    return html.escape(str(child), quote=False)
