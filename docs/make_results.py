"""`python docs/make_results.py FOLDER...` makes docs/results.md from the folders of reproductions."""

import shutil
import sys
from itertools import combinations
from pathlib import Path
from statistics import fmean

from fedrecall.experiment.figures import draw_all
from fedrecall.experiment.report.command import repeat
from fedrecall.experiment.results import Results, load
from fedrecall.experiment.tables import tables
from fedrecall.experiment.tables.render import to_markdown

DOCS = Path(__file__).parent
SHOWN = ("curves",)  # figures on the page
INTRODUCTION = """# Results

What parts of the papers' tables give here, made by the commands below on two processor cores, and put on this page by
`python docs/make_results.py`. The rounds are a small fraction of the papers', because a table takes two cores hours to
days (`fedrecall reproduce --list` says how long). A printed number of the full length stands beside a measurement of a
few rounds: compare the order of the methods, not the numbers."""


def section(results: Results) -> str:
    """One reproduction."""
    study = results.study
    parts = [f"## {study.title}", study.about.strip(), f"```\n{repeat(results)}\n```"]
    # the page has one level of headings more than a table by itself
    parts += [to_markdown(table).strip().replace("### ", "#### ", 1) for table in tables(results)]
    parts += [agreement(results, column) for column in study.columns]
    drawn = draw_all(results)
    for name in SHOWN:
        if name in drawn.figures:
            drawing = drawn.figures[name]
            source = next(path for path in drawing.paths if path.suffix == ".png")
            target = DOCS / "images" / f"results-{study.id}-{name}.png"
            shutil.copyfile(source, target)
            parts.append(f"![{drawing.title}](images/{target.name})")
    return "\n\n".join(parts)


def agreement(results: Results, column: str) -> str:
    """Which pairs of methods come in the printed order, by the mean over seeds and seed by seed."""
    study, at = results.study, list(results.study.columns).index(column)
    printed = {row: float(line[at]) for row, line in study.printed[study.measure].items() if line[at] is not None}
    measured = {row: [o.summary[study.measure] for o in results.outcomes(row, column)] for row in printed}
    told = {row: values for row, values in measured.items() if len(values) == len(study.seeds)}
    same, other = [], []
    for a, b in combinations(told, 2):
        low, high = sorted((a, b), key=lambda row: printed[row])
        seeds = sum(x < y for x, y in zip(told[low], told[high], strict=True))
        means = [fmean(told[row]) for row in (low, high)]
        text = f"{high} above {low} ({seeds} of {len(study.seeds)} seeds)"
        (same if means[0] < means[1] else other).append(text)
    pairs = len(same) + len(other)
    lines = [f"**Agreement, {column}.** Of {pairs} pairs of methods, {len(same)} come in the printed order."]
    if same:
        lines.append(f"As printed: {'; '.join(same)}.")
    if other:
        lines.append(f"Not as printed: {'; '.join(other)}.")
    return " ".join(lines)


if __name__ == "__main__":
    page = "\n\n".join([INTRODUCTION, *(section(load(Path(folder))) for folder in sys.argv[1:])])
    (DOCS / "results.md").write_text(page + "\n")
