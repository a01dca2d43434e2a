"""The tables of a study: rows compared with the first one, and measurements beside what a paper printed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedrecall.experiment import stats
from fedrecall.experiment.render import Entry, Table, to_csv, to_latex, to_markdown
from fedrecall.experiment.results import Results
from fedrecall.experiment.samples import Sample, sample, speed, target
from fedrecall.experiment.study import Study, Target, slug
from fedrecall.files import write

MEASURES = {
    "final": "final accuracy, %",
    "best": "best accuracy, %",
    "last10": "mean accuracy of the last ten rounds, %",
    "rounds_to_target": "rounds to target",
    "speedup": "speedup",
}
NOTHING = Entry(("-",))
MB = 1e6


def tables(results: Results) -> list[Table]:
    """All tables of a study: for a paper's, the paper's first."""
    paper = [] if results.study.paper is None else paper_tables(results)
    return paper + [comparison(results, column) for column in results.study.columns]


def write_tables(folder: Path, made: list[Table]) -> list[Path]:
    """Every table as CSV, LaTeX and Markdown in the folder's `tables`."""
    place = folder / "tables"
    place.mkdir(parents=True, exist_ok=True)
    forms = {"csv": to_csv, "tex": to_latex, "md": to_markdown}
    paths = {place / f"{table.name}.{suffix}": form(table) for table in made for suffix, form in forms.items()}
    for path, text in paths.items():
        write(path, text.encode())
    return list(paths)


def comparison(results: Results, column: str) -> Table:
    """What the rows of one column reached, against the first, and what it cost them."""
    study, first = results.study, next(iter(results.study.rows))
    samples = {row: sample(results, row, column) for row in study.rows}
    parts: dict[str, Callable[[str, Sample], Entry]] = {
        "final": lambda _, s: _accuracy(s, "final"),
        "best": lambda _, s: _accuracy(s, "best"),
        "last 10": lambda _, s: _accuracy(s, "last10"),
        f"{study.measure} to {first}": lambda _, s: _difference(s, samples[first], study.measure),
    }
    if target(results, column) is not None:
        parts |= {
            "rounds to target": lambda row, _: _rounds(results, row, column),
            "speedup": lambda row, _: _speedup(results, row, column),
            f"speedup over {first}": lambda row, _: _speedup(results, row, column, over_reference=True),
        }
    if any(s.forgetting() for s in samples.values()):
        parts["forgetting"] = lambda _, s: _spread(list(s.forgetting().values()), s)
    parts |= {
        "s/round": lambda _, s: _number(s.mean_of("seconds")),
        "MB up": lambda _, s: _number(s.mean_of("bytes_up"), MB),
        "MB down": lambda _, s: _number(s.mean_of("bytes_down"), MB),
    }
    return Table(
        name=f"compare-{slug(column)}",
        title=f"{study.title}: {column}" if len(study.columns) > 1 else study.title,
        header=("method", *parts),
        rows=tuple((row, tuple(entry(row, s) for entry in parts.values())) for row, s in samples.items()),
        notes=(*_about(results), *_comparison_notes(results, column, "forgetting" in parts), *_failures(results, column)),
    )


def _comparison_notes(results: Results, column: str, forgetting: bool) -> list[str]:
    out = ["accuracies in %; +- over seeds is the sample standard deviation".replace("+-", "±")]
    if len(results.study.seeds) > 1:
        out.append("in brackets: 95 % confidence interval of the mean difference, paired by seed (Student's t)")
    goal, wanted = target(results, column), results.study.target
    if goal is not None:
        whose = f", the {wanted.measure} of {wanted.of}" if isinstance(wanted, Target) else ""
        out.append(f"target: {100 * goal:.2f} %{whose}; speedup: all rounds / rounds to target, 1 if never reached")
    if forgetting:
        out.append("forgetting: the global model's accuracy less the clients' mean before aggregation, mean of rounds")
    return [*out, "MB: per participating client and round"]


def paper_tables(results: Results) -> list[Table]:
    """Rows by columns, each measurement beside the printed number: one table for each thing that was printed."""
    measures = dict.fromkeys([results.study.measure, *results.study.printed])
    return [_paper_table(results, measure) for measure in measures]


def _paper_table(results: Results, measure: str) -> Table:
    study = results.study
    footnotes: list[str] = []
    rows = tuple(
        (row, tuple(_beside_printed(results, row, column, measure, footnotes) for column in study.columns))
        for row in study.rows
    )
    return Table(
        name=study.id if measure == study.measure else f"{study.id}-{measure.replace('_', '-')}",
        title=f"{study.title}: {MEASURES[measure]}",
        header=("", *study.columns),
        rows=rows,
        notes=(*_about(results), *_legend(study), *footnotes, *_failures(results)),
    )


def _beside_printed(results: Results, row: str, column: str, measure: str, footnotes: list[str]) -> Entry:
    study = results.study
    if measure == "rounds_to_target":
        measured = _rounds(results, row, column)
    elif measure == "speedup":
        measured = _speedup(results, row, column)
    else:
        measured = _accuracy(sample(results, row, column), measure)
    printed = printed_value(study, row, column, measure)
    if printed is None:
        return measured
    mark, compared = "", printed.number
    for erratum in study.errata:
        if (erratum.row, erratum.column, erratum.measure) == (row, column, measure):
            mark = f"[{len(footnotes) + 1}]"
            better = "" if erratum.consistent is None else f"; the difference is to {erratum.consistent:g}"
            footnotes.append(f"{mark} {row}, {column}: printed {printed.text}; {erratum.why}{better}")
            compared = erratum.consistent if erratum.consistent is not None else compared
    difference = None if measured.value is None or compared is None else measured.value - compared
    digits = 0 if measure == "rounds_to_target" else 2
    said = f" ({difference:+.{digits}f})" if difference is not None else ""
    line = f"{'paper' if study.fraction == 1 else 'full'} {printed.text}{mark}{said}"
    numbers = {"printed": printed.number, "printed_deviation": printed.deviation, "difference": difference}
    return Entry((*measured.lines, line), {"measured": None, **measured.numbers, **numbers})


class Printed(NamedTuple):
    """A number as a paper has it."""

    text: str
    number: float | None  # None: "-" or "Failed"
    deviation: float | None


def printed_value(study: Study, row: str, column: str, measure: str) -> Printed | None:
    """What the paper printed in a cell; None if it printed nothing."""
    line = dict(study.printed).get(measure, {}).get(row)  # type: ignore[call-overload]
    value = None if line is None else line[list(study.columns).index(column)]
    if value is None:
        return None
    if isinstance(value, str):
        parts = re.fullmatch(r"([\d.]+)\s*(?:±|\+-)\s*([\d.]+)", value.strip())
        number, deviation = (float(parts[1]), float(parts[2])) if parts else (None, None)
        return Printed(value.replace("+-", " ± ").replace("  ", " "), number, deviation)
    return Printed(f"{value:g}" if measure == "rounds_to_target" else f"{value:.2f}", float(value), None)
