"""Cells of the tables: groups of runs, the statistics computed over them, and the notes below a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from statistics import fmean
from typing import Literal

import torch

from fedrecall.config.choices import PythonObject
from fedrecall.config.experiment import Experiment
from fedrecall.config.tables import read_toml
from fedrecall.data.partitioners import Groups
from fedrecall.reporting.tables.render import TableCell, TableNote
from fedrecall.runs.predictions import Predictions, load_predictions
from fedrecall.runs.records import has_no_effect
from fedrecall.studies import statistics
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.statistics import Curve
from fedrecall.studies.study import Study, Target

FAILED = "Failed"  # the papers' word for a run that diverged or did not learn

MILLION = 1e6


@dataclass(frozen=True)
class RunGroup:
    """Finished runs of one row and column, one per seed."""

    outcomes: tuple[FinishedRun, ...]
    seeds: int  # number of seeds in the study

    @property
    def completed(self) -> list[FinishedRun]:
        """The evaluated runs that did not diverge: a diverged run has no accuracy to average."""
        return [run for run in self.outcomes if not run.diverged and run.curve()]

    def with_shared_seeds(self, other: "RunGroup") -> "RunGroup":
        """Return the completed runs whose seed the other group has completed, too."""
        seeds = {run.cell.seed for run in other.completed}
        return replace(self, outcomes=tuple(run for run in self.completed if run.cell.seed in seeds))

    @property
    def curve(self) -> Curve:
        """Mean accuracy over the seeds, by round."""
        return statistics.mean_curve([run.curve() for run in self.completed])

    @property
    def rounds(self) -> int | None:
        """T: the number of rounds; None without a completed run."""
        return max((run.records[-1]["round"] for run in self.completed), default=None)

    @property
    def failed(self) -> bool:
        """True if there are runs and none of them learned; the baseline "majority" learns nothing and never fails."""
        if not self.outcomes or self.outcomes[0].cell.baseline == "majority":
            return False
        curve = self.curve
        return statistics.has_failed(
            statistics.best(curve) if curve else None, self.outcomes[0].classes, diverged=not self.completed
        )

    def accuracy(self, measure: str) -> dict[int, float]:
        """Return the final, best or last-ten accuracy by seed, in percent."""
        return {run.cell.seed: 100 * statistics.ACCURACIES[measure](run.curve()) for run in self.completed}

    def local_accuracy(self) -> dict[int, float]:
        """Return the accuracy of the local models before aggregation by seed, in percent, averaged over rounds.

        It is measured on the complete test set, so a column for a group of the test set has none.
        """
        return self.mean_over_rounds("local_accuracy")

    def forgetting(self) -> dict[int, float]:
        """Return global minus mean local accuracy by seed, in points, averaged over rounds."""
        out = {}
        for run in self.completed:
            local = dict(run.curve("local_accuracy"))
            gaps = [accuracy - local[number] for number, accuracy in run.curve() if number in local]
            if gaps and run.cell.group is None:
                out[run.cell.seed] = 100 * fmean(gaps)
        return out

    def mean_over_rounds(self, key: str, last: int = 0) -> dict[int, float]:
        """Return a recorded share by seed, in percent, averaged over rounds; empty for a group of the test set.

        `last` is the number of values at the end that count, 0 for all of them.
        """
        curves = {run.cell.seed: run.curve(key)[-last:] for run in self.completed if run.cell.group is None}
        return {seed: 100 * fmean(value for _, value in curve) for seed, curve in curves.items() if curve}

    @property
    def has_no_effect(self) -> bool:
        """True if the distillation stayed below 1 % of the gradient at the logits in all runs."""
        return bool(self.completed) and all(has_no_effect(run.records) for run in self.completed)

    def predictions(self) -> dict[int, Predictions]:
        """Return the kept predictions on the test set by seed; none for a column of a group of the test set."""
        found = {run.cell.seed: load_predictions(run.path) for run in self.completed if run.cell.group is None}
        return {seed: kept for seed, kept in found.items() if kept is not None}

    def mean_of(self, key: str) -> float | None:
        """Average a recorded value over rounds and seeds; None if it is not recorded."""
        values = [value for run in self.completed for _, value in run.curve(key)]
        return fmean(values) if values else None


def run_group(results: StudyResults, row: str, column: str) -> RunGroup:
    """Return the finished runs of a row and a column."""
    return RunGroup(tuple(results.finished_runs(row, column)), len(results.study.seeds))


def reference_row(study: Study) -> str:
    """Return the row that sets the target, or else the first one: speedups are relative to it."""
    return study.target.of if isinstance(study.target, Target) else next(iter(study.rows))


def target_accuracy(results: StudyResults, column: str) -> float | None:
    """Return the target of a column; None if the study has none, or if the row that sets it has no finished run."""
    return _target(results, column, run_group(results, reference_row(results.study), column))


def _target(results: StudyResults, column: str, reference: RunGroup) -> float | None:
    target = results.study.target
    if isinstance(target, dict):
        return target.get(column)
    if not isinstance(target, Target):
        return target
    return statistics.ACCURACIES[target.measure](reference.curve) if reference.curve else None


@dataclass(frozen=True)
class TargetRounds:
    """Rounds that a row needs to reach the target of its column, and the speedups that follow."""

    rounds: int | None  # None: never reached
    over_all: float | None  # all rounds / rounds to target
    over_reference: float | None  # rounds to target of the reference row / rounds to target


def target_rounds(results: StudyResults, row: str, column: str) -> TargetRounds | None:
    """Compute rounds to target and speedups; None without a target or without a completed run.

    In an unfinished study, two rows are compared by the mean curves of the seeds that both have completed. As in the
    papers, the row that sets the target has its last round if the target is its final accuracy, and a speedup of 1 over
    all rounds if the target is its final or best accuracy.
    """
    target, runs = results.study.target, run_group(results, row, column)
    reference = run_group(results, reference_row(results.study), column)
    runs_shared, reference_shared = runs.with_shared_seeds(reference), reference.with_shared_seeds(runs)
    if isinstance(target, Target):
        runs = runs_shared  # the target depends on the seeds of the reference row
    accuracy = _target(results, column, reference_shared)
    if accuracy is None or not runs.completed:
        return None
    reached = statistics.rounds_to_target(runs.curve, accuracy)
    if isinstance(target, Target) and row == target.of:
        over_all = statistics.speedup(runs.rounds, reached) if target.measure == "last10" else 1.0
        return TargetRounds(runs.rounds if target.measure == "final" else reached, over_all, 1.0)
    both = [statistics.rounds_to_target(group.curve, accuracy) for group in (reference_shared, runs_shared)]
    over_reference = statistics.speedup(*both) if runs_shared.completed else None  # None: no seed in common
    return TargetRounds(reached, statistics.speedup(runs.rounds, reached), over_reference)


def accuracy_cell(runs: RunGroup, measure: str) -> TableCell:
    """Make a cell of the final, best or last-ten accuracy."""
    return spread_cell(list(runs.accuracy(measure).values()), runs)


def spread_cell(values: Sequence[float], runs: RunGroup, digits: int = 2) -> TableCell:
    """Make a cell of mean and deviation, given one value per seed; if seeds are missing, a second line counts them."""
    found = statistics.mean_std(values)
    numbers = {"mean": found and found.mean, "deviation": found and found.deviation, "seeds": float(len(values))}
    if found is None:
        # A completed run without the value did not record it, however low its accuracy is.
        return TableCell(("not run" if not runs.outcomes else "-" if runs.completed else FAILED,), numbers)
    text = f"{found.mean:.{digits}f}" + ("" if found.deviation is None else f" ± {found.deviation:.{digits}f}")
    missing = () if found.seeds == runs.seeds else (f"{found.seeds} of {runs.seeds} seeds",)
    return TableCell((text, *missing), numbers)


def difference_cell(
    runs: RunGroup,
    reference: RunGroup,
    values: Callable[[RunGroup], Mapping[int, float]],
    measure: str | None = None,
) -> TableCell:
    """Make a cell of the difference of values by seed to another row, paired by seed, with its confidence interval.

    With the accuracy's `measure` it has the interval over test examples and the verdict of both, too.
    """
    found = None if runs is reference else statistics.paired_difference(values(runs), values(reference))
    if found is None:
        return TableCell(("-",), {"mean": None})
    interval = () if found.low is None else (f"[{found.low:+.2f}, {found.high:+.2f}]",)
    numbers = {"mean": found.mean, "low": found.low, "high": found.high, "seeds": float(found.seeds)}
    examples = None if measure is None else paired_example_interval(runs, reference, measure)
    if examples is None:
        return TableCell((f"{found.mean:+.2f}", *interval), numbers)
    numbers |= {"examples_low": examples.low, "examples_high": examples.high}
    decided = statistics.verdict(found, examples)
    lines = (f"[{examples.low:+.2f}, {examples.high:+.2f}]e", *([] if decided is None else [decided]))
    return TableCell((f"{found.mean:+.2f}", *interval, *lines), numbers)


def paired_example_interval(runs: RunGroup, reference: RunGroup, measure: str) -> statistics.ExampleInterval | None:
    """Compute the interval over test examples, in points; None unless all shared seeds have kept predictions."""
    ours, theirs = runs.predictions(), reference.predictions()
    differences = []
    for seed in sorted({run.cell.seed for run in runs.completed} & {run.cell.seed for run in reference.completed}):
        pair = [found.get(seed) for found in (ours, theirs)]
        shares = [None if found is None else found.shares_correct(measure) for found in pair]
        if pair[0] is None or pair[1] is None or shares[0] is None or shares[1] is None:
            return None
        if not torch.equal(pair[0].y, pair[1].y):
            return None
        name = sha256(pair[0].y.numpy().tobytes()).hexdigest()
        differences.append((name, 100 * (shares[0] - shares[1]).numpy()))
    return statistics.example_interval(differences)


def rounds_to_target_cell(runs: RunGroup, speed: TargetRounds | None) -> TableCell:
    """Make a cell of the first round that reaches the target; "-" if no round does."""
    if speed is None or runs.failed or speed.rounds is None:
        return _no_speed_cell(runs)
    return TableCell((str(speed.rounds),), {"mean": float(speed.rounds)})


def speedup_cell(runs: RunGroup, speed: TargetRounds | None, kind: Literal["over_all", "over_reference"]) -> TableCell:
    """Make a cell of a speedup."""
    factor = None if speed is None else getattr(speed, kind)
    if factor is None or runs.failed:
        return _no_speed_cell(runs)
    return TableCell((f"{factor:.2f}",), {"mean": factor})


def _no_speed_cell(runs: RunGroup) -> TableCell:
    return TableCell((FAILED if runs.failed else "-" if runs.outcomes else "not run",), {"mean": None})


def number_cell(value: float | None, unit: float = 1.0) -> TableCell:
    """Make a cell of a number in a unit, with three significant digits."""
    if value is None:
        return TableCell(("-",), {"mean": None})
    number = value / unit
    return TableCell((f"{number:.3g}" if number < 100 else f"{number:.0f}",), {"mean": number})


def scope_notes(results: StudyResults) -> list[TableNote]:
    """Return the notes about the basis of a table: share of the rounds, seeds and what they vary, unfinished runs."""
    study, unfinished = results.study, len(results.unfinished)
    text = f"{'seed' if len(study.seeds) == 1 else 'seeds'} {', '.join(map(str, study.seeds))}"
    if unfinished:
        text += f"; {unfinished} of {len(study.cells())} runs are not finished"
    scale = [TableNote(note, "scaled") for note in study.scale_note(lengths=True)]
    varied = [TableNote(seed_scope(results))] if len(study.seeds) > 1 else []
    return [*scale, TableNote(text, "unfinished" if unfinished else "seeds"), *varied]


def seed_scope(results: StudyResults) -> str:
    """Describe what the seeds of a study vary, and what is the same for all of them.

    The configuration is that of a run, if one is finished: the data may have named the clients.
    """
    study = results.study
    first = next(iter(results.finished_runs(study.methods[0])), None)
    experiment = study.experiments[study.cells()[0].folder]
    if first is not None and (first.path / "config.toml").exists():
        experiment = Experiment(**read_toml(first.path / "config.toml"))
    run, federation = experiment.run, experiment.federation
    own_model = isinstance(experiment.model, PythonObject)
    fixed_partition = run.partition_seed is not None or isinstance(federation.partition, PythonObject | Groups)
    varied = {
        "weights (if model is no module)" if own_model else "weights": run.init_seed is None and run.start is None,
        "batches": True,
        "cohorts": run.sample_seed is None and federation.clients_per_round < federation.clients,
        "partition": not fixed_partition,
        "test set": experiment.data.split_seed == "run",
    }
    same = [name for name, varies in varied.items() if not varies]
    text = f"seeds vary {', '.join(name for name, varies in varied.items() if varies)}"
    return text + (f"; the same for all seeds, and left out of intervals over seeds: {', '.join(same)}" if same else "")


def failed_runs(results: StudyResults, column: str | None = None) -> list[str]:
    """Describe the runs that diverged, each with its reason."""
    diverged = {run.path: run for run in results.finished_runs(column=column) if run.diverged}
    return [
        f"{run.cell.row}, {run.cell.column}, seed {run.cell.seed}: {run.summary['failed']}" for run in diverged.values()
    ]


def failure_notes(results: StudyResults, column: str | None = None) -> list[TableNote]:
    """Return one note per run that diverged."""
    return [TableNote(f"failed: {text}", "failure") for text in failed_runs(results, column)]
