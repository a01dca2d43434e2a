"""Early stopping, and the choice of the best round, by the metric of `run.stop` on examples that are held out."""

from collections.abc import Sequence
from typing import Any, Literal

from fedrecall.config.experiment import Experiment
from fedrecall.config.run_section import StopSection
from fedrecall.core.evaluation import HeldOutPart
from fedrecall.core.metrics import METRICS
from fedrecall.errors import UserError
from fedrecall.runs.evaluation import requested_metrics
from fedrecall.runs.records import RoundRecord

MonitoredPart = Literal["validation", "test", "client_test"]
"""Examples on which early stopping and the choice of the best model are based."""


def monitored_part(held_out: Sequence[HeldOutPart], has_test: bool) -> MonitoredPart | None:
    """Return the examples that decide when to stop: validation if there is one, else the test set; None: nothing."""
    if "validation" in held_out:
        return "validation"
    return "test" if has_test else "client_test" if "client_test" in held_out else None


def monitored_value(record: RoundRecord, part: MonitoredPart, metric: str) -> float | None:
    """Return the value of a metric that a round has on these examples; None if it was not evaluated."""
    if part == "test":
        value = record["accuracy"] if metric == "accuracy" else record.get("metrics", {}).get(metric)
    elif part == "validation":
        value = record.get("validation", {}).get(metric)
    else:
        value = record.get("client_test", {}).get(metric, {}).get("weighted")
    return None if value is None else float(value)


class Monitor:
    """The metric that chooses the best round and decides when to stop, as a function of the records."""

    def __init__(self, experiment: Experiment, part: MonitoredPart | None) -> None:
        self.part, self._stop = part, experiment.run.stop
        name = "accuracy" if self._stop is None else self._stop.metric
        self.metric = next((m for m in requested_metrics(experiment.run) if m.name == name), METRICS["accuracy"])
        if self._stop is not None and part is None:
            message = "run.stop: no examples are held out, so there is nothing to monitor"
            raise UserError("config.conflict", message, "run.stop", "set data.validation, such as 0.2")

    def values(self, records: Sequence[RoundRecord]) -> list[tuple[int, float]]:
        """Return (round, value) of the rounds that have the metric."""
        if self.part is None:
            return []
        found = ((record["round"], monitored_value(record, self.part, self.metric.name)) for record in records)
        return [(number, value) for number, value in found if value is not None]

    def best(self, records: Sequence[RoundRecord]) -> tuple[int, float] | None:
        """Return the first round with the best value, and the value."""
        sign = 1 if self.metric.greater_is_better else -1
        return max(self.values(records), key=lambda pair: (sign * pair[1], -pair[0]), default=None)

    def stop_reason(self, records: Sequence[RoundRecord]) -> Literal["target", "patience"] | None:
        """Return why the run stops after these rounds; None: it continues."""
        stop, values, best = self._stop, self.values(records), self.best(records)
        if stop is None or best is None or values[-1][0] != records[-1]["round"]:
            return None
        if stop.target is not None and self._reaches(values[-1][1], stop):
            return "target"
        later = sum(number > best[0] for number, _ in values)
        return "patience" if stop.patience is not None and later >= stop.patience else None

    def _reaches(self, value: float, stop: StopSection) -> bool:
        assert stop.target is not None
        return value >= stop.target if self.metric.greater_is_better else value <= stop.target

    def summary(self, records: Sequence[RoundRecord]) -> dict[str, Any]:
        """Return the monitored metric on validation examples, for the summary; nothing without validation."""
        best, values = self.best(records), self.values(records)
        if self.part != "validation" or best is None:
            return {}
        return {
            "validation": {
                "metric": self.metric.name,
                "final": values[-1][1],
                "last10": sum(value for _, value in values[-10:]) / len(values[-10:]),
                "best": best[1],
                "best_round": best[0],
            }
        }
