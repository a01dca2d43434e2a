"""Table of costs: sample passes, time, traffic."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from fedrecall.config.tables import read_toml
from fedrecall.data.partition import Partition
from fedrecall.errors import UserError
from fedrecall.reporting.tables import ReportTable, TableNote
from fedrecall.reporting.tables.cells import MILLION, number_cell
from fedrecall.reporting.tables.federation import node_sizes
from fedrecall.studies.results import FinishedRun, StudyResults

TRAFFIC = ("bytes_up", "bytes_down")


def cost_table(results: StudyResults) -> ReportTable:
    """Make the table of costs, one line per row of the study, averaged over its finished runs."""
    rows = []
    for row in results.study.rows:
        runs = list({run.path: run for run in results.finished_runs(row)}.values())  # columns may share a run
        sends = row not in results.study.baselines  # a baseline sends nothing to a server
        cells = (
            number_cell(float(len(runs))),
            number_cell(_mean([passes_trained(run) for run in runs]), MILLION),
            number_cell(_mean([seconds for run in runs for _, seconds in run.curve("seconds")])),
            number_cell(_mean([run.summary.get("seconds") for run in runs])),
            *(number_cell(_mean([run.summary.get(key) for run in runs if sends]), MILLION) for key in TRAFFIC),
        )
        rows.append((row, cells))
    return ReportTable(
        name="cost",
        title="Cost of a run",
        header=("method", "runs", "million examples", "seconds a round", "seconds", "MB up", "MB down"),
        rows=tuple(rows),
        notes=(
            TableNote("means over the finished runs of a row"),
            TableNote(
                "million examples: training examples processed, counted once per round, participant and local epoch"
            ),
            TableNote("MB: sent by and to all participants of a run"),
        ),
        fraction=results.study.fraction,
    )


def passes_trained(run: FinishedRun) -> float | None:
    """Count the examples trained on, over rounds, participants and local epochs; None if a file is unreadable."""
    try:
        sizes = Partition.load(run.path).sizes
        if not sizes.any():  # the data are on the nodes of a federation
            nodes = node_sizes(run)
            sizes = np.array([nodes.get(client, 0) for client in range(len(sizes))])
            if not sizes.any():
                return None
        epochs = read_toml(run.path / "config.toml")["local"]["epochs"]
    except (UserError, KeyError, IndexError):  # a report shows the other costs nevertheless
        return None
    return float(epochs * sum(int(sizes[line["clients"]].sum()) for line in run.records))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
