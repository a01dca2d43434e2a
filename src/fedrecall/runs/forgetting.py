"""Forgetting: share of the test examples that the received model classified correctly and the client's does not."""

from collections.abc import Collection
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from fedrecall.core.rounds import RoundResult
from fedrecall.data.imbalance import frequency_groups
from fedrecall.runs.probe_context import ProbeContext, ProbeRecord


class Forgotten(NamedTuple):
    """Shares of the test examples that the received model classified correctly and the trained ones do not."""

    clients: list[int]
    shares: list[float | None]  # by client; None if the received model was never right
    absent: list[float | None]  # of the classes of which the client has no example; None if it has all of them

    def means(self) -> ProbeRecord:
        """Return the means over the clients that have a value."""
        return {"forgotten": _mean(self.shares), "forgotten_absent": _mean(self.absent)}


def measure_forgotten(context: ProbeContext, result: RoundResult) -> Forgotten | None:
    """Return what the participants forgot in a round; None if their predictions or the received model's are unknown."""
    reports = [report for report in result.client_metrics if "predicted" in report]
    if result.received is None or not reports:
        return None
    y = context.test.y
    known = result.received.predicted == y
    clients, shares, absent = [], [], []
    for report in reports:
        client, wrong = int(report["client"]), report["predicted"] != y
        labels = context.labels(client)
        lacks = labels[y] == 0 if labels.sum() > 0 else torch.zeros_like(known)  # a node's own data are not known here
        clients.append(client)
        shares.append(_share(wrong, known))
        absent.append(_share(wrong, known & lacks))
    return Forgotten(clients, shares, absent)


def frequency_metrics(context: ProbeContext, result: RoundResult) -> ProbeRecord:
    """Return accuracy and forgetting of the classes with many, medium and few training examples in the federation."""
    y, reports = context.test.y, [report for report in result.client_metrics if "predicted" in report]
    counts = context.train.class_counts(context.classes).numpy()
    masks = {name: torch.isin(y, torch.from_numpy(group)) for name, group in frequency_groups(counts).items()}
    record: ProbeRecord = {}
    if result.score is not None:
        correct = result.score.predicted == y
        record["frequency"] = {name: _share(correct, mask) for name, mask in masks.items()}
    if result.received is not None and reports:
        known = result.received.predicted == y
        record["forgotten_frequency"] = {
            name: _mean([_share(report["predicted"] != y, known & mask) for report in reports])
            for name, mask in masks.items()
        }
    return record


def _share(hits: Tensor, of: Tensor) -> float | None:
    return float(hits[of].double().mean()) if of.any() else None


def _mean(values: Collection[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
