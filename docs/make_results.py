"""Writer of docs/results.md: `python docs/make_results.py FOLDER...` reads the folders of reproductions."""

import shutil
import sys
from itertools import combinations
from pathlib import Path
from statistics import fmean

from fedrecall.reporting.figures import draw_all
from fedrecall.reporting.tables import all_tables
from fedrecall.reporting.tables.cells import run_group
from fedrecall.reporting.tables.render import to_markdown
from fedrecall.studies.results import StudyResults, load_results
from fedrecall.studies.statistics import paired_difference

DOCS = Path(__file__).parent
FIGURES = ("curves",)  # shown on the page
INTRODUCTION = """# Results

This page shows parts of the papers' tables, computed by the commands below on two processor cores and written by
`python docs/make_results.py`. The runs have a small fraction of the papers' rounds, because a complete table takes
hours to days on two cores (`fedrecall reproduce --list` prints the estimates). The tables show measurements after few
rounds beside the papers' numbers after all rounds: compare the order of the methods, not the numbers. The seconds per
round are from a machine that was busy with other work; [Performance](performance.md) has more reliable ones."""


def section(results: StudyResults) -> str:
    """Return the section of one reproduction."""
    study = results.study
    parts = [f"## {study.title}", study.about.strip(), f"```sh\n{results.command}\n```"]
    # a table has headings of level 3, which are of level 4 on the page
    parts += [to_markdown(table).strip().replace("### ", "#### ", 1) for table in all_tables(results)]
    parts += [agreement(results, column) for column in study.columns]
    drawn = draw_all(results)
    for name in FIGURES:
        if name in drawn.figures:
            drawing = drawn.figures[name]
            source = next(path for path in drawing.paths if path.suffix == ".png")
            target = DOCS / "images" / f"results-{study.id}-{name}.png"
            shutil.copyfile(source, target)
            parts.append(f"![{drawing.title}](images/{target.name})")
    return "\n\n".join(parts)


def agreement(results: StudyResults, column: str) -> str:
    """Return a paragraph on the pairs of methods in the printed order, by the mean over seeds and seed by seed."""
    study = results.study
    samples = {row: run_group(results, row, column) for row in study.rows}
    measured = {row: s.accuracy(study.measure) for row, s in samples.items() if len(s.completed) == len(study.seeds)}
    printed = {row: value for row in measured if (value := _printed(results, row, column)) is not None}
    same, other = [], []
    for a, b in combinations(printed, 2):
        if printed[a] == printed[b]:
            continue
        low, high = sorted((a, b), key=lambda row: printed[row])
        seeds = sum(measured[low][seed] < measured[high][seed] for seed in study.seeds)
        means = [fmean(measured[row].values()) for row in (low, high)]
        text = f"{high} above {low} ({seeds} of {len(study.seeds)} seeds)"
        (same if means[0] < means[1] else other).append(text)
    pairs, verb = len(same) + len(other), "is" if len(same) == 1 else "are"
    lines = [f"**Agreement, {column}.** {len(same)} of {pairs} pairs of methods {verb} in the printed order."]
    if same:
        lines.append(f"As printed: {'; '.join(same)}.")
    if other:
        lines.append(f"Not as printed: {'; '.join(other)}.")
    first = next(iter(printed), None)
    gains = {row: paired_difference(measured[row], measured[first]) for row in printed if row != first} if first else {}
    above = [row for row, d in gains.items() if d is not None and d.low is not None and d.low > 0]
    lines.append(
        f"{len(above)} of {len(gains)} intervals of the differences to {first} are above zero: with so few rounds and "
        "seeds the order is an indication, not a proof."
    )
    return " ".join(lines)


def _printed(results: StudyResults, row: str, column: str) -> float | None:
    """Return the number that the paper prints for a cell, corrected by the errata; None for text and empty cells."""
    study, at = results.study, list(results.study.columns).index(column)
    for erratum in study.errata:
        if (erratum.row, erratum.column, erratum.measure) == (row, column, study.measure):
            return erratum.consistent
    value = study.printed.get(study.measure, {}).get(row, [None] * len(study.columns))[at]
    return value if isinstance(value, float) else None


if __name__ == "__main__":
    page = "\n\n".join([INTRODUCTION, *(section(load_results(Path(folder))) for folder in sys.argv[1:])])
    (DOCS / "results.md").write_text(page + "\n")
