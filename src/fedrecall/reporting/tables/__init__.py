"""Tables of a study: rows compared with the first one, and measurements beside the numbers of a paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.reporting.tables.comparison import comparison_table
from fedrecall.reporting.tables.metrics import client_tables
from fedrecall.reporting.tables.paper import paper_tables
from fedrecall.reporting.tables.render import (
    ReportTable,
    TableCell,
    TableNote,
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
    "TableNote",
    "all_tables",
    "client_tables",
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
    """Return all tables of a study: those of the paper first, one comparison per column, then those of the clients."""
    paper = paper_tables(results) if results.study.paper is not None else []
    return paper + [comparison_table(results, column) for column in results.study.columns] + client_tables(results)


def write_tables(results: StudyResults) -> list[Path]:
    """Write every table as CSV, LaTeX and Markdown to `tables` in the study's folder; return the paths."""
    return write_text_files(table_files(all_tables(results), results.folder / "tables"))


def table_files(tables: Sequence[ReportTable], folder: Path, prefix: str = "") -> dict[Path, str]:
    """Render tables in every format; return the texts by path, with `prefix` before each file name."""
    return {
        folder / f"{prefix}{slug(table.name)}.{suffix}": render(table)
        for table in tables
        for suffix, render in RENDERERS.items()
    }


def write_text_files(files: Mapping[Path, str]) -> list[Path]:
    """Write texts to their paths, creating folders as needed; return the paths."""
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
        except OSError as error:
            message = f"{path}: cannot write the file: {error.strerror or error}"
            raise UserError("report.cannot_write", message, str(path), "choose a folder that can be written") from None
    return list(files)
