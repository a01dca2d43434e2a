"""Reports: one HTML page of what studies and runs gave, and their tables as files beside it."""

from collections.abc import Sequence
from pathlib import Path

from fedrecall.errors import UserError
from fedrecall.reporting.html.article import Composer
from fedrecall.reporting.html.page import render_page
from fedrecall.reporting.tables import table_files, write_text_files
from fedrecall.studies.results import StudyResults, load_results, runs_as_study

REPORT_FILE = "report.html"


def write_report(folders: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Write the page (by default into the folder, of several into this one) and `tables` beside it.

    Returns the paths of what was written, the page first.
    """
    if not folders:
        raise UserError(
            "report.no_folder", "no folder to report on", hint="name the folder of a study or a run directory"
        )
    found = _results(folders)
    articles = [Composer(results, f"study-{at}").article() for at, results in enumerate(found, 1)]
    out = out or (folders[0] / REPORT_FILE if len(folders) == 1 else Path(REPORT_FILE))
    files = {out: render_page(articles)}
    for article in articles:  # the tables of several studies are told apart by a number
        above = "" if len(articles) == 1 else f"{article.element_id}-"
        files |= table_files(article.tables, out.parent / "tables", above)
    return write_text_files(files)


def _results(folders: Sequence[Path]) -> list[StudyResults]:
    """Each study by itself, and all run directories together."""
    found = [load_results(folder) for folder in folders]
    runs = [results.folder for results in found if results.is_single_run]
    studies = [results for results in found if not results.is_single_run]
    return [*studies, runs_as_study(runs)] if len(runs) > 1 else found
