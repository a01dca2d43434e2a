"""The sections of a study that are more than a table or a figure."""

from typing import Any

import tomli_w

from fedrecall.reporting.html import facts
from fedrecall.reporting.html.charts import MAX_POINTS
from fedrecall.reporting.html.command import repeat
from fedrecall.reporting.html.markup import Html, join, tag
from fedrecall.reporting.html.parts import bullets, copy, definitions, fold, listing
from fedrecall.reporting.tables.cells import failure_notes, scope_notes
from fedrecall.studies.results import RunCollection, StudyResults

MAX_LISTED_RUNS = 30  # runs that are still to be made

CHART_HELP = (
    "Lines are means over seeds, bands are one sample standard deviation; a run that broke off is shown only where all"
    " of a row's did. Point at a round, or use the arrow keys, to read its values."
    f" A line has at most {MAX_POINTS} points: of longer runs it shows every so many rounds."
)


def overview(results: StudyResults) -> Html:
    """What a reader must know before the numbers: how much of it was run, and with which settings."""
    study = results.study
    found = {"study": study.id}
    if study.paper is not None:
        found["paper"] = study.paper
    for name, of in (("methods", study.rows), ("columns", study.columns)):
        if len(of) > 1:
            found[name] = facts.join_limited(of)
    return join(
        [
            tag("ul", [tag("li", text, class_=_caution(text)) for text in scope_notes(results)], class_="badges"),
            unfinished_runs(results),
            failed_runs(results),
            [tag("p", text) for text in study.about.split("\n\n") if text.strip()],
            definitions(found | facts.main_settings(results)),
        ]
    )


def _caution(text: str) -> str | None:
    """What makes numbers incomparable with a paper's is to be seen at once."""
    return "caution" if "scaled" in text or "still to be made" in text else None


def unfinished_runs(results: StudyResults) -> Html | None:
    left = [f"{cell.row}, {cell.column}, seed {cell.seed}" for cell in results.unfinished]
    if not left and results.finished_runs():
        return None
    if not left:
        return tag("p", "This run is not finished: there is nothing to show of it yet.", class_="warning")
    title = f"{len(left)} of {len(results.study.cells())} runs are still to be made; means are over the others"
    more = [f"and {len(left) - MAX_LISTED_RUNS} more"] if len(left) > MAX_LISTED_RUNS else []
    return tag("div", fold(title, bullets([*left[:MAX_LISTED_RUNS], *more])), class_="warning")


def failed_runs(results: StudyResults) -> Html | None:
    texts = [text.removeprefix("failed: ") for text in failure_notes(results)]
    if not texts:
        return None
    return tag("div", fold(f"{len(texts)} runs broke off", bullets(texts), open=len(texts) <= 3), class_="warning")


def toggles(rows: list[dict[str, str]]) -> Html | None:
    """Which rows are shown, in curves and tables; with their colours it is the curves' legend."""
    if len(rows) < 2:
        return None
    boxes = [
        tag("label", tag("input", type="checkbox", checked=True, value=at), _swatch(row), row["name"])
        for at, row in enumerate(rows)
    ]
    return tag("fieldset", tag("legend", "Shown in curves and tables"), boxes, class_="toggles", hidden=True)


def _swatch(row: dict[str, str]) -> Html:
    """A piece of a row's line."""
    line = tag("line", x1=0, x2=26, y1=6, y2=6, stroke_dasharray=row["dash"] or None)
    style = f"--colour:{row['colour']}"
    return tag("svg", line, width=26, height=12, aria_hidden="true", class_="swatch", style=style)


def curves(data: dict[str, Any], identity: str, static: Html) -> Html:
    """Panels for the script to draw in; without it, the static figure stays."""
    radios = [
        tag("label", tag("input", type="radio", name=f"{identity}-measure", value=at, checked=at == 0), measure["name"])
        for at, measure in enumerate(data["measures"])
    ]
    choice = tag("fieldset", tag("legend", "Measure"), radios, class_="measures")
    several = len(data["panels"]) > 1
    panels = [
        tag("figure", tag("figcaption", panel["name"]) if several else None, tag("div", class_="chart"))
        for panel in data["panels"]
    ]
    legend = [tag("li", _swatch(row), row["name"], data_row=at) for at, row in enumerate(data["rows"])]
    live = (
        choice if len(radios) > 1 else None,
        tag("ul", legend, class_="legend", aria_label="Legend") if len(legend) > 1 else None,
        tag("div", panels, class_="charts"),
        tag("p", CHART_HELP, class_="note"),
    )
    return join([tag("div", live, class_="live", hidden=True), tag("div", static, class_="static")])


def command_section(results: StudyResults, identity: str) -> Html:
    """The command that repeats the study."""
    name = f"{identity}-command"
    goes_on = f"With --out {results.folder} it makes the runs that are still to be made."
    return join(
        [
            tag("pre", tag("code", repeat(results), id=name)),
            tag("p", copy("Copy", name), class_="files"),
            tag("p", goes_on, class_="note") if results.unfinished and not isinstance(results, RunCollection) else None,
        ]
    )


def configuration(results: StudyResults) -> Html:
    """Every row's complete configuration, what differs between them marked; and what the columns set."""
    texts = {row: tomli_w.dumps(tables).splitlines() for row, tables in facts.configurations(results).items()}
    common = set.intersection(*map(set, texts.values()))
    rows = [
        fold(row, listing(lines, [line for line in lines if line not in common]), data_row=at)
        for at, (row, lines) in enumerate(texts.items())
    ]
    columns = [
        fold(column, listing(tomli_w.dumps(tables).splitlines()))
        for column, tables in results.study.columns.items()
        if tables
    ]
    first = next(iter(results.study.columns))
    where = f" in the column {first}" if len(results.study.columns) > 1 else ""
    marked = "; marked is what is not the same in all of them" if len(rows) > 1 else ""
    return join(
        [
            tag("p", f"Of each method, the complete configuration of its first run{where}{marked}.", class_="note"),
            rows,
            tag("p", "What the columns set:", class_="note") if columns else None,
            columns,
        ]
    )
