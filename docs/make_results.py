"""`python docs/make_results.py FOLDER...` makes docs/results.md from the folders of reproductions."""

import shutil
import sys
from itertools import combinations
from pathlib import Path
from statistics import fmean

from fedrecall.reporting.figures import draw_all
from fedrecall.reporting.html.command import repeat
from fedrecall.reporting.tables import all_tables
from fedrecall.reporting.tables.cells import run_group
from fedrecall.reporting.tables.render import to_markdown
from fedrecall.studies.results import StudyResults, load_results
from fedrecall.studies.statistics import paired_difference

DOCS = Path(__file__).parent
SHOWN = ("curves",)  # figures on the page
INTRODUCTION = """# Results

What parts of the papers' tables give here, made by the commands below on two processor cores, and put on this page by
`python docs/make_results.py`. The rounds are a small fraction of the papers', because a table takes two cores hours to
days (`fedrecall reproduce --list` says how long). A printed number of the full length stands beside a measurement of a
few rounds: compare the order of the methods, not the numbers. Seconds a round are of a machine that was busy with other
work; [Performance](performance.md) has better ones."""


def section(results: StudyResults) -> str:
    """One reproduction."""
    study = results.study
    parts = [f"## {study.title}", study.about.strip(), f"```sh\n{repeat(results)}\n```"]
    # the page has one level of headings more than a table by itself
    parts += [to_markdown(table).strip().replace("### ", "#### ", 1) for table in all_tables(results)]
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


def agreement(results: StudyResults, column: str) -> str:
    """Which pairs of methods come in the printed order, by the mean over seeds and seed by seed."""
    study = results.study
    samples = {row: run_group(results, row, column) for row in study.rows}
    told = {row: s.accuracy(study.measure) for row, s in samples.items() if len(s.completed) == len(study.seeds)}
    printed = {row: value for row in told if (value := _printed(results, row, column)) is not None}
    same, other = [], []
    for a, b in combinations(printed, 2):
        if printed[a] == printed[b]:
            continue
        low, high = sorted((a, b), key=lambda row: printed[row])
        seeds = sum(told[low][seed] < told[high][seed] for seed in study.seeds)
        means = [fmean(told[row].values()) for row in (low, high)]
        text = f"{high} above {low} ({seeds} of {len(study.seeds)} seeds)"
        (same if means[0] < means[1] else other).append(text)
    pairs, verb = len(same) + len(other), "comes" if len(same) == 1 else "come"
    lines = [f"**Agreement, {column}.** Of {pairs} pairs of methods, {len(same)} {verb} in the printed order."]
    if same:
        lines.append(f"As printed: {'; '.join(same)}.")
    if other:
        lines.append(f"Not as printed: {'; '.join(other)}.")
    first = next(iter(printed), None)
    ours = {row: paired_difference(told[row], told[first]) for row in printed if row != first} if first else {}
    sure = [row for row, d in ours.items() if d is not None and d.low is not None and d.low > 0]
    lines.append(
        f"Of the intervals of the differences to {first}, {len(sure)} of {len(ours)} lie above zero: with so few "
        "rounds and seeds the order is a hint, no proof."
    )
    return " ".join(lines)


def _printed(results: StudyResults, row: str, column: str) -> float | None:
    """What the paper prints for a cell, put right where it contradicts itself; None for words and for nothing."""
    study, at = results.study, list(results.study.columns).index(column)
    for erratum in study.errata:
        if (erratum.row, erratum.column, erratum.measure) == (row, column, study.measure):
            return erratum.consistent
    value = study.printed.get(study.measure, {}).get(row, [None] * len(study.columns))[at]
    return value if isinstance(value, float) else None


if __name__ == "__main__":
    page = "\n\n".join([INTRODUCTION, *(section(load_results(Path(folder))) for folder in sys.argv[1:])])
    (DOCS / "results.md").write_text(page + "\n")
