"""Evaluation of a run beside the accuracy on the test set: metrics, the clients' held-out examples, early stopping."""

import logging
from collections.abc import Sequence
from typing import Any, Literal

from fedrecall.config.experiment import Experiment
from fedrecall.config.run_section import RunSection, StopSection, metric_name
from fedrecall.core.client_report import has_global_model, has_personal_model
from fedrecall.core.evaluation import (
    EVALUATE,
    EvaluationRequest,
    HeldOutPart,
    collect_scores,
    confusion_counts,
    find_evaluation_error,
    finite_or_none,
)
from fedrecall.core.metrics import CONFUSION, METRICS, Metric, compute_metrics
from fedrecall.core.types import Engine, Reply, Score, Server
from fedrecall.errors import UserError, unknown_name
from fedrecall.runs.records import RoundRecord
from fedrecall.simulation.clients import SimulatedClients

log = logging.getLogger(__name__)

MonitoredPart = Literal["validation", "test", "client_test"]
"""Examples on which early stopping and the choice of the best model look."""


def requested_metrics(run: RunSection) -> tuple[Metric, ...]:
    """Return the metrics of run.metrics and of run.stop, each once."""
    found = {metric.name: metric for metric in map(_resolve, run.metrics) if metric is not None}
    if run.stop is not None and run.stop.metric not in found:
        if run.stop.metric not in METRICS:
            raise unknown_name("metric", run.stop.metric, [*METRICS, *found], key="run.stop.metric")
        found[run.stop.metric] = METRICS[run.stop.metric]
    return tuple(found.values())


def _resolve(chosen: Any) -> Metric | None:
    """Return the metric of a name or of a user's function; None for the confusion matrix, which is not a number."""
    if callable(chosen):
        name = metric_name(chosen).rpartition(".")[2]
        return Metric(name, chosen, bool(getattr(chosen, "greater_is_better", True)))
    if chosen == CONFUSION:
        return None
    if ":" in chosen:
        raise UserError(
            "config.needs_python_object",
            f"run.metrics = {chosen}: the configuration refers to a function passed in Python",
            "run.metrics",
            "pass the function in run.metrics again",
        )
    return METRICS[chosen]


def evaluation_request(run: RunSection, classes: int) -> EvaluationRequest:
    """Return the measurements that clients make on their held-out examples: the accuracy and the requested metrics."""
    metrics = requested_metrics(run)
    if classes <= 5 and any(metric is METRICS["top5"] for metric in metrics):
        message = f"run.metrics = top5: the data has {classes} classes, so every prediction is among the first five"
        raise UserError("config.conflict", message, "run.metrics", "remove top5")
    with_accuracy = metrics if any(metric.name == "accuracy" for metric in metrics) else (METRICS["accuracy"], *metrics)
    return EvaluationRequest(with_accuracy, CONFUSION in run.metrics)


def evaluate_clients(engine: Engine, clients: SimulatedClients, server: Server) -> RoundRecord:
    """Evaluate the model on the held-out examples of all clients; returns entries of the round's record.

    A method without a global model has the personal models evaluated: with the shared part, or, if no weights are
    shared, with the tensors of the method's next broadcast.
    """
    method, has_global = clients.method, has_global_model(clients.method, server.f)
    parts: tuple[str, ...] = tuple(clients.held_out)
    if "client_test" in parts and has_global and has_personal_model(method):
        parts = (*parts, "personal")
    if method.traits.personalised and method.traits.private is None:  # its clients have complete models of their own
        down = method.broadcast(server)
    else:
        w, b = server.f.split(server.evaluated_state)
        down = {"w": w} | ({"b": b} if len(b) else {})
    cohort = engine.cohort(server.t, range(len(clients.partition)))
    replies = [reply for reply in cohort.run(EVALUATE, down) if _is_valid(reply, parts, clients)]
    scores = collect_scores(replies, parts, clients.evaluation)
    out: RoundRecord = {}
    if "client_test" in scores:
        model = "global" if has_global else "personal"
        out["client_test"] = {"model": model, **scores["client_test"].summary(clients.evaluation.metrics)}
    if "personal" in scores:
        out["client_test_personal"] = scores["personal"].summary(clients.evaluation.metrics)
    if "validation" in scores:
        found = scores["validation"]
        values = {metric.name: found.weighted(metric.name) for metric in clients.evaluation.metrics}
        out["validation"] = {"examples": sum(found.sizes), **values}
    return out


def _is_valid(reply: Reply, parts: Sequence[str], clients: SimulatedClients) -> bool:
    error = find_evaluation_error(reply.up, parts, clients.evaluation, clients.classes)
    if error is not None:
        log.warning("the evaluation of client %s is not used: %s", reply.client, error)
    return error is None


def server_metrics(run: RunSection, score: Score | None, classes: int) -> RoundRecord:
    """Return the requested metrics on the server's test set, as entries of the round's record."""
    metrics, out = requested_metrics(run), RoundRecord()
    if score is not None and score.z is not None and metrics:
        out["metrics"] = finite_or_none(compute_metrics(metrics, score.y, score.z))
    if score is not None and CONFUSION in run.metrics:
        out["confusion"] = confusion_counts(score.y, score.predicted, classes).tolist()
    return out


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
