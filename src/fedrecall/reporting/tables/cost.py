"""What runs cost: examples trained on, time, traffic."""

from collections.abc import Sequence
from statistics import fmean

from fedrecall.config.tables import read_toml
from fedrecall.data.partition import Partition
from fedrecall.errors import UserError
from fedrecall.reporting.tables import ReportTable
from fedrecall.reporting.tables.cells import number_cell
from fedrecall.studies.results import FinishedRun, StudyResults

MILLION = 1e6


def cost_table(results: StudyResults) -> ReportTable:
    """Of each row, the means over its runs: examples trained on, time, traffic."""
    rows = []
    for row in results.study.rows:
        runs = list({outcome.path: outcome for outcome in results.finished_runs(row)}.values())
        entries = (
            number_cell(float(len(runs))),
            number_cell(_mean([passes_trained(run) for run in runs]), MILLION),
            number_cell(_mean([seconds for run in runs for _, seconds in run.curve("seconds")])),
            number_cell(_mean([run.summary.get("seconds") for run in runs])),
            number_cell(_mean([run.summary.get("bytes_up") for run in runs]), MILLION),
            number_cell(_mean([run.summary.get("bytes_down") for run in runs]), MILLION),
        )
        rows.append((row, entries))
    return ReportTable(
        name="cost",
        title="Cost of a run",
        header=("method", "runs", "million sample passes", "seconds a round", "seconds", "MB up", "MB down"),
        rows=tuple(rows),
        notes=(
            "means over the finished runs of a row",
            "sample passes: examples that clients trained on, over all rounds, participants and local epochs",
            "MB: sent by and to all participants of a run together",
        ),
        fraction=results.study.fraction,
    )


def passes_trained(outcome: FinishedRun) -> float | None:
    """Examples that were trained on: rounds by participants by local epochs by their examples."""
    try:
        sizes = Partition.load(outcome.path).sizes
        epochs = read_toml(outcome.path / "config.toml")["local"]["epochs"]
    except (UserError, KeyError, IndexError):  # a report shows what there is
        return None
    return float(epochs * sum(int(sizes[line["clients"]].sum()) for line in outcome.records))


def _mean(found: Sequence[float | None]) -> float | None:
    there = [value for value in found if value is not None]
    return fmean(there) if there else None
