"""From a study's runs to the numbers that figures show."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrecall.errors import UserError, unknown_name
from fedrecall.studies.results import FinishedRun, StudyResults, read_json
from fedrecall.studies.statistics import ACCURACIES, Curve, MeanStd, mean_std
from fedrecall.studies.study import scaled, slug

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

Selection = Sequence[str] | None  # rows or columns that a picture is about; None: all

MOST_SKEWED = "most skewed"


class MissingData(UserError):
    """Data that a figure needs and the runs do not have (yet)."""


def no_finished_run() -> MissingData:
    """Return the error for a figure none of whose runs is finished."""
    return MissingData("report.no_finished_run", "no run of this figure is finished", hint="run the study first")


def missing_probe(row: str, probe: str) -> MissingData:
    """Return the error for a run that was made without a probe."""
    hint = f'add "{probe}" to run.probes and run it again'
    return MissingData("report.missing_probe", f'the runs of {row} have no probe "{probe}"', "run.probes", hint)


class MeanCurve(NamedTuple):
    """A curve over rounds: the mean of several seeds."""

    rounds: Ints
    mean: Floats
    deviation: Floats  # nan where fewer than two seeds are
    seeds: int
    diverged: bool  # a seed's run diverged


def select(names: Iterable[str], wanted: Selection, kind: str) -> list[str]:
    """The wanted of a study's rows or columns, in the order in which they are wanted; all of them if none is named.

    A study may be a part of the one that the picture was described for: what is not in it is left out.
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
    """The number of each column: that of its name if all names are such numbers, else that at its place.

    A study that has grown in parts has its columns in another order, and a part of one has fewer than numbers.
    """
    all_of_them = list(columns)
    names = all_of_them if wanted is None else list(wanted)
    by_name = {slug(f"{number:g}"): number for number in x}
    if wanted is None and (len(names) != len(x) or all(slug(name) in by_name for name in names)):
        numbers = by_name
    elif len(names) == len(x):
        numbers = {slug(name): number for name, number in zip(names, x, strict=True)}
    else:
        text = f"x has {len(x)} numbers for {len(names)} columns"
        raise UserError("report.invalid_option", text, "x", "set one number for each column")
    found = {name: numbers[slug(name)] for name in all_of_them if slug(name) in numbers}
    if not found:
        text = f"x = {list(x)}: none of these numbers belongs to the columns {', '.join(all_of_them)}"
        raise MissingData("report.not_in_study", text, "x", "set one number for each column")
    return found


def finished_runs(
    results: StudyResults, rows: Selection, columns: Selection
) -> dict[tuple[str, str], list[FinishedRun]]:
    """The finished runs by row and column; cells without any are left out."""
    study = results.study
    found = {
        (row, column): results.finished_runs(row, column)
        for row in select(study.rows, rows, "row")
        for column in select(study.columns, columns, "column")
    }
    found = {key: outcomes for key, outcomes in found.items() if outcomes}
    if not found:
        raise no_finished_run()
    return found


def run_curve(outcome: FinishedRun, key: str) -> Curve:
    """One run's (round, value): a key of its rounds, or "forgetting", the global less the mean local accuracy.

    Local accuracies are of the whole test set; they say nothing of one group of it.
    """
    if key not in ("local_accuracy", "forgetting"):
        return outcome.curve(key)
    if outcome.cell.group is not None:
        return []
    local = outcome.curve("local_accuracy") or probe_curve(outcome, "local", "mean_accuracy")
    if key == "local_accuracy":
        return local
    at = dict(local)
    return [(number, accuracy - at[number]) for number, accuracy in outcome.curve() if number in at]


def probe_curve(outcome: FinishedRun, probe: str, key: str) -> Curve:
    """One run's (round, number) of a probe's key."""
    return [(line["round"], float(line[key])) for line in outcome.probe_records(probe) if line.get(key) is not None]


def mean_over_seeds(curves: Sequence[Curve], broke: bool = False) -> MeanCurve | None:
    """Mean and deviation at each round over the seeds that have it; None if none has any."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return None
    rounds = sorted({number for curve in curves for number, _ in curve})
    place = {number: i for i, number in enumerate(rounds)}
    table = np.full((len(curves), len(rounds)), np.nan)
    for line, curve in zip(table, curves, strict=True):
        for number, value in curve:
            line[place[number]] = value
    there = np.isfinite(table)
    count = there.sum(axis=0)
    mean = np.where(there, table, 0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(there, table - mean, 0) ** 2
    deviation = np.sqrt(squares.sum(axis=0) / np.maximum(count - 1, 1))
    mean[count == 0] = np.nan  # a loss may be infinite in all of them
    deviation[count < 2] = np.nan
    return MeanCurve(np.array(rounds), mean, deviation, len(curves), broke)


def accuracy_over_seeds(outcomes: Sequence[FinishedRun], measure: str) -> MeanStd | None:
    """The final, best or last-ten accuracy of several seeds' runs; None if none has one.

    What broke off has no accuracy worth a mean.
    """
    if measure not in ACCURACIES:
        raise unknown_name("measure", measure, ACCURACIES, "report.invalid_option")
    curves = (outcome.curve() for outcome in outcomes if not outcome.diverged)
    return mean_std([ACCURACIES[measure](curve) for curve in curves if curve])


def runs_to_average(outcomes: Sequence[FinishedRun]) -> Sequence[FinishedRun]:
    """The runs that a line over rounds is the mean of: those that came to an end; if none did, what there is."""
    return [outcome for outcome in outcomes if not outcome.diverged] or outcomes


def recall(confusion: Any) -> Floats:
    """Class-wise accuracy [C] of a confusion matrix [C, C]; nan for a class that the test set lacks."""
    table = np.asarray(confusion, dtype=np.float64)
    return safe_divide(np.diagonal(table), table.sum(axis=1))


def safe_divide(part: Any, whole: Any) -> Floats:
    """Part by whole, nan where the whole is 0."""
    part, whole = np.broadcast_arrays(np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64))
    out: Floats = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return out


def probe_records(outcome: FinishedRun, probe: str) -> dict[int, dict[str, Any]]:
    """A probe's lines by round; raises `Missing` if the run has none."""
    lines = outcome.probe_records(probe)
    if not lines:
        raise missing_probe(outcome.cell.row, probe)
    return {line["round"]: line for line in lines}


def participants(lines: Mapping[int, dict[str, Any]]) -> list[int]:
    """All clients that a probe saw, in any round."""
    return sorted({client for line in lines.values() for client in line["clients"]})


def label_counts(outcome: FinishedRun) -> Ints:
    """Training samples by client and class [N, C]."""
    counts = partition_manifest(outcome).get("counts")
    if counts is None:
        text = f"{outcome.path / 'partition.json'} has no counts: the partition has too many clients to store them"
        raise MissingData("report.missing_measurement", text, "counts")
    return np.asarray(counts, dtype=np.int64)


def partition_manifest(outcome: FinishedRun) -> dict[str, Any]:
    """What partition.json says of a run."""
    return read_json(outcome.path / "partition.json")


def pick_client(wanted: int | str, clients: Sequence[int], counts: Ints) -> int:
    """A client by number, or the one of them whose labels are the least even (of several, the largest)."""
    if isinstance(wanted, int):
        if wanted not in clients:
            some = ", ".join(map(str, clients[:10]))
            others = " and others" if len(clients) > 10 else ""
            text = f"client = {wanted}: the client did not participate"
            raise MissingData("report.absent_client", text, "client", f"use one that did: {some}{others}")
        return wanted
    if wanted != MOST_SKEWED:
        text = f'client = "{wanted}": not a client'
        raise UserError("report.invalid_option", text, "client", f'use a number or "{MOST_SKEWED}"')
    return max(clients, key=lambda client: (-round(_entropy(counts[client]), 9), int(counts[client].sum())))


def _entropy(counts: Ints) -> float:
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())


def seeds_note(found: Iterable[Sequence[Any]], what: str = "mean and standard deviation") -> str:
    """How many seeds are in a figure, and what is shown of them."""
    numbers = sorted({len(outcomes) for outcomes in found if outcomes})
    if numbers == [1]:
        return "one seed"
    between = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    return f"{what} of {between} seeds"


def scale_note(results: StudyResults) -> list[str]:
    """What is to be said of a study with fewer rounds than the paper's; nothing of a whole one."""
    return scaled(results.study)
