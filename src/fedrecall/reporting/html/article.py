"""One study on the page."""

from typing import NamedTuple

from fedrecall.reporting.html import facts, sections
from fedrecall.reporting.html.charts import chart_data
from fedrecall.reporting.html.markup import Html, data_json, join, tag
from fedrecall.reporting.html.parts import definitions, table
from fedrecall.reporting.html.svg import inline_figure
from fedrecall.reporting.tables import ReportTable, comparison_table, paper_tables
from fedrecall.reporting.tables.cost import cost_table
from fedrecall.reporting.tables.forgetting import forgetting_table
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import FigureSpec

ACCURACY = FigureSpec(form="curves", title="Test accuracy by round")

FORGETTING = FigureSpec(form="curves", title="Forgetting by round", options={"y": "forgetting"})

PARTITION = FigureSpec(form="partition", title="Samples by client and class")


class PageSection(NamedTuple):
    """A titled part of a study; `name` is its address."""

    name: str
    title: str
    content: Html


class StudyPage(NamedTuple):
    """What the page says of a study, the tables in it, and the data that its script draws."""

    element_id: str
    title: str
    toggles: Html | None
    sections: list[PageSection]
    tables: list[ReportTable]
    data: Html

    def html(self, *, alone: bool) -> Html:
        """The article; one of several has its title as heading."""
        level = "h2" if alone else "h3"
        parts = []
        for name, title, content in self.sections:
            place = f"{self.element_id}-{name}"
            heading = tag(level, title, id=f"{place}-title")
            parts.append(tag("section", heading, content, id=place, aria_labelledby=f"{place}-title"))
        first, *rest = parts
        above = None if alone else tag("h2", self.title)
        return tag(
            "article", above, first, self.toggles, rest, id=self.element_id, data_study=f"{self.element_id}-data"
        )


class Composer:
    """Writes a study's sections one by one, and numbers what is in them."""

    def __init__(self, results: StudyResults, identity: str) -> None:
        self.results, self.element_id = results, identity
        self.tables: list[ReportTable] = []
        self.figures = 0

    def show(self, *tables: ReportTable) -> Html:
        """Tables, each under its own address."""
        rows, out = list(self.results.study.rows), []
        for content in tables:
            self.tables.append(content)
            out.append(table(content, rows, f"{self.element_id}-table-{len(self.tables)}"))
        return join(out)

    def draw(self, *pictures: FigureSpec) -> Html:
        """Figures, each with names of its own."""
        out = []
        for picture in pictures:
            self.figures += 1
            out.append(inline_figure(self.results, picture, f"{self.element_id}-figure-{self.figures}"))
        return join(out)

    def article(self) -> StudyPage:
        """All of it, in the order of reading."""
        results, study = self.results, self.results.study
        data = chart_data(results)
        parts = [PageSection("overview", "What was run", sections.overview(results))]
        if study.paper is not None:
            parts.append(PageSection("paper", "Beside the paper", self.show(*paper_tables(results))))
        if results.finished_runs():
            compared = self.show(*(comparison_table(results, column) for column in study.columns))
            parts.append(PageSection("comparison", "Comparison" if len(study.rows) > 1 else "Result", compared))
        if data["measures"]:
            drawn = any(picture.form == "curves" for picture in study.figures)
            static = tag("p", "The curves are among the figures below.") if drawn else self.draw(ACCURACY)
            parts.append(PageSection("curves", "Curves", sections.curves(data, self.element_id, static)))
        if study.figures:
            parts.append(PageSection("figures", "Figures", self.draw(*study.figures)))
        lost = forgetting_table(results)
        if lost is not None:
            parts.append(PageSection("forgetting", "Forgetting", join([self.show(lost), self.draw(FORGETTING)])))
        if results.finished_runs():
            if not any(picture.form == "partition" for picture in study.figures):
                parts.append(PageSection("partition", "Who had which classes", self.draw(PARTITION)))
            parts.append(PageSection("cost", "Cost", self.show(cost_table(results))))
        parts.append(PageSection("repeat", "Run it again", sections.command_section(results, self.element_id)))
        if found := facts.environment_table(results):
            parts.append(PageSection("environment", "Environment", definitions(found)))
        parts.append(PageSection("configuration", "Configuration", sections.configuration(results)))
        embedded = data_json(f"{self.element_id}-data", data)
        return StudyPage(self.element_id, study.title, sections.toggles(data["rows"]), parts, self.tables, embedded)
