"""Evaluation on the clients' own held-out examples: the client's half, and the summary of all clients' replies.

A client sends, for each part of its held-out examples, their number and the metrics: numbers only. The confusion
matrix, which shows label counts, is sent only if it is requested.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedrecall.core.metrics import Metric, compute_metrics
from fedrecall.core.reply_validation import MAX_CLIENT_EXAMPLES, MAX_METRIC
from fedrecall.core.types import Payload, Reply

EVALUATE = "evaluate"  # name of the task

HeldOutPart = Literal["client_test", "validation"]
"""Examples held out from a client."""

WORST_SHARE = 0.1  # of the clients: the worst tenth

ROUNDING = 1e-6  # distance beyond a metric's bound that a correct client may reach by rounding


class EvaluationRequest(NamedTuple):
    """Measurements that every client makes on its held-out examples."""

    metrics: tuple[Metric, ...] = ()
    confusion: bool = False


def score_part(request: EvaluationRequest, y: Tensor, z: Tensor) -> Tensor:
    """Return the number of examples and the metrics of their logits: float64 [1 + metrics], NaN where not defined."""
    values = compute_metrics(request.metrics, y, z).values()
    return torch.tensor([len(y), *values], dtype=torch.float64)


def confusion_counts(y: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count examples by true class and predicted class [K, K]."""
    return torch.bincount(y * classes + predicted, minlength=classes**2).view(classes, classes)


def find_evaluation_error(up: Payload, parts: Iterable[str], request: EvaluationRequest, classes: int) -> str | None:
    """Return what is wrong with a client's reply of these parts, or None."""
    expected: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        part: (torch.float64, (1 + len(request.metrics),)) for part in parts
    }
    if request.confusion:
        expected["confusion"] = (torch.int64, (classes, classes))
    if up.keys() != expected.keys():
        return f"the reply has {', '.join(sorted(up)) or 'nothing'}, expected {', '.join(sorted(expected))}"
    for name, (dtype, shape) in expected.items():
        if up[name].dtype != dtype or tuple(up[name].shape) != shape:
            return f"{name} is {up[name].dtype} {list(up[name].shape)}, expected {dtype} {list(shape)}"
        is_possible = _are_counts(up[name]) if name == "confusion" else _are_scores(up[name], request.metrics)
        if not is_possible:
            return f"{name} has values that are not possible"
    return None


def _are_scores(scores: Tensor, metrics: Sequence[Metric]) -> bool:
    """Return True if a number of examples and metrics are possible. NaN: the metric is not defined for the client."""
    n, *values = scores.tolist()
    return (
        _are_counts(scores[:1])
        and n.is_integer()
        and all(
            math.isnan(value) or (abs(value) <= MAX_METRIC and metric.low - ROUNDING <= value <= metric.high + ROUNDING)
            for value, metric in zip(values, metrics, strict=True)
        )
    )


def _are_counts(counts: Tensor) -> bool:
    """Return True if all values are from 0 to the largest number of examples of a client."""
    return bool(((counts >= 0) & (counts <= MAX_CLIENT_EXAMPLES)).all())


class ClientScores(NamedTuple):
    """Scores of all clients on one part of their held-out examples."""

    clients: list[int]
    """Clients that replied and have such examples."""
    sizes: list[int]
    """Examples of each."""
    values: dict[str, list[float]]
    """By metric, one for each client; NaN where the metric is not defined."""
    confusion: dict[int, list[list[int]]]
    """Confusion matrix of each client, if requested."""

    def weighted(self, metric: str) -> float | None:
        """Return the mean over clients, weighted by examples; None if the metric is not defined for any client."""
        return _mean(*self._defined(metric))

    def summary(self, metrics: Sequence[Metric]) -> dict[str, Any]:
        """Return plain data: by metric mean, weighted mean, worst, worst tenth, undefined clients, each value."""
        out: dict[str, Any] = {"clients": self.clients, "examples": self.sizes}
        for metric in metrics:
            values, sizes = self._defined(metric.name)
            ordered = sorted(values, reverse=not metric.greater_is_better)
            worst = ordered[: ceil(WORST_SHARE * len(values))]
            out[metric.name] = {
                "mean": _mean(values, [1] * len(values)),
                "weighted": _mean(values, sizes),
                "worst": ordered[0] if ordered else None,
                "worst_tenth": _mean(worst, [1] * len(worst)),
                "undefined": len(self.clients) - len(values),
                "by_client": [None if math.isnan(value) else value for value in self.values[metric.name]],
            }
        if self.confusion:
            out["confusion"] = [self.confusion[client] for client in self.clients]
        return out

    def _defined(self, metric: str) -> tuple[list[float], list[int]]:
        pairs = [(v, n) for v, n in zip(self.values[metric], self.sizes, strict=True) if not math.isnan(v)]
        return [v for v, _ in pairs], [n for _, n in pairs]


def collect_scores(
    replies: Iterable[Reply], parts: Sequence[str], request: EvaluationRequest
) -> dict[str, ClientScores]:
    """Collect the replies of all clients, in the order of the clients."""
    ordered = sorted(replies, key=lambda reply: reply.client or 0)
    out: dict[str, ClientScores] = {}
    for part in parts:
        rows = [(reply.client or 0, reply.up, *reply.up[part].tolist()) for reply in ordered if reply.up[part][0] > 0]
        out[part] = ClientScores(
            [client for client, *_ in rows],
            [int(n) for _, _, n, *_ in rows],
            {metric.name: [values[i] for _, _, _, *values in rows] for i, metric in enumerate(request.metrics)},
            {c: up["confusion"].tolist() for c, up, *_ in rows} if request.confusion and part == "client_test" else {},
        )
    return out


def _mean(values: Sequence[float], weights: Sequence[int]) -> float | None:
    total = sum(weights)
    return math.fsum(v * n for v, n in zip(values, weights, strict=True)) / total if total else None


def finite_or_none(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics for JSON: None where a metric is not defined."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
