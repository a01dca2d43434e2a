"""Records: one a round, as in rounds.jsonl, and the summary of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedrecall.core.failures import ClientFailure
from fedrecall.core.rounds import RoundResult
from fedrecall.data.dataset import Dataset
from fedrecall.errors import printable

RoundRecord = dict[str, Any]  # a line of rounds.jsonl

MAX_REASON = 500  # characters of the reason of a lost reply; failures/ has the whole text

MAX_REPORTED_GROUPS = 20  # groups with an accuracy of their own: domains are few, writers are thousands


def make_record(
    r: RoundResult,
    dataset: Dataset,
    epsilon: float | None = None,
    evaluation: RoundRecord | None = None,
    lost: Sequence[ClientFailure] = (),
) -> RoundRecord:
    """Return the record of a round. `lost` are the clients without a reply.

    `epsilon` is the privacy loss of all rounds so far; JSON has null for infinity. `evaluation` has entries beside the
    accuracy on the test set; if the server has no test set, the accuracy is that on the clients' test examples.
    """
    evaluation = evaluation or {}
    global_accuracy = None if r.score is None else r.score.accuracy
    if not len(dataset.test_y):
        global_accuracy = evaluation.get("client_test", {}).get("accuracy", {}).get("weighted")
    out: RoundRecord = {
        "round": r.number,
        "accuracy": r.local_accuracy if r.personalised and len(dataset.test_y) else global_accuracy,
        "loss": None if r.score is None else r.score.mean_loss,
        "train_loss": r.train_loss,
        "seconds": round(r.seconds, 4),
        "bytes_up": r.bytes_up,
        "bytes_down": r.bytes_down,
        "clients": r.clients,
        "replies": r.replies,
    }
    if r.local_accuracy is not None:
        out["local_accuracy"] = r.local_accuracy
    out |= evaluation
    if r.rejected:
        out["refused"] = [{"client": x.client, "code": x.code, "reason": x.reason} for x in r.rejected]
    if lost:
        out["lost"] = [
            {"client": failure.client, "code": failure.code, "reason": printable(failure.error, MAX_REASON)}
            for failure in lost
        ]
    if epsilon is not None:
        out["epsilon"] = epsilon if math.isfinite(epsilon) else None
    if r.score is not None and (groups := group_accuracies(r.score.predicted == r.score.y, dataset)) is not None:
        out["groups"] = groups
    return out


def group_accuracies(is_correct: Tensor, dataset: Dataset) -> dict[str, float] | None:
    """Return the accuracy on each group of the test set by name; None if it has none, or too many."""
    if dataset.test_groups is None or len(dataset.group_names) > MAX_REPORTED_GROUPS:
        return None
    correct = is_correct.double()
    by_group = ((name, correct[dataset.test_groups == g]) for g, name in enumerate(dataset.group_names))
    return {name: float(hits.mean()) for name, hits in by_group if len(hits)}


MIN_PULL = 0.01  # share of the gradient at the logits below which a distillation has practically no effect


def has_no_effect(records: Sequence[RoundRecord]) -> bool:
    """Return True if the method distils, and its share of the gradient at the logits was below 1 % in every round."""
    pulls = [record["pull"] for record in records if record.get("pull") is not None]
    return bool(pulls) and max(pulls) < MIN_PULL


def summarise(records: Sequence[RoundRecord], initial: float | None, targets: Sequence[float]) -> dict[str, Any]:
    """Return final, best and mean of the last ten accuracies, the first round at each target, and totals.

    Metrics are added where they were computed: final and mean of the last ten, and the clients' after the last round.
    """
    curve = [(r["round"], r["accuracy"]) for r in records if r["accuracy"] is not None]
    accuracies = [accuracy for _, accuracy in curve]
    best = max(accuracies, default=None)
    return {
        "rounds": len(records),
        "initial": initial,
        "final": accuracies[-1] if accuracies else None,
        "best": best,
        "best_round": next((number for number, accuracy in curve if accuracy == best), None),
        "last10": float(np.mean(accuracies[-10:])) if accuracies else None,
        "rounds_to_target": {
            str(target): next((number for number, accuracy in curve if accuracy >= target), None) for target in targets
        },
        "seconds": round(sum(r["seconds"] for r in records), 4),
        "bytes_up": sum(r["bytes_up"] * r["replies"] for r in records),
        "bytes_down": sum(r["bytes_down"] * len(r["clients"]) for r in records),
        **_metric_summary(records),
    }


def describe_privacy(summary: Mapping[str, Any]) -> str | None:
    """Return the guarantee in a summary as text; None for a run without privacy.

    >>> describe_privacy({"privacy": {"epsilon": 3.21, "delta": 1e-5}})
    'epsilon 3.21 at delta 1e-05'
    """
    found = summary.get("privacy")
    if found is None:
        return None
    if found["epsilon"] is None:
        return f"epsilon is infinite: {found['unbounded']}"
    return f"epsilon {found['epsilon']:.3g} at delta {found['delta']:g}"


def _metric_summary(records: Sequence[RoundRecord]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    evaluated = [record["metrics"] for record in records if "metrics" in record]
    for name in evaluated[-1] if evaluated else ():
        values = [metrics[name] for metrics in evaluated[-10:] if metrics.get(name) is not None]
        final, last10 = evaluated[-1][name], float(np.mean(values)) if values else None
        out.setdefault("metrics", {})[name] = {"final": final, "last10": last10}
    for part in ("client_test", "client_test_personal"):
        clients = [record[part] for record in records if part in record]
        out |= {part: clients[-1]} if clients else {}
    return out
