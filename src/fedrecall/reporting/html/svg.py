"""Figures as inline SVG, with ids that are unique on the page."""

import re
from io import BytesIO
from typing import NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from fedrecall.errors import UserError
from fedrecall.reporting.figures import draw
from fedrecall.reporting.figures.layout import METADATA
from fedrecall.reporting.figures.style import figure_style
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import FigureSpec

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

PIXELS_PER_POINT = 1.4 * 96 / 72  # enlarged: figures are sized for paper, which is read from nearer than a screen

LONG_PATH = 500  # characters; a path of this length is a curve, a shorter one a marker

MIN_SCALE = 0.6  # smallest readable fraction of a figure's width; on a narrower screen it scrolls

CONTROL_CHARACTERS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # not allowed in XML; matplotlib writes them


class PageFigure(NamedTuple):
    """Drawn figure, or the reason why it could not be drawn."""

    title: str
    caption: str
    svg: Markup | None
    error: str = ""


def inline_figure(results: StudyResults, spec: FigureSpec, element_id: str) -> PageFigure:
    """Draw a figure without its title, which is its caption on the page."""
    title = spec.title or spec.form
    try:
        with figure_style():
            content = BytesIO()
            draw(results, spec.model_copy(update={"title": ""})).savefig(
                content, format="svg", metadata=METADATA["svg"]
            )
    except UserError as error:
        return PageFigure(title, spec.title, None, str(error))
    return PageFigure(title, spec.title, inline_svg(content.getvalue(), element_id, title))


def inline_svg(svg: bytes, element_id: str, label: str) -> Markup:
    """Convert an SVG file that matplotlib wrote to an element of the page; its ids begin with `element_id`."""
    root = ElementTree.fromstring(CONTROL_CHARACTERS.sub(b" ", svg))
    for parent in root.iter():
        for child in list(parent):
            # A style element would apply to the whole page; metadata is for files.
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{element_id}-{value}")
            elif key == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(key, f"#{element_id}-{value[1:]}")
            elif key == "d":
                element.set(key, round_path(value))
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{element_id}-"))
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
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # ElementTree escapes text and attributes


def round_path(path: str) -> str:
    """Round a path to visible digits; markers are small and keep one more.

    >>> round_path("M 12.345678 0   L -0.5 7.001 ")
    'M 12.35 0 L -0.5 7'
    """
    digits = 1 if len(path) > LONG_PATH else 2
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.{digits}f}".rstrip("0").rstrip("."), path)
    return " ".join(rounded.split())
