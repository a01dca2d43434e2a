"""HTML report: one page about studies and runs, and its tables as files beside it."""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedrecall._version import __version__
from fedrecall.errors import UserError
from fedrecall.reporting.html.charts import MAX_POINTS
from fedrecall.reporting.html.page import StudyPage, build_study_page
from fedrecall.reporting.tables import ReportTable, table_files, write_text_files
from fedrecall.reporting.tables.render import to_csv, to_latex
from fedrecall.studies.results import StudyResults, load_results, runs_as_study
from fedrecall.studies.study import slug

REPORT_FILE = "report.html"

TEMPLATES = Path(__file__).parent / "templates"


def write_report(folders: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Write the page and, beside it, the folder `tables`; return the written paths, the page first.

    Without `out` the page of one folder is written into it, the page of several into the working directory.
    """
    if not folders:
        raise UserError(
            "report.no_folder", "no folder to report on", hint="name the folder of a study or a run directory"
        )
    found = _load(folders)
    studies = [build_study_page(results, f"study-{number}") for number, results in enumerate(found, 1)]
    out = out or (folders[0] / REPORT_FILE if len(folders) == 1 else Path(REPORT_FILE))
    files = {out: render_page(studies)}
    for study in studies:
        prefix = "" if len(studies) == 1 else f"{study.element_id}-"  # table names repeat between studies
        files |= table_files(study.tables, out.parent / "tables", prefix)
    return write_text_files(files)


def render_page(studies: Sequence[StudyPage]) -> str:
    """Render one HTML file that needs no other file and no network."""
    script = (TEMPLATES / "report.js").read_text()
    return environment().get_template("report.html.j2").render(
        studies=studies,
        title=studies[0].title if len(studies) == 1 else f"{len(studies)} studies",
        style=Markup((TEMPLATES / "report.css").read_text()),
        script=Markup(script),
        # The policy allows this script by its hash: a browser runs no other, even if markup were injected.
        script_hash=f"sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        max_points=MAX_POINTS,
        version=__version__,
    )  # fmt: skip


def notebook_table(table: ReportTable) -> str:
    """Render a table and its notes for a notebook, which has its own style for tables."""
    return str(environment().get_template("macros.html.j2").module.notebook_table(table))  # type: ignore[attr-defined]


@cache
def environment() -> Environment:
    """Make the Jinja environment of the templates: every value is escaped, an unknown name is an error."""
    made = Environment(
        loader=PackageLoader(__name__), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"csv": to_csv, "latex": to_latex, "slug": slug}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def _load(folders: Sequence[Path]) -> list[StudyResults]:
    """Load each study by itself and all run directories as one study."""
    found = [load_results(folder) for folder in folders]
    runs = [results.folder for results in found if results.is_single_run]
    studies = [results for results in found if not results.is_single_run]
    return [*studies, runs_as_study(runs)] if len(runs) > 1 else found
