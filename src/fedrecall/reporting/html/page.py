"""The page around the studies: its head, its contents, its script."""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from fedrecall._version import __version__
from fedrecall.reporting.html.article import StudyPage
from fedrecall.reporting.html.markup import Html, join, tag


def render_page(articles: Sequence[StudyPage]) -> str:
    """One HTML file that needs nothing else."""
    alone = len(articles) == 1
    title = articles[0].title if alone else f"{len(articles)} studies"
    script = _file("templates/report.js")
    return Template(_file("templates/report.html")).substitute(
        title=join([title]),
        css=_file("templates/report.css"),
        js=script,
        # The browser runs this script and no other, whatever else gets into the page.
        script_hash=f"sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        contents=_contents(articles, alone=alone),
        body=join(article.html(alone=alone) for article in articles),
        data=join(article.data for article in articles),
        version=__version__,
    )


def _contents(articles: Sequence[StudyPage], *, alone: bool) -> Html:
    """Links to the sections of a study, or to each of several."""
    links = [(article.title, article.element_id) for article in articles]
    if alone:
        links = [(part.title, f"{articles[0].element_id}-{part.name}") for part in articles[0].sections]
    items = [tag("li", tag("a", title, href=f"#{place}")) for title, place in links]
    return tag("nav", tag("ul", items), aria_label="Contents")


def _file(name: str) -> str:
    return (files(__package__) / name).read_text()
