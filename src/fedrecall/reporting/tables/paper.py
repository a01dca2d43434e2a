"""Tables of measurements beside the numbers that a paper printed."""

from typing import NamedTuple

from fedrecall.reporting.tables import cells
from fedrecall.reporting.tables.cells import run_group, target_rounds
from fedrecall.reporting.tables.render import ReportTable, TableCell, TableNote
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import Erratum, Measure, Printed, Study

MEASURE_TITLES: dict[Measure, str] = {
    "final": "final accuracy, %",
    "best": "best accuracy, %",
    "last10": "mean accuracy of the last ten evaluations, %",
    "rounds_to_target": "rounds to target",
    "speedup": "speedup",
}


def paper_tables(results: StudyResults) -> list[ReportTable]:
    """Make a table of rows by columns for the study's measure, and one for each other printed measure."""
    printed = [measure for measure in results.study.printed if measure != "deviation"]
    return [_table(results, measure) for measure in dict.fromkeys([results.study.measure, *printed])]


def _table(results: StudyResults, measure: Measure) -> ReportTable:
    study = results.study
    errata = [erratum for erratum in study.errata if erratum.measure == measure]
    rows = tuple(
        (row, tuple(_compared_cell(results, row, column, measure, errata) for column in study.columns))
        for row in study.rows
    )
    footnotes = [TableNote(f"[{i}] {_footnote(study, erratum)}", "erratum") for i, erratum in enumerate(errata, 1)]
    return ReportTable(
        name=study.id if measure == study.measure else f"{study.id}-{measure.replace('_', '-')}",
        title=f"{study.title}: {MEASURE_TITLES[measure]}",
        header=("", *study.columns),
        rows=rows,
        notes=(*_legend(results, measure), *footnotes, *cells.failure_notes(results)),
        fraction=study.fraction,
    )


def _compared_cell(results: StudyResults, row: str, column: str, measure: Measure, errata: list[Erratum]) -> TableCell:
    measured = _measured_cell(results, row, column, measure)
    printed = printed_value(results.study, row, column, measure)
    if printed is None:
        return measured
    mark, expected = "", printed.number
    for i, erratum in enumerate(errata, 1):
        if (erratum.row, erratum.column) == (row, column):
            mark = f"[{i}]"
            expected = expected if erratum.consistent is None else erratum.consistent
    difference = None if measured.value is None or expected is None else measured.value - expected
    digits = 0 if measure == "rounds_to_target" else 2
    suffix = "" if difference is None else f" ({difference:+.{digits}f})"
    label = "paper" if results.study.fraction == 1 else "full"
    numbers = {"printed": printed.number, "printed_deviation": printed.deviation, "difference": difference}
    return TableCell((*measured.lines, f"{label} {printed.text}{mark}{suffix}"), {**measured.numbers, **numbers})


def _measured_cell(results: StudyResults, row: str, column: str, measure: Measure) -> TableCell:
    runs = run_group(results, row, column)
    if measure == "rounds_to_target":
        return cells.rounds_to_target_cell(runs, target_rounds(results, row, column))
    if measure == "speedup":
        return cells.speedup_cell(runs, target_rounds(results, row, column), "over_all")
    return cells.accuracy_cell(runs, measure)


class PrintedValue(NamedTuple):
    """Number as printed in a paper."""

    text: str
    number: float | None  # None for "-" and "Failed"
    deviation: float | None = None


def printed_value(study: Study, row: str, column: str, measure: Measure) -> PrintedValue | None:
    """Return the printed number of a cell; None if the paper has none."""
    value = _raw_value(study, row, column, measure)
    if value is None:
        return None
    if isinstance(value, str):
        return PrintedValue(value, None)
    if measure == "rounds_to_target":
        return PrintedValue(f"{value:g}", float(value))
    deviation = _raw_value(study, row, column, "deviation") if measure == study.measure else None
    if not isinstance(deviation, float | int):
        return PrintedValue(f"{value:.2f}", float(value))
    return PrintedValue(f"{value:.2f} ± {deviation:.2f}", float(value), float(deviation))


def _raw_value(study: Study, row: str, column: str, what: Printed) -> float | str | None:
    line = study.printed.get(what, {}).get(row)
    return None if line is None else line[list(study.columns).index(column)]


def _footnote(study: Study, erratum: Erratum) -> str:
    value = printed_value(study, erratum.row, erratum.column, erratum.measure)
    instead = "" if erratum.consistent is None else f"; the difference is to {erratum.consistent:g}"
    return f"{erratum.row}, {erratum.column}: printed {value.text if value else '-'}; {erratum.why}{instead}"


def _legend(results: StudyResults, measure: Measure) -> list[TableNote]:
    out = cells.scope_notes(results)
    if len(results.study.seeds) > 1 and measure not in ("rounds_to_target", "speedup"):
        out.append(TableNote("mean ± sample standard deviation over seeds"))
    if measure not in results.study.printed:
        return [*out, TableNote("the paper prints no numbers for this measure")]
    if results.study.fraction == 1:
        return [*out, TableNote("paper: printed number (measured minus printed)")]
    return [*out, TableNote("full: printed number, for all rounds (measured with fewer rounds minus printed)")]
