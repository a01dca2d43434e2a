"""Probes: what else to look at while a run goes on. Each states its cost, and none changes a bit of the result.

A probe says one line of plain data a round, kept in `probes/<name>.jsonl` of the run directory.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedrecall.core.client_report import SHIFT_METRICS, ReportRequest, feature_examples
from fedrecall.core.rounds import RoundResult
from fedrecall.core.types import Payload
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition

ProbeRecord = dict[str, Any]  # plain data, ready for JSON


@dataclass(frozen=True)
class ProbeContext:
    """What probes look at beside a round."""

    train: Examples  # all that the clients hold together
    test: Examples
    partition: Partition
    classes: int

    def labels(self, client: int) -> Tensor:
        """A client's training examples of each class [K]."""
        return self.train.subset(torch.from_numpy(self.partition.rows(client))).class_counts(self.classes)

    def count(self, labels: Tensor) -> Tensor:
        """How often each class occurs [K]."""
        return torch.bincount(labels, minlength=self.classes)

    def confusion(self, predicted: Tensor) -> Tensor:
        """Test examples by true class and predicted class [K, K]."""
        flat = torch.bincount(self.test.y * self.classes + predicted, minlength=self.classes**2)
        return flat.view(self.classes, self.classes)


class Probe(NamedTuple):
    """Something to look at."""

    about: str
    cost: str  # beside the training, a round
    required_reports: Collection[str]  # what clients must report: fields of Observe
    read: Callable[[ProbeContext, RoundResult], ProbeRecord | None]  # None: nothing to say of this round


def _confusion(view: ProbeContext, r: RoundResult) -> ProbeRecord | None:
    return None if r.score is None else {"confusion": view.confusion(r.score.predicted).tolist()}


def _local(view: ProbeContext, r: RoundResult) -> ProbeRecord:
    clients = [int(report["client"]) for report in r.client_metrics]
    labels = torch.stack([view.labels(client) for client in clients])
    predicted = [report["predicted"] for report in r.client_metrics]
    correct = torch.stack([view.count(view.test.y[p == view.test.y]) for p in predicted])
    test = view.count(view.test.y)
    accuracy = float((correct.sum(1).double() / test.sum()).mean())
    inside, outside = _in_and_out_of_distribution(labels, correct, test)
    line: ProbeRecord = {
        "clients": clients,
        "labels": labels.tolist(),
        "correct": correct.tolist(),
        "predicted": [view.count(p).tolist() for p in predicted],
        "test": test.tolist(),
        "mean_accuracy": accuracy,
        "in_distribution": inside,
        "out_distribution": outside,
    }
    if r.score is not None:
        line["forgetting"] = r.score.accuracy - accuracy
    return line


def _in_and_out_of_distribution(labels: Tensor, correct: Tensor, test: Tensor) -> tuple[float, float]:
    """Class-wise accuracy weighted by each client's label shares, and by what is missing from them; mean over clients.

    Classes without test examples have no accuracy: the weights of the others are made to sum to one.
    """
    shares = labels.double() / labels.sum(1, keepdim=True).clamp_min(1)
    seen = (test > 0).double()
    accuracy = correct.double() / test.clamp_min(1)
    inside, outside = shares * seen, (1 - shares) * seen

    def average(weights: Tensor) -> float:
        total = weights.sum(1)
        return float(((weights * accuracy).sum(1) / total.where(total > 0, 1)).mean())

    return average(inside), average(outside)


def _local_confusion(view: ProbeContext, r: RoundResult) -> ProbeRecord:
    return {
        "clients": [int(report["client"]) for report in r.client_metrics],
        "confusion": [view.confusion(report["predicted"]).tolist() for report in r.client_metrics],
    }


def _cohort(view: ProbeContext, r: RoundResult) -> ProbeRecord:
    return {"labels": torch.stack([view.labels(client) for client in r.clients]).sum(0).tolist()}


def _shift(_: ProbeContext, r: RoundResult) -> ProbeRecord:
    parts = [report["shift"].T.tolist() for report in r.client_metrics]
    named = {name: [part[i] for part in parts] for i, name in enumerate(SHIFT_METRICS)}
    return {"clients": [int(report["client"]) for report in r.client_metrics], **named}


def _distillation(_: ProbeContext, r: RoundResult) -> ProbeRecord | None:
    line: ProbeRecord = {}
    names = {key for report in r.client_metrics for key in report if key.startswith("observed.")}
    for name in sorted(names):
        total, number = torch.stack([report[name] for report in r.client_metrics if name in report]).sum(0).tolist()
        line[name.removeprefix("observed.")] = total / number if number else None
    if "alpha" in r.tensors_sent:
        line["alpha"] = r.tensors_sent["alpha"].tolist()
    if "A" in r.tensors_sent:
        line["credibility"] = r.tensors_sent["A"].tolist()
    return line or None


def _own_data(_: ProbeContext, r: RoundResult) -> ProbeRecord:
    both = torch.stack([report["own_data"] for report in r.client_metrics])
    clients = [int(report["client"]) for report in r.client_metrics]
    return {"clients": clients, "global": both[:, 0].tolist(), "local": both[:, 1].tolist()}


def _nothing(_: ProbeContext, __: RoundResult) -> None:
    """Features are no line of JSON: see `features`."""


_TEST_PASS_COST = "a pass over the test set for each participant"

PROBES: dict[str, Probe] = {
    "confusion": Probe("the global model's confusion matrix", "nothing", (), _confusion),
    "local": Probe("class-wise accuracy of local models, forgetting", _TEST_PASS_COST, ("predictions",), _local),
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


def report_request(probes: Collection[str], *, local_accuracy: bool, last: int) -> ReportRequest:
    """What clients must report for these probes; `last` is the last round, from 0."""
    asked = {field for name in probes for field in PROBES[name].required_reports}
    return ReportRequest(
        predictions=local_accuracy or "predictions" in asked,
        own_data="own_data" in asked,
        shift="shift" in asked,
        distillation="distillation" in asked,
        features=last if "features" in asked else None,
    )


def run_probes(probes: Collection[str], view: ProbeContext, r: RoundResult) -> dict[str, ProbeRecord]:
    """What the probes see in a round."""
    seen = {name: PROBES[name].read(view, r) for name in probes}
    return {name: {"round": r.number, **line} for name, line in seen.items() if line is not None}


def feature_tensors(view: ProbeContext, r: RoundResult) -> Payload:
    """Penultimate features of some test examples: the global model's, and those that local models reported."""
    examples = feature_examples(view.test)
    said = {f"local-{int(report['client'])}": report["features"] for report in r.client_metrics if "features" in report}
    return {"global": r.server.f.outputs(r.server.state, examples).h, **said, "y": examples.y}
