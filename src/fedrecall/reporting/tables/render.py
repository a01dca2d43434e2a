"""Tables and their renderings: terminal, Markdown, CSV, LaTeX and plain data."""

import csv
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrecall.studies.study import slug

COLUMN_GAP = 2  # characters between two columns

HEADER_WIDTH = 14  # characters; a longer column title is wrapped unless the cells below are wider


class TableCell(NamedTuple):
    """Cell of a table."""

    lines: tuple[str, ...]  # as displayed: the measurement, below it what it is compared with
    numbers: Mapping[str, float | None] = {}  # the unrounded numbers, the main one first

    @property
    def value(self) -> float | None:
        """The number by which the cell is sorted."""
        return next(iter(self.numbers.values()), None)


class TableNote(NamedTuple):
    """Note below a table; its kind decides where and how it is displayed."""

    text: str
    kind: Literal["scaled", "seeds", "unfinished", "legend", "erratum", "failure"] = "legend"

    @property
    def is_caution(self) -> bool:
        """True if the note makes the numbers incomparable with those of a paper."""
        return self.kind in ("scaled", "unfinished")


class ReportTable(NamedTuple):
    """Rows of cells under a header; `name` is the stem of its files."""

    name: str
    title: str
    header: tuple[str, ...]  # the first is the title of the column of row names
    rows: tuple[tuple[str, tuple[TableCell, ...]], ...]
    notes: tuple[TableNote, ...] = ()
    fraction: float = 1.0  # share of the study's rounds that was run


def print_table(table: ReportTable, console: Console) -> None:
    """Print a table to a terminal, in as many blocks of columns as its width needs."""
    console.print(Text(table.title, style="bold"))
    for columns in column_blocks(table, console.width):
        console.print()
        console.print(_rich_table(table, columns))
    console.print()
    for note in table.notes:
        console.print(Text(note.text, style="dim"))


def column_blocks(table: ReportTable, width: int) -> list[list[int]]:
    """Split the column numbers into blocks that fit the width beside the row names."""
    names = max(len(name) for name in (table.header[0], *(name for name, _ in table.rows)))
    out: list[list[int]] = [[]]
    used = names
    for i, title in enumerate(table.header[1:]):
        lines = [line for _, cells in table.rows for line in cells[i].lines]
        wide = max([min(len(title), HEADER_WIDTH), *map(len, title.split()), *map(len, lines)], default=0) + COLUMN_GAP
        if out[-1] and used + wide > width:
            out.append([])
            used = names
        out[-1].append(i)
        used += wide
    return out


def _rich_table(table: ReportTable, columns: list[int]) -> Table:
    out = Table(box=None, header_style="bold", pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
    out.add_column(table.header[0], overflow="fold")
    for i in columns:  # a long row name is wrapped, a number never
        widest = max(len(line) for _, cells in table.rows for line in cells[i].lines)
        out.add_column(table.header[1 + i], justify="right", min_width=widest)
    for name, cells in table.rows:
        out.add_row(Text(name), *(_stack_lines(cells[i]) for i in columns))
    return out


def _stack_lines(cell: TableCell) -> Text:
    first, *rest = cell.lines
    return Text.assemble(first, *((f"\n{line}", "dim") for line in rest), no_wrap=True)


def to_dict(table: ReportTable) -> dict[str, Any]:
    """Convert a table to plain data: title, notes, and row -> column -> numbers and displayed text."""
    rows = {
        name: {
            title: dict(cell.numbers) | {"shown": "; ".join(cell.lines)}
            for title, cell in zip(table.header[1:], cells, strict=True)
        }
        for name, cells in table.rows
    }
    return {
        "title": table.title,
        "fraction": table.fraction,
        "rows": rows,
        "notes": [note.text for note in table.notes],
    }


def to_csv(table: ReportTable) -> str:
    """Convert a table to CSV with one line per cell; `fraction` is the share of the rounds that was run."""
    keys = list(dict.fromkeys(key for _, cells in table.rows for cell in cells for key in cell.numbers))
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([table.header[0], "column", *keys, "fraction", "shown"])
    for name, cells in table.rows:
        for title, cell in zip(table.header[1:], cells, strict=True):
            numbers = (*(cell.numbers.get(key) for key in keys), table.fraction)
            writer.writerow([name, title, *("" if n is None else f"{n:.10g}" for n in numbers), "; ".join(cell.lines)])
    return out.getvalue()


def to_markdown(table: ReportTable) -> str:
    """Convert a table to a Markdown pipe table under a heading; the notes follow."""

    def line(*cells: str) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    out = [f"### {table.title}", "", line(*table.header)]
    out.append(line("---", *["---:"] * (len(table.header) - 1)))
    out += [line(name, *("<br>".join(cell.lines) for cell in cells)) for name, cells in table.rows]
    return "\n".join([*out, *(part for note in table.notes for part in ("", note.text))]) + "\n"


def to_latex(table: ReportTable) -> str:
    r"""Convert a table to LaTeX; it requires \usepackage{booktabs}."""
    return "\n".join(_latex_lines(table)) + "\n"


def _latex_lines(table: ReportTable) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{escape_latex(table.title)}}}"
    yield rf"\label{{tab:{slug(table.name)}}}"
    yield rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}"
    yield r"\toprule"
    yield " & ".join(map(escape_latex, table.header)) + r" \\"
    yield r"\midrule"
    for name, cells in table.rows:
        yield " & ".join([escape_latex(name), *map(_latex_cell, cells)]) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"
    for note in table.notes:
        yield rf"\par\footnotesize {escape_latex(note.text)}"
    yield r"\end{table}"


def _latex_cell(cell: TableCell) -> str:
    first, *rest = map(escape_latex, cell.lines)
    if not rest:
        return first
    below = "".join(rf"\\{{\scriptsize {line}}}" for line in rest)
    return rf"\shortstack[r]{{{first}{below}}}"


LATEX_ESCAPES = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"},
    **{c: rf"\{c}" for c in "&%$#_{}"},
    **{c: f"${c}$" for c in "<>|"},
}


def escape_latex(text: str) -> str:
    """Escape plain text for LaTeX; a hyphen before a number becomes a minus sign."""
    plain = "".join(LATEX_ESCAPES.get(c, c) for c in text)
    return re.sub(r"(?<![\w.-])-(?=\d)", "$-$", plain)
