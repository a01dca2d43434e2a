"""What a client's training does to the classes: the global model before it, the local models after it."""

from typing import NamedTuple

import numpy as np

from fedrecall.reporting.figures.series import (
    MOST_SKEWED,
    Floats,
    MissingData,
    Selection,
    label_counts,
    no_finished_run,
    participants,
    pick_client,
    probe_records,
    recall,
    safe_divide,
    select,
)
from fedrecall.studies.results import FinishedRun, StudyResults


class ModelStage(NamedTuple):
    """A model before or after a client's training."""

    label: str
    confusion: Floats | None  # [C, C]
    recall: Floats  # [C]


class ClientRound(NamedTuple):
    """One client's round, trained by several methods."""

    client: int
    seed: int
    shares: Floats  # of the labels in its training data [C]
    stages: list[ModelStage]


def client_rounds(
    results: StudyResults, *, rows: Selection, columns: Selection, start: str | None, client: int | str, matrices: bool
) -> dict[str, ClientRound]:
    """A client's round in each column whose runs are finished; `matrices` asks for whole confusion matrices.

    With a row to start from, its last global model is what all others begin with; else each row has its own.
    """
    found, missing = {}, no_finished_run()
    for column in select(results.study.columns, columns, "column"):
        try:
            found[column] = _in_column(results, column, rows, start, client, "local_confusion" if matrices else "local")
        except MissingData as error:
            missing = error
    if not found:
        raise missing
    return found


def _in_column(
    results: StudyResults, column: str, rows: Selection, start: str | None, client: int | str, probe: str
) -> ClientRound:
    study = results.study
    names = select(study.rows, rows, "row")
    begins = start or next((str(study.rows[row]["start"]) for row in names if "start" in study.rows[row]), None)
    begins = select(study.rows, [begins], "row")[0] if begins else None
    others = [row for row in names if row != begins]
    others = [row for row in others if study.rows[row].get("start") == begins] or others
    trained = {row: outcomes for row in others if (outcomes := results.finished_runs(row, column))}
    if not trained:
        raise no_finished_run()
    first = next(iter(trained.values()))[0]
    seed, counts = first.cell.seed, label_counts(first)
    who = pick_client(client, participants(probe_records(first, probe)), counts)
    stages = []
    if begins is not None:
        beginnings = [outcome for outcome in results.finished_runs(begins, column) if outcome.cell.seed == seed]
        stages += [_before(outcome, None, "global model") for outcome in beginnings]
    for row, outcomes in trained.items():
        outcome = next((each for each in outcomes if each.cell.seed == seed), None)
        if outcome is None:
            continue
        number, after = _after(outcome, probe, who, f"{row} local")
        if begins is None and number > 1:
            stages.append(_before(outcome, number - 1, f"{row} global"))
        stages.append(after)
    return ClientRound(who, seed, safe_divide(counts[who], counts[who].sum()), stages)


def _before(outcome: FinishedRun, number: int | None, label: str) -> ModelStage:
    lines = probe_records(outcome, "confusion")
    number = max(lines) if number is None else number
    if number not in lines:
        text = f"{outcome.cell.row} was not evaluated after round {number}"
        raise MissingData("report.missing_measurement", text, "run.evaluate_every", "set it to 1 and run it again")
    confusion = np.asarray(lines[number]["confusion"], dtype=np.float64)
    return ModelStage(label, confusion, recall(confusion))


def _after(outcome: FinishedRun, probe: str, client: int, label: str) -> tuple[int, ModelStage]:
    """The client's model of the last round that it took part in, with the number of that round."""
    there = {number: line for number, line in probe_records(outcome, probe).items() if client in line["clients"]}
    if not there:
        text = f"client = {client}: the client did not participate in {outcome.cell.row}"
        raise MissingData("report.absent_client", text, "client", f'use another client or "{MOST_SKEWED}"')
    number, line = max(there.items())
    at = line["clients"].index(client)
    if probe == "local":
        return number, ModelStage(label, None, safe_divide(line["correct"][at], line["test"]))
    confusion = np.asarray(line["confusion"][at], dtype=np.float64)
    return number, ModelStage(label, confusion, recall(confusion))
