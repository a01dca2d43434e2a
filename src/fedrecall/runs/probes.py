"""Probes: additional measurements during a run. Each states its cost, and none changes a bit of the result.

A probe returns one record per round, which is stored in `probes/<name>.jsonl` of the run directory.
"""

from collections.abc import Callable, Collection
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from fedrecall.config.run_section import RunSection
from fedrecall.core.client_report import SHIFT_METRICS, ReportRequest, feature_examples
from fedrecall.core.rounds import RoundResult
from fedrecall.core.types import Payload
from fedrecall.runs.forgetting import measure_forgotten
from fedrecall.runs.probe_context import ProbeContext, ProbeRecord


class Probe(NamedTuple):
    """One additional measurement."""

    about: str
    cost: str  # per round, beside the training
    required_reports: Collection[str]  # fields of ReportRequest
    read: Callable[[ProbeContext, RoundResult], ProbeRecord | None]  # None: no record in this round


def _confusion(context: ProbeContext, result: RoundResult) -> ProbeRecord | None:
    return None if result.score is None else {"confusion": context.confusion(result.score.predicted).tolist()}


def _local(context: ProbeContext, result: RoundResult) -> ProbeRecord | None:
    reports = _with("predicted", result)
    if not reports:
        return None
    clients, predicted = [int(report["client"]) for report in reports], [report["predicted"] for report in reports]
    labels = torch.stack([context.labels(client) for client in clients])
    correct = torch.stack([context.count(context.test.y[p == context.test.y]) for p in predicted])
    test = context.count(context.test.y)
    accuracy = float((correct.sum(1).double() / test.sum()).mean())
    inside, outside = _in_and_out_of_distribution(labels, correct, test)
    record: ProbeRecord = {
        "clients": clients,
        "labels": labels.tolist(),
        "correct": correct.tolist(),
        "predicted": [context.count(p).tolist() for p in predicted],
        "test": test.tolist(),
        "mean_accuracy": accuracy,
        "in_distribution": inside,
        "out_distribution": outside,
    }
    if result.score is not None:
        record["forgetting"] = result.score.accuracy - accuracy
    return record


def _in_and_out_of_distribution(labels: Tensor, correct: Tensor, test: Tensor) -> tuple[float, float]:
    """Average class-wise accuracy over clients, weighted by their label shares p, and by 1 - p.

    Classes without test examples have no accuracy: the weights of the others are normalised to sum to one.
    """
    shares = labels.double() / labels.sum(1, keepdim=True).clamp_min(1)
    seen = (test > 0).double()
    accuracy = correct.double() / test.clamp_min(1)
    inside, outside = shares * seen, (1 - shares) * seen

    def average(weights: Tensor) -> float:
        total = weights.sum(1)
        return float(((weights * accuracy).sum(1) / total.where(total > 0, 1)).mean())

    return average(inside), average(outside)


def _local_confusion(context: ProbeContext, result: RoundResult) -> ProbeRecord | None:
    reports = _with("predicted", result)
    clients = [int(report["client"]) for report in reports]
    confusion = [context.confusion(report["predicted"]).tolist() for report in reports]
    return {"clients": clients, "confusion": confusion} if reports else None


def _with(metric: str, result: RoundResult) -> list[Payload]:
    """Return the reports that have a metric: not in every round those that need the test set (`run.probe_every`)."""
    return [report for report in result.client_metrics if metric in report]


def _cohort(context: ProbeContext, result: RoundResult) -> ProbeRecord:
    return {"labels": torch.stack([context.labels(client) for client in result.clients]).sum(0).tolist()}


def _shift(_: ProbeContext, result: RoundResult) -> ProbeRecord | None:
    reports = _with("shift", result)
    parts = [report["shift"].T.tolist() for report in reports]
    named = {name: [part[i] for part in parts] for i, name in enumerate(SHIFT_METRICS)}
    return {"clients": [int(report["client"]) for report in reports], **named} if reports else None


def _distillation(_: ProbeContext, result: RoundResult) -> ProbeRecord | None:
    record: ProbeRecord = {}
    names = {key for report in result.client_metrics for key in report if key.startswith("observed.")}
    for name in sorted(names):
        total, number = (
            torch.stack([report[name] for report in result.client_metrics if name in report]).sum(0).tolist()
        )
        record[name.removeprefix("observed.")] = total / number if number else None
    if "alpha" in result.tensors_sent:
        record["alpha"] = result.tensors_sent["alpha"].tolist()
    if "A" in result.tensors_sent:
        record["credibility"] = result.tensors_sent["A"].tolist()
    return record or None


def _pull(_: ProbeContext, result: RoundResult) -> ProbeRecord | None:
    reports = _with("pull", result)
    pulls = [float(report["pull"]) for report in reports]
    clients = [int(report["client"]) for report in reports]
    return {"pull": fmean(pulls), "clients": clients, "by_client": pulls} if pulls else None


def _forgotten(context: ProbeContext, result: RoundResult) -> ProbeRecord | None:
    found = measure_forgotten(context, result)
    return found and {**found.means(), "clients": found.clients, "shares": found.shares, "absent": found.absent}


def _own_data(_: ProbeContext, result: RoundResult) -> ProbeRecord:
    both = torch.stack([report["own_data"] for report in result.client_metrics])
    clients = [int(report["client"]) for report in result.client_metrics]
    return {"clients": clients, "global": both[:, 0].tolist(), "local": both[:, 1].tolist()}


def _nothing(_: ProbeContext, __: RoundResult) -> None:
    """Return no record: `feature_tensors` writes features to a file of tensors."""


_TEST_PASS_COST = "a pass over the test set for each participant"

PROBES: dict[str, Probe] = {
    "confusion": Probe("the global model's confusion matrix", "nothing", (), _confusion),
    "local": Probe(
        "class-wise accuracy of local models, global minus local accuracy", _TEST_PASS_COST, ("predictions",), _local
    ),
    "forgotten": Probe(
        "share of the test examples that the received model classified correctly and the client's model does not",
        _TEST_PASS_COST,
        ("predictions",),
        _forgotten,
    ),
    "pull": Probe(
        "share of the distillation in the gradient at the logits", "the loss twice for every batch", ("pull",), _pull
    ),
    "local_confusion": Probe("local models' confusion matrices", _TEST_PASS_COST, ("predictions",), _local_confusion),
    "cohort": Probe("labels in the cohort's training data", "nothing", (), _cohort),
    "shift": Probe(
        "distance of local models from the received one", f"{_TEST_PASS_COST} and epoch", ("shift",), _shift
    ),
    "distillation": Probe("weights and targets of the distillation", "little", ("distillation",), _distillation),
    "own_data": Probe(
        "accuracy on the clients' own data", "two passes over each participant's data", ("own_data",), _own_data
    ),
    "features": Probe("features, for t-SNE", "a pass over 1,000 test examples, in the end", ("features",), _nothing),
}


def report_request(run: RunSection) -> ReportRequest:
    """Return the reports that clients send for the probes and the local accuracy."""
    required = {field for name in run.probes for field in PROBES[name].required_reports}
    return ReportRequest(
        predictions=run.local_accuracy or "predictions" in required,
        own_data="own_data" in required,
        shift="shift" in required,
        distillation="distillation" in required,
        pull="pull" in required,
        features="features" in required,
        every=run.probe_every,
        last=run.rounds - 1,
    )


def run_probes(probes: Collection[str], context: ProbeContext, result: RoundResult) -> dict[str, ProbeRecord]:
    """Return the records of a round by probe."""
    records = {name: PROBES[name].read(context, result) for name in probes}
    return {name: {"round": result.number, **record} for name, record in records.items() if record is not None}


def feature_tensors(context: ProbeContext, result: RoundResult) -> Payload:
    """Return penultimate features of some test examples, of the global model and of the reporting local models."""
    examples = feature_examples(context.test)
    local = {
        f"local-{int(report['client'])}": report["features"] for report in result.client_metrics if "features" in report
    }
    return {"global": result.server.f.outputs(result.server.evaluated_state, examples).h, **local, "y": examples.y}
