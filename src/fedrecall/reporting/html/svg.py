"""Drawn figures as parts of the page: inline SVG whose names do not clash with those of its neighbours."""

import re
from io import BytesIO
from xml.etree import ElementTree

from fedrecall.errors import UserError
from fedrecall.reporting.figures import draw
from fedrecall.reporting.figures.layout import METADATA
from fedrecall.reporting.figures.style import figure_style
from fedrecall.reporting.html.markup import Html, tag
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import FigureSpec

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

PIXELS_PER_POINT = 1.4 * 96 / 72  # a point; figures are made for paper, which is held nearer than a screen

LONG_PATH = 500  # characters of a path: a line

MIN_SCALE = 0.6  # of its size: a figure that is narrower cannot be read, and is scrolled


def inline_figure(results: StudyResults, picture: FigureSpec, identity: str) -> Html:
    """A figure with its title, or why it could not be drawn."""
    try:
        with figure_style():
            content = BytesIO()
            plain = picture.model_copy(update={"title": ""})  # the caption says it
            draw(results, plain).savefig(content, format="svg", metadata=METADATA["svg"])
    except UserError as error:
        return tag("p", f"{picture.title or picture.form} is not drawn: {error}", class_="note")
    drawn = tag("div", inline_svg(content.getvalue(), identity, picture.title or picture.form), class_="paper")
    return tag("figure", tag("figcaption", picture.title) if picture.title else None, drawn)


def inline_svg(svg: bytes, identity: str, label: str) -> Html:
    """An SVG file as an element of a page."""
    root = ElementTree.fromstring(svg)  # our own: matplotlib wrote it
    for parent in root.iter():
        for child in list(parent):
            # A page's style is one for all; metadata is for files.
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{identity}-{value}")
            elif key == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(key, f"#{identity}-{value[1:]}")
            elif key == "d":
                element.set(key, round_path(value))
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{identity}-"))
    width = PIXELS_PER_POINT * float(root.attrib["viewBox"].split()[2])
    root.attrib |= {
        "role": "img",
        "aria-label": label,
        "width": f"{width:.0f}",
        "style": f"min-width:{MIN_SCALE * width:.0f}px",
    }
    del root.attrib["height"]
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return Html(ElementTree.tostring(root, encoding="unicode"))


def round_path(path: str) -> str:
    """A path with the digits that can be seen; markers are small, and keep one more.

    >>> round_path("M 12.345678 0   L -0.5 7.001 ")
    'M 12.35 0 L -0.5 7'
    """
    digits = 1 if len(path) > LONG_PATH else 2
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.{digits}f}".rstrip("0").rstrip("."), path)
    return " ".join(rounded.split())
