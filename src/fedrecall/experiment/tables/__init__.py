"""The tables of a study: rows compared with the first one, and measurements beside what a paper printed."""

from pathlib import Path

from fedrecall.experiment.results import Results
from fedrecall.experiment.tables.comparison import comparison
from fedrecall.experiment.tables.printed import paper_tables
from fedrecall.experiment.tables.render import Entry, Table, show, to_csv, to_latex, to_markdown
from fedrecall.files import write

__all__ = ["Entry", "Table", "comparison", "paper_tables", "show", "tables", "write_tables"]


def tables(results: Results) -> list[Table]:
    """All tables of a study: a paper's own first, then one comparison a column."""
    own = paper_tables(results) if results.study.paper is not None else []
    return own + [comparison(results, column) for column in results.study.columns]


def write_tables(results: Results) -> list[Path]:
    """Every table as CSV, LaTeX and Markdown in `tables` of the study's folder."""
    folder = results.folder / "tables"
    folder.mkdir(exist_ok=True)
    forms = {"csv": to_csv, "tex": to_latex, "md": to_markdown}
    texts = {folder / f"{table.name}.{end}": form(table) for table in tables(results) for end, form in forms.items()}
    for path, text in texts.items():
        write(path, text.encode())
    return list(texts)
