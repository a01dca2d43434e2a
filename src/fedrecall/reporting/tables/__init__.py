"""The tables of a study: rows compared with the first one, and measurements beside what a paper printed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrecall.errors import UserError
from fedrecall.files import write
from fedrecall.reporting.tables.comparison import comparison
from fedrecall.reporting.tables.paper import paper_tables
from fedrecall.reporting.tables.render import Entry, Table, show, to_csv, to_latex, to_markdown, written_out
from fedrecall.studies.results import Results
from fedrecall.studies.study import slug

__all__ = [
    "Entry", "Table", "comparison", "paper_tables", "show", "table_files", "tables", "write_tables", "write_texts",
    "written_out",
]  # fmt: skip

FORMS = {"csv": to_csv, "tex": to_latex, "md": to_markdown}


def tables(results: Results) -> list[Table]:
    """All tables of a study: a paper's own first, then one comparison a column."""
    own = paper_tables(results) if results.study.paper is not None else []
    return own + [comparison(results, column) for column in results.study.columns]


def write_tables(results: Results) -> list[Path]:
    """Every table as CSV, LaTeX and Markdown in `tables` of the study's folder."""
    return write_texts(table_files(tables(results), results.folder / "tables"))


def table_files(of: Sequence[Table], folder: Path, above: str = "") -> dict[Path, str]:
    """What is written of tables, in every form; `above` begins all names."""
    return {folder / f"{above}{slug(t.name)}.{end}": form(t) for t in of for end, form in FORMS.items()}


def write_texts(files: Mapping[Path, str]) -> list[Path]:
    """Write files, in folders that are made for them."""
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, text.encode())
        except OSError as error:
            why = f"{path}: cannot write the file: {error.strerror or error}"
            raise UserError("report.cannot_write", why, str(path), "choose a folder that can be written") from None
    return list(files)
