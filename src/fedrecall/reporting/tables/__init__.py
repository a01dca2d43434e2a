"""The tables of a study: rows compared with the first one, and measurements beside what a paper printed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.reporting.tables.comparison import comparison_table
from fedrecall.reporting.tables.paper import paper_tables
from fedrecall.reporting.tables.render import (
    ReportTable,
    TableCell,
    print_table,
    to_csv,
    to_dict,
    to_latex,
    to_markdown,
)
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import slug

__all__ = [
    "ReportTable",
    "TableCell",
    "all_tables",
    "comparison_table",
    "paper_tables",
    "print_table",
    "table_files",
    "to_dict",
    "write_tables",
    "write_text_files",
]  # fmt: skip

RENDERERS = {"csv": to_csv, "tex": to_latex, "md": to_markdown}


def all_tables(results: StudyResults) -> list[ReportTable]:
    """All tables of a study: a paper's own first, then one comparison a column."""
    own = paper_tables(results) if results.study.paper is not None else []
    return own + [comparison_table(results, column) for column in results.study.columns]


def write_tables(results: StudyResults) -> list[Path]:
    """Every table as CSV, LaTeX and Markdown in `tables` of the study's folder."""
    return write_text_files(table_files(all_tables(results), results.folder / "tables"))


def table_files(of: Sequence[ReportTable], folder: Path, prefix: str = "") -> dict[Path, str]:
    """What is written of tables, in every form; `above` begins all names."""
    return {folder / f"{prefix}{slug(t.name)}.{end}": form(t) for t in of for end, form in RENDERERS.items()}


def write_text_files(files: Mapping[Path, str]) -> list[Path]:
    """Write files, in folders that are made for them."""
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
        except OSError as error:
            why = f"{path}: cannot write the file: {error.strerror or error}"
            raise UserError("report.cannot_write", why, str(path), "choose a folder that can be written") from None
    return list(files)
