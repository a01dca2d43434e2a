"""What stands in a table's cells, and the notes below it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from fedrecall.reporting.tables.render import TableCell
from fedrecall.studies import statistics
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.statistics import Curve
from fedrecall.studies.study import Study, Target, scaled


@dataclass(frozen=True)
class RunGroup:
    """The finished runs of one row and column, one a seed."""

    outcomes: tuple[FinishedRun, ...]
    seeds: int  # that the study asks for

    @property
    def completed(self) -> list[FinishedRun]:
        """The runs that came to an end and were evaluated; what broke off has no accuracy worth a mean."""
        return [outcome for outcome in self.outcomes if not outcome.diverged and outcome.curve()]

    def with_shared_seeds(self, other: "RunGroup") -> "RunGroup":
        """The good runs whose seeds the other has good runs of, too."""
        seeds = {outcome.cell.seed for outcome in other.completed}
        return replace(self, outcomes=tuple(o for o in self.completed if o.cell.seed in seeds))

    @property
    def curve(self) -> Curve:
        """The mean over the seeds."""
        return statistics.mean_curve([outcome.curve() for outcome in self.completed])

    @property
    def rounds(self) -> int | None:
        """T: how many rounds the runs have."""
        return max((outcome.records[-1]["round"] for outcome in self.completed), default=None)

    @property
    def failed(self) -> bool:
        """Whether there are runs, and they did not learn."""
        if not self.outcomes:
            return False
        curve = self.curve
        return statistics.has_failed(
            statistics.best(curve) if curve else None, self.outcomes[0].classes, diverged=not self.completed
        )

    def accuracy(self, measure: str) -> dict[int, float]:
        """Final, best or last ten, in percent, by seed."""
        return {o.cell.seed: 100 * statistics.ACCURACIES[measure](o.curve()) for o in self.completed}

    def local_accuracy(self) -> dict[int, float]:
        """The accuracy of the clients' own models before aggregation, in percent, mean over rounds, by seed.

        It is of the whole test set: a column that is a group of it has none.
        """
        curves = {o.cell.seed: o.curve("local_accuracy") for o in self.completed if o.cell.group is None}
        return {seed: 100 * fmean(value for _, value in curve) for seed, curve in curves.items() if curve}

    def forgetting(self) -> dict[int, float]:
        """By how many points the global model is better than the clients' own, mean over rounds, by seed."""
        out = {}
        for outcome in self.completed:
            local = dict(outcome.curve("local_accuracy"))
            gaps = [accuracy - local[number] for number, accuracy in outcome.curve() if number in local]
            if gaps and outcome.cell.group is None:
                out[outcome.cell.seed] = 100 * fmean(gaps)
        return out

    def mean_of(self, key: str) -> float | None:
        """The mean over rounds and seeds of something that every round records."""
        values = [value for outcome in self.completed for _, value in outcome.curve(key)]
        return fmean(values) if values else None


def run_group(results: StudyResults, row: str, column: str) -> RunGroup:
    """The runs of a row and a column."""
    return RunGroup(tuple(results.finished_runs(row, column)), len(results.study.seeds))


def reference_row(study: Study) -> str:
    """The row that others are measured against: the one that sets the target, else the first."""
    return study.target.of if isinstance(study.target, Target) else next(iter(study.rows))


def target_accuracy(results: StudyResults, column: str) -> float | None:
    """The accuracy whose first round is asked for; None: there is none, or the row that sets it has not been run."""
    return _goal(results, column, run_group(results, reference_row(results.study), column))


def _goal(results: StudyResults, column: str, theirs: RunGroup) -> float | None:
    wanted = results.study.target
    if isinstance(wanted, dict):
        return wanted.get(column)
    if not isinstance(wanted, Target):
        return wanted
    return statistics.ACCURACIES[wanted.measure](theirs.curve) if theirs.curve else None


@dataclass(frozen=True)
class TargetRounds:
    """When a row reaches the target of a column."""

    rounds: int | None  # None: never
    over_all: float | None  # speedup: all rounds / rounds to the target
    over_reference: float | None  # speedup: rounds to the target of the reference / rounds to the target


def target_rounds(results: StudyResults, row: str, column: str) -> TargetRounds | None:
    """How soon a row is at its column's target; None where that cannot be said.

    Two rows are compared by the mean curves of the seeds that both have: a study may be unfinished. The row that sets
    the target is printed with its last round if the target is its final accuracy, and with a speedup of 1, as the
    papers do.
    """
    wanted, ours = results.study.target, run_group(results, row, column)
    theirs = run_group(results, reference_row(results.study), column)
    mine, other = ours.with_shared_seeds(theirs), theirs.with_shared_seeds(ours)
    if isinstance(wanted, Target):
        ours = mine  # the target itself is theirs
    accuracy = _goal(results, column, other)
    if accuracy is None or not ours.completed:
        return None
    reached = statistics.rounds_to_target(ours.curve, accuracy)
    if isinstance(wanted, Target) and row == wanted.of:
        return TargetRounds(ours.rounds if wanted.measure == "final" else reached, 1.0, 1.0)
    both = [statistics.rounds_to_target(runs.curve, accuracy) for runs in (other, mine)]
    over_reference = statistics.speedup(*both) if mine.completed else None  # they may have no seed in common
    return TargetRounds(reached, statistics.speedup(ours.rounds, reached), over_reference)


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
