"""One study on the page."""

from typing import NamedTuple

from fedrecall.reporting.html import facts, sections
from fedrecall.reporting.html.charts import chart_data
from fedrecall.reporting.html.markup import Html, data_json, join, tag
from fedrecall.reporting.html.parts import definitions, table
from fedrecall.reporting.html.svg import figure
from fedrecall.reporting.tables import Table, comparison, paper_tables
from fedrecall.reporting.tables.cost import spent
from fedrecall.reporting.tables.forgetting import forgetting
from fedrecall.studies.results import Results
from fedrecall.studies.study import Picture

ACCURACY = Picture(form="curves", title="Test accuracy by round")

FORGETTING = Picture(form="curves", title="Forgetting by round", options={"y": "forgetting"})

PARTITION = Picture(form="partition", title="Samples by client and class")


class Section(NamedTuple):
    """A titled part of a study; `name` is its address."""

    name: str
    title: str
    content: Html


class Article(NamedTuple):
    """What the page says of a study, the tables in it, and the data that its script draws."""

    identity: str
    title: str
    toggles: Html | None
    sections: list[Section]
    tables: list[Table]
    data: Html

    def html(self, *, alone: bool) -> Html:
        """The article; one of several has its title as heading."""
        level = "h2" if alone else "h3"
        parts = []
        for name, title, content in self.sections:
            place = f"{self.identity}-{name}"
            heading = tag(level, title, id=f"{place}-title")
            parts.append(tag("section", heading, content, id=place, aria_labelledby=f"{place}-title"))
        first, *rest = parts
        above = None if alone else tag("h2", self.title)
        return tag("article", above, first, self.toggles, rest, id=self.identity, data_study=f"{self.identity}-data")


class Composer:
    """Writes a study's sections one by one, and numbers what is in them."""

    def __init__(self, results: Results, identity: str) -> None:
        self.results, self.identity = results, identity
        self.tables: list[Table] = []
        self.figures = 0

    def show(self, *tables: Table) -> Html:
        """Tables, each under its own address."""
        rows, out = list(self.results.study.rows), []
        for content in tables:
            self.tables.append(content)
            out.append(table(content, rows, f"{self.identity}-table-{len(self.tables)}"))
        return join(out)

    def draw(self, *pictures: Picture) -> Html:
        """Figures, each with names of its own."""
        out = []
        for picture in pictures:
            self.figures += 1
            out.append(figure(self.results, picture, f"{self.identity}-figure-{self.figures}"))
        return join(out)

    def article(self) -> Article:
        """All of it, in the order of reading."""
        results, study = self.results, self.results.study
        data = chart_data(results)
        parts = [Section("overview", "What was run", sections.overview(results))]
        if study.paper is not None:
            parts.append(Section("paper", "Beside the paper", self.show(*paper_tables(results))))
        if results.outcomes():
            compared = self.show(*(comparison(results, column) for column in study.columns))
            parts.append(Section("comparison", "Comparison" if len(study.rows) > 1 else "Result", compared))
        if data["measures"]:
            drawn = any(picture.form == "curves" for picture in study.figures)
            static = tag("p", "The curves are among the figures below.") if drawn else self.draw(ACCURACY)
            parts.append(Section("curves", "Curves", sections.curves(data, self.identity, static)))
        if study.figures:
            parts.append(Section("figures", "Figures", self.draw(*study.figures)))
        lost = forgetting(results)
        if lost is not None:
            parts.append(Section("forgetting", "Forgetting", join([self.show(lost), self.draw(FORGETTING)])))
        if results.outcomes():
            if not any(picture.form == "partition" for picture in study.figures):
                parts.append(Section("partition", "Who had which classes", self.draw(PARTITION)))
            parts.append(Section("cost", "Cost", self.show(spent(results))))
        parts.append(Section("repeat", "Run it again", sections.again(results, self.identity)))
        if found := facts.environment(results):
            parts.append(Section("environment", "Environment", definitions(found)))
        parts.append(Section("configuration", "Configuration", sections.configuration(results)))
        embedded = data_json(f"{self.identity}-data", data)
        return Article(self.identity, study.title, sections.toggles(data["rows"]), parts, self.tables, embedded)
