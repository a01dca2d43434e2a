"""A table, and how it is written: on a terminal, as Markdown, CSV and LaTeX."""

import csv
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

COLUMN_GAP = 2  # columns of space between two columns of a table

HEADER_WIDTH = 14  # a longer name of a column is broken, where its entries are not wider anyway


class TableCell(NamedTuple):
    """What stands where a row and a column meet."""

    lines: tuple[str, ...]  # as shown: the measurement, below it what it is compared with
    numbers: Mapping[str, float | None] = {}  # what is behind it, the main one first

    @property
    def value(self) -> float | None:
        """The number that the entry is sorted by."""
        return next(iter(self.numbers.values()), None)


class ReportTable(NamedTuple):
    """Rows of entries under a header; `name` is that of its files."""

    name: str
    title: str
    header: tuple[str, ...]  # the first is that of the rows' names
    rows: tuple[tuple[str, tuple[TableCell, ...]], ...]
    notes: tuple[str, ...] = ()
    fraction: float = 1.0  # of the rounds


def print_table(table: ReportTable, console: Console) -> None:
    """Print it, in as many blocks of columns as the width asks for."""
    console.print(Text(table.title, style="bold"))
    for columns in column_blocks(table, console.width):
        console.print()
        console.print(_grid(table, columns))
    console.print()
    for note in table.notes:
        console.print(Text(note, style="dim"))


def column_blocks(table: ReportTable, width: int) -> list[list[int]]:
    """The numbers of the columns, in blocks that are no wider than a terminal beside the names of the rows."""
    names = max(len(name) for name in (table.header[0], *(name for name, _ in table.rows)))
    out: list[list[int]] = [[]]
    used = names
    for i, title in enumerate(table.header[1:]):
        shown = [line for _, entries in table.rows for line in entries[i].lines]
        wide = max([min(len(title), HEADER_WIDTH), *map(len, title.split()), *map(len, shown)], default=0) + COLUMN_GAP
        if out[-1] and used + wide > width:
            out.append([])
            used = names
        out[-1].append(i)
        used += wide
    return out


def _grid(table: ReportTable, columns: list[int]) -> Grid:
    grid = Grid(box=None, header_style="bold", pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
    grid.add_column(table.header[0], no_wrap=True)
    for i in columns:
        grid.add_column(table.header[1 + i], justify="right")
    for name, entries in table.rows:
        grid.add_row(Text(name), *(_stacked(entries[i]) for i in columns))
    return grid


def _stacked(entry: TableCell) -> Text:
    first, *rest = entry.lines
    return Text.assemble(first, *((f"\n{line}", "dim") for line in rest), no_wrap=True)


def to_dict(table: ReportTable) -> dict[str, Any]:
    """Plain data for a script: title, notes, and row -> column -> numbers, with the words where there are none."""
    rows = {
        name: {
            title: dict(entry.numbers) | {"shown": "; ".join(entry.lines)}
            for title, entry in zip(table.header[1:], entries, strict=True)
        }
        for name, entries in table.rows
    }
    return {"title": table.title, "fraction": table.fraction, "rows": rows, "notes": table.notes}


def to_csv(table: ReportTable) -> str:
    """One line an entry, plain numbers; `fraction` is the share of the rounds that was run."""
    keys = list(dict.fromkeys(key for _, entries in table.rows for entry in entries for key in entry.numbers))
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([table.header[0], "column", *keys, "fraction", "shown"])
    for name, entries in table.rows:
        for title, entry in zip(table.header[1:], entries, strict=True):
            numbers = (*(entry.numbers.get(key) for key in keys), table.fraction)
            writer.writerow([name, title, *("" if n is None else f"{n:.10g}" for n in numbers), "; ".join(entry.lines)])
    return out.getvalue()


def to_markdown(table: ReportTable) -> str:
    """A pipe table under a heading; below it the notes."""

    def line(*cells: str) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    out = [f"### {table.title}", "", line(*table.header)]
    out.append(line("---", *["---:"] * (len(table.header) - 1)))
    out += [line(name, *("<br>".join(entry.lines) for entry in entries)) for name, entries in table.rows]
    return "\n".join([*out, *(part for note in table.notes for part in ("", note))]) + "\n"


def to_latex(table: ReportTable) -> str:
    r"""A table for a paper; it needs \usepackage{booktabs}."""
    return "\n".join(_latex(table)) + "\n"


def _latex(table: ReportTable) -> Iterator[str]:
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{escape_latex(table.title)}}}"
    yield rf"\label{{tab:{table.name}}}"
    yield rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}"
    yield r"\toprule"
    yield " & ".join(map(escape_latex, table.header)) + r" \\"
    yield r"\midrule"
    for name, entries in table.rows:
        yield " & ".join([escape_latex(name), *map(_latex_entry, entries)]) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"
    for note in table.notes:
        yield rf"\par\footnotesize {escape_latex(note)}"
    yield r"\end{table}"


def _latex_entry(entry: TableCell) -> str:
    first, *rest = map(escape_latex, entry.lines)
    if not rest:
        return first
    below = "".join(rf"\\{{\scriptsize {line}}}" for line in rest)
    return rf"\shortstack[r]{{{first}{below}}}"


LATEX_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}

LATEX_ESCAPES |= {c: rf"\{c}" for c in "&%$#_{}"} | {"<": "$<$", ">": "$>$", "|": "$|$"}


def escape_latex(text: str) -> str:
    """Plain text as LaTeX; a minus before a number is a minus, not a hyphen."""
    plain = "".join(LATEX_ESCAPES.get(c, c) for c in text)
    return re.sub(r"(?<![\w.-])-(?=\d)", "$-$", plain)
