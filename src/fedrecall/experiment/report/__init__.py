"""Reports: one HTML page of what studies and runs gave, and their tables as files beside it."""

from collections.abc import Sequence
from pathlib import Path

from fedrecall.errors import UserError
from fedrecall.experiment.report.article import Article, Composer
from fedrecall.experiment.report.page import page
from fedrecall.experiment.report.runs import together
from fedrecall.experiment.results import Results, load
from fedrecall.experiment.study import slug
from fedrecall.experiment.tables.render import to_csv, to_latex
from fedrecall.files import write

FILE = "report.html"
FORMS = {"csv": to_csv, "tex": to_latex}


def write_report(folders: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Write the page (by default into the folder, of several into this one) and `tables` beside it.

    Returns the paths of what was written, the page first.
    """
    if not folders:
        raise UserError("name the folder of a study, or a run directory")
    found = _results(folders)
    articles = [Composer(results, f"study-{at}").article() for at, results in enumerate(found, 1)]
    out = out or (folders[0] / FILE if len(folders) == 1 else Path(FILE))
    files = {out: page(articles)} | _tables(articles, out.parent / "tables")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write the report to {error.filename or out}: {error.strerror}") from None
    return list(files)


def _results(folders: Sequence[Path]) -> list[Results]:
    """Each study by itself, and all run directories together."""
    found = [load(folder) for folder in folders]
    runs = [results.folder for results in found if results.single]
    studies = [results for results in found if not results.single]
    return [*studies, together(runs)] if len(runs) > 1 else found


def _tables(articles: Sequence[Article], folder: Path) -> dict[Path, str]:
    """Every table in every form; those of several studies are told apart by a number."""
    out = {}
    for article in articles:
        above = "" if len(articles) == 1 else f"{article.identity}-"
        for content in article.tables:
            for suffix, render in FORMS.items():
                out[folder / f"{above}{slug(content.name)}.{suffix}"] = render(content)
    return out
