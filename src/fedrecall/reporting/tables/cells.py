"""What stands in a table's cells, and the notes below it."""

from collections.abc import Sequence
from typing import Literal

from fedrecall.reporting.tables.render import TableCell
from fedrecall.reporting.tables.samples import RunGroup, TargetRounds
from fedrecall.studies import statistics
from fedrecall.studies.results import StudyResults
from fedrecall.studies.scale import scaled

FAILED = "Failed"


def accuracy_cell(sample: RunGroup, measure: str) -> TableCell:
    """Final, best or last ten over the seeds, and how many of them there are if some are missing."""
    return spread_cell(list(sample.accuracy(measure).values()), sample)


def spread_cell(values: Sequence[float], sample: RunGroup) -> TableCell:
    """Mean and deviation of a value a seed."""
    found = statistics.mean_std(values)
    numbers = {"mean": found and found.mean, "deviation": found and found.deviation, "seeds": float(len(values))}
    if found is None:
        return TableCell((FAILED if sample.failed else "not run" if not sample.outcomes else "-",), numbers)
    text = f"{found.mean:.2f}" + ("" if found.deviation is None else f" ± {found.deviation:.2f}")
    missing = () if found.seeds == sample.seeds else (f"{found.seeds} of {sample.seeds} seeds",)
    return TableCell((text, *missing), numbers)


def difference_cell(ours: RunGroup, theirs: RunGroup, measure: str) -> TableCell:
    """How much better than another row, seed by seed, with the confidence interval."""
    found = None if ours is theirs else statistics.paired_difference(ours.accuracy(measure), theirs.accuracy(measure))
    if found is None:
        return TableCell(("-",), {"mean": None})
    interval = () if found.low is None else (f"[{found.low:+.2f}, {found.high:+.2f}]",)
    numbers = {"mean": found.mean, "low": found.low, "high": found.high, "seeds": float(found.seeds)}
    return TableCell((f"{found.mean:+.2f}", *interval), numbers)


def rounds_to_target_cell(sample: RunGroup, speed: TargetRounds | None) -> TableCell:
    """The first round at the target, "-" for never."""
    if speed is None or sample.failed or speed.rounds is None:
        return _without_speed(sample)
    return TableCell((str(speed.rounds),), {"mean": float(speed.rounds)})


def speedup_cell(
    sample: RunGroup, speed: TargetRounds | None, kind: Literal["over_all", "over_reference"]
) -> TableCell:
    """How many times sooner."""
    factor = None if speed is None else getattr(speed, kind)
    if factor is None or sample.failed:
        return _without_speed(sample)
    return TableCell((f"{factor:.2f}",), {"mean": factor})


def _without_speed(sample: RunGroup) -> TableCell:
    return TableCell((FAILED if sample.failed else "-" if sample.outcomes else "not run",), {"mean": None})


def number_cell(value: float | None, unit: float = 1.0) -> TableCell:
    """A plain number, with three digits that say something."""
    if value is None:
        return TableCell(("-",), {"mean": None})
    scaled = value / unit
    return TableCell((f"{scaled:.3g}" if scaled < 100 else f"{scaled:.0f}",), {"mean": scaled})


def scope_notes(results: StudyResults) -> list[str]:
    """How much of the study a table rests on: rounds, seeds, runs."""
    study = results.study
    seeds = ", ".join(map(str, study.seeds))
    left = len(results.unfinished)
    runs = f"; {left} of {len(study.cells())} runs are still to be made" if left else ""
    return [*scaled(study, lengths=True), f"{'seed' if len(study.seeds) == 1 else 'seeds'} {seeds}{runs}"]


def failure_notes(results: StudyResults, column: str | None = None) -> list[str]:
    """Why runs broke off."""
    broken = {o.path: o for o in results.finished_runs(column=column) if o.diverged}
    return [
        f"failed: {o.cell.row}, {o.cell.column}, seed {o.cell.seed}: {o.summary['failed']}" for o in broken.values()
    ]
