"""Evaluation of a run beside the accuracy on the test set: metrics, and the clients' held-out examples."""

import logging
from collections.abc import Sequence
from typing import Any

from fedrecall.config.run_section import RunSection
from fedrecall.core.client_report import has_global_model, has_personal_model
from fedrecall.core.evaluation import (
    EVALUATE,
    EvaluationRequest,
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


def requested_metrics(run: RunSection) -> tuple[Metric, ...]:
    """Return the metrics of run.metrics and of run.stop, each once."""
    found = dict[str, Metric]()
    for metric in filter(None, map(_resolve, run.metrics)):
        if found.setdefault(metric.name, metric).function is not metric.function:
            raise duplicate_metric(metric.name)
    if run.stop is not None and run.stop.metric not in found:
        if run.stop.metric not in METRICS:
            raise unknown_name("metric", run.stop.metric, [*METRICS, *found], key="run.stop.metric")
        found[run.stop.metric] = METRICS[run.stop.metric]
    return tuple(found.values())


def duplicate_metric(name: str) -> UserError:
    """Return the error for two functions of one name, which tables and records could not tell apart."""
    message = f"run.metrics: two functions have the name {name}"
    return UserError("config.conflict", message, "run.metrics", "set __name__ of one of them to another name")


def _resolve(chosen: Any) -> Metric | None:
    """Return the metric of a name or of a user's function; None for the confusion matrix, which is not a number."""
    if callable(chosen):
        name = getattr(chosen, "__name__", type(chosen).__name__)
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
