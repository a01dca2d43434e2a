"""The pieces that sections are made of: tables with their files, definitions, listings."""

from collections.abc import Iterable, Mapping, Sequence

from fedrecall.reporting.html.markup import Html, join, macro, tag
from fedrecall.reporting.tables import ReportTable, TableCell
from fedrecall.reporting.tables.render import to_csv, to_latex
from fedrecall.studies.study import slug


def table(content: ReportTable, rows: Sequence[str], identity: str) -> Html:
    """A table that can be sorted, its notes, and its files; a row is known to the toggles by its place in the study.

    Which runs failed is said once, above all tables.
    """
    head = tag("tr", [tag("th", title or "method", scope="col") for title in content.header])
    body = [
        tag("tr", tag("th", name, scope="row"), [_cell(entry) for entry in entries], data_row=rows.index(name))
        for name, entries in content.rows
    ]
    grid = tag(
        "table", tag("caption", tag("span", content.title)), tag("thead", head), tag("tbody", body), class_="sortable"
    )
    return join(
        [
            tag("div", grid, class_="scroll", tabindex="0", role="region", aria_label=content.title),
            bullets((note for note in content.notes if not note.startswith("failed: ")), class_="note"),
            _files(content, identity),
        ]
    )


def notebook_table(content: ReportTable) -> Html:
    """A table for a notebook, which has its own style for tables, and its notes."""
    left, right = (f"text-align: {side}; vertical-align: top; padding: 0.2em 0.8em" for side in ("left", "right"))
    head = [tag("th", title, style=left if at == 0 else right) for at, title in enumerate(content.header)]
    body = [
        tag(
            "tr", tag("th", name, scope="row", style=left), [tag("td", _stacked(each), style=right) for each in entries]
        )
        for name, entries in content.rows
    ]
    grid = tag("table", tag("caption", content.title), tag("thead", tag("tr", head)), tag("tbody", body))
    return join([grid, tag("small", [(note, tag("br")) for note in content.notes], style="opacity: 0.7")])


def _cell(entry: TableCell) -> Html:
    value = None if entry.value is None else f"{entry.value:.10g}"
    return tag("td", _stacked(entry), data_value=value or "")


def _stacked(entry: TableCell) -> Html:
    first, *rest = entry.lines
    return join([first, [(tag("br"), tag("small", line)) for line in rest]])


def _files(content: ReportTable, identity: str) -> Html:
    """The table for a paper and for a spreadsheet: to save, and to copy."""
    forms = (("CSV", "csv", "text/csv", to_csv), ("LaTeX", "tex", "application/x-tex", to_latex))
    links: list[Html] = []
    for label, suffix, kind, render in forms:
        name = f"{identity}-{suffix}"
        links += [
            macro(f"Save {label}", f"{slug(content.name)}.{suffix}", kind, render(content), name),
            copy(f"Copy {label}", name),
        ]
    return tag("p", links, class_="files")


def copy(label: str, source: str) -> Html:
    """A button that copies what another element holds; without the script there is none."""
    return tag("button", label, type="button", class_="copy", data_from=source, hidden=True)


def bullets(texts: Iterable[str], class_: str | None = None) -> Html | None:
    """A list, or nothing."""
    items = [tag("li", text) for text in texts]
    return tag("ul", items, class_=class_) if items else None


def definitions(pairs: Mapping[str, str]) -> Html:
    """Names and what they stand for."""
    return tag("dl", [(tag("dt", name), tag("dd", said)) for name, said in pairs.items()])


def listing(lines: Iterable[str], marked: Iterable[str] = ()) -> Html:
    """Text as it is written, some of its lines marked."""
    chosen = set(marked)
    return tag("pre", tag("code", [(tag("mark", line) if line in chosen else line, "\n") for line in lines]))


def fold(title: str, *content: object, **attributes: object) -> Html:
    """What is opened to be seen."""
    return tag("details", tag("summary", title), *content, **attributes)
