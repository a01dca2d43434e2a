"""Data of the figures: curves, accuracies, confusion matrices and label counts of a study's runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrecall.errors import UserError, unknown_name
from fedrecall.studies.results import FinishedRun, StudyResults, read_json
from fedrecall.studies.statistics import ACCURACIES, Curve, MeanStd, mean_std
from fedrecall.studies.study import slug

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

Selection = Sequence[str] | None  # names of rows or columns; None: all

MOST_SKEWED = "most skewed"


class MissingData(UserError):
    """Error: the runs lack data that a figure needs."""


def no_finished_run() -> MissingData:
    """Return the error for a figure none of whose runs is finished."""
    return MissingData("report.no_finished_run", "no run of this figure is finished", hint="run the study first")


def missing_probe(row: str, probe: str) -> MissingData:
    """Return the error for a run without the probe."""
    hint = f'add "{probe}" to run.probes and run it again'
    return MissingData("report.missing_probe", f'the runs of {row} have no probe "{probe}"', "run.probes", hint)


class MeanCurve(NamedTuple):
    """Mean over seeds of a value by round."""

    rounds: Ints
    mean: Floats
    deviation: Floats  # nan for rounds with fewer than two seeds
    seeds: int
    diverged: bool  # True if the run of a seed diverged


def select(names: Iterable[str], wanted: Selection, kind: str) -> list[str]:
    """Select rows or columns of a study by name, in the order of `wanted`; None selects all.

    Names that the study lacks are skipped: it may be a part of the study for which the figure was defined.
    """
    by_slug = {slug(name): name for name in names}
    if wanted is None:
        return list(by_slug.values())
    found = [by_slug[slug(name)] for name in wanted if slug(name) in by_slug]
    if wanted and not found:
        text = f"the study has no {kind} {' or '.join(wanted)}"
        raise MissingData("report.not_in_study", text, kind, f"use one of its {kind}s: {', '.join(by_slug.values())}")
    return found


def column_positions(columns: Iterable[str], wanted: Selection, x: Sequence[float]) -> dict[str, float]:
    """Assign a number of `x` to each column: by its name if names are such numbers, else by its position.

    By name first, because a study that was extended has its columns in another order, and a part of one has fewer.
    """
    all_columns = list(columns)
    names = all_columns if wanted is None else list(wanted)
    by_name = {slug(f"{number:g}"): number for number in x}
    if wanted is None and (len(names) != len(x) or all(slug(name) in by_name for name in names)):
        numbers = by_name
    elif len(names) == len(x):
        numbers = {slug(name): number for name, number in zip(names, x, strict=True)}
    else:
        text = f"x has {len(x)} numbers for {len(names)} columns"
        raise UserError("report.invalid_option", text, "x", "set one number for each column")
    found = {name: numbers[slug(name)] for name in all_columns if slug(name) in numbers}
    if not found:
        text = f"x = {list(x)}: none of these numbers belongs to the columns {', '.join(all_columns)}"
        raise MissingData("report.not_in_study", text, "x", "set one number for each column")
    return found


def finished_runs(
    results: StudyResults, rows: Selection, columns: Selection
) -> dict[tuple[str, str], list[FinishedRun]]:
    """Return the finished runs by row and column, without empty cells."""
    study = results.study
    found = {
        (row, column): results.finished_runs(row, column)
        for row in select(study.rows, rows, "row")
        for column in select(study.columns, columns, "column")
    }
    found = {key: runs for key, runs in found.items() if runs}
    if not found:
        raise no_finished_run()
    return found


def run_curve(run: FinishedRun, key: str) -> Curve:
    """Return (round, value) of a recorded key, or of "forgetting": global minus mean local accuracy.

    Local accuracies are measured on the complete test set: a column for a group of it has none.
    """
    if key not in ("local_accuracy", "forgetting", "forgotten", "forgotten_absent"):
        return run.curve(key)
    if run.cell.group is not None:
        return []
    if key not in ("local_accuracy", "forgetting"):
        return run.curve(key)
    local = run.curve("local_accuracy") or probe_curve(run, "local", "mean_accuracy")
    if key == "local_accuracy":
        return local
    by_round = dict(local)
    return [(number, accuracy - by_round[number]) for number, accuracy in run.curve() if number in by_round]


def probe_curve(run: FinishedRun, probe: str, key: str) -> Curve:
    """Return (round, value) of a key of a probe."""
    return [(line["round"], float(line[key])) for line in run.probe_records(probe) if line.get(key) is not None]


def mean_over_seeds(curves: Sequence[Curve], diverged: bool = False) -> MeanCurve | None:
    """Compute mean and deviation of each round over the seeds that have it; None if all curves are empty."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return None
    rounds = sorted({number for curve in curves for number, _ in curve})
    position = {number: i for i, number in enumerate(rounds)}
    table = np.full((len(curves), len(rounds)), np.nan)
    for line, curve in zip(table, curves, strict=True):
        for number, value in curve:
            line[position[number]] = value
    finite = np.isfinite(table)
    count = finite.sum(axis=0)
    mean = np.where(finite, table, 0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(finite, table - mean, 0) ** 2
    deviation = np.sqrt(squares.sum(axis=0) / np.maximum(count - 1, 1))
    mean[count == 0] = np.nan  # a loss may be infinite for all seeds
    deviation[count < 2] = np.nan
    return MeanCurve(np.array(rounds), mean, deviation, len(curves), diverged)


def accuracy_over_seeds(runs: Sequence[FinishedRun], measure: str) -> MeanStd | None:
    """Average the final, best or last-ten accuracy of the runs that did not diverge; None if there is none."""
    if measure not in ACCURACIES:
        raise unknown_name("measure", measure, ACCURACIES, "report.invalid_option")
    curves = (run.curve() for run in runs if not run.diverged)
    return mean_std([ACCURACIES[measure](curve) for curve in curves if curve])


def baseline_line(runs: Sequence[FinishedRun], measure: str, rounds: Iterable[int]) -> MeanCurve | None:
    """Return the horizontal line of a baseline's accuracy, over the rounds of the methods; None without accuracy."""
    level, shown = accuracy_over_seeds(runs, measure), sorted(set(rounds))
    if level is None or not shown:
        return None
    constant = np.full(len(shown), level.mean)
    return MeanCurve(np.array(shown), constant, np.full(len(shown), np.nan), level.seeds, diverged=False)


def runs_to_average(runs: Sequence[FinishedRun]) -> Sequence[FinishedRun]:
    """Select the runs that did not diverge; if all did, return all."""
    return [run for run in runs if not run.diverged] or runs


def recall(confusion: Any) -> Floats:
    """Compute the class-wise accuracy [C] of a confusion matrix [C, C]; nan for a class without test examples."""
    table = np.asarray(confusion, dtype=np.float64)
    return safe_divide(np.diagonal(table), table.sum(axis=1))


def safe_divide(numerator: Any, denominator: Any) -> Floats:
    """Divide elementwise; nan where the denominator is 0."""
    numerator, denominator = np.broadcast_arrays(
        np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    )
    out: Floats = np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator > 0)
    return out


def probe_records(run: FinishedRun, probe: str) -> dict[int, dict[str, Any]]:
    """Return the records of a probe by round; raise `MissingData` if the run has none."""
    lines = run.probe_records(probe)
    if not lines:
        raise missing_probe(run.cell.row, probe)
    return {line["round"]: line for line in lines}


def participants(lines: Mapping[int, dict[str, Any]]) -> list[int]:
    """Return the clients that a probe recorded in any round."""
    return sorted({client for line in lines.values() for client in line["clients"]})


def label_counts(run: FinishedRun) -> Ints:
    """Return the number of training samples by client and class [N, C]."""
    counts = partition_manifest(run).get("counts")
    if counts is None:
        text = f"{run.path / 'partition.json'} has no counts: the partition has too many clients to store them"
        raise MissingData("report.missing_measurement", text, "counts")
    return np.asarray(counts, dtype=np.int64)


def partition_manifest(run: FinishedRun) -> dict[str, Any]:
    """Read partition.json of a run."""
    return read_json(run.path / "partition.json")


def pick_client(wanted: int | str, clients: Sequence[int], counts: Ints) -> int:
    """Choose a client by number, or the one with the lowest label entropy (of several, the largest)."""
    if isinstance(wanted, int):
        if wanted not in clients:
            first = ", ".join(map(str, clients[:10]))
            more = " and others" if len(clients) > 10 else ""
            text = f"client = {wanted}: the client did not participate"
            raise MissingData("report.absent_client", text, "client", f"use a participant: {first}{more}")
        return wanted
    if wanted != MOST_SKEWED:
        text = f'client = "{wanted}": not a client'
        raise UserError("report.invalid_option", text, "client", f'use a number or "{MOST_SKEWED}"')
    return max(clients, key=lambda client: (-round(_entropy(counts[client]), 9), int(counts[client].sum())))


def _entropy(counts: Ints) -> float:
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())


def seeds_note(groups: Iterable[Sequence[Any]], statistic: str = "mean and standard deviation") -> str:
    """Describe the statistic of a figure and the number of seeds behind it."""
    counts = sorted({len(group) for group in groups if group})
    if counts == [1]:
        return "one seed"
    text = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{statistic} of {text} seeds"
