"""What is kept of a round and of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedrecall.core.rounds import RoundResult
from fedrecall.data.dataset import Dataset

RoundRecord = dict[str, Any]  # one round, as a line of rounds.jsonl

MAX_REPORTED_GROUPS = 20  # domains are reported one by one; thousands of writers are not


def make_record(r: RoundResult, dataset: Dataset, epsilon: float | None = None) -> RoundRecord:
    """What rounds.jsonl keeps of a round; epsilon is what the rounds so far give away of a client."""
    global_accuracy = None if r.score is None else r.score.accuracy
    out: RoundRecord = {
        "round": r.number,
        "accuracy": r.local_accuracy if r.personalised else global_accuracy,
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
    if r.rejected:
        out["refused"] = [refusal._asdict() for refusal in r.rejected]
    if epsilon is not None:
        out["epsilon"] = epsilon
    if r.score is not None and dataset.test_groups is not None and len(dataset.group_names) <= MAX_REPORTED_GROUPS:
        right = (r.score.predicted == r.score.y).double()
        of = ((name, right[dataset.test_groups == g]) for g, name in enumerate(dataset.group_names))
        out["groups"] = {name: float(hits.mean()) for name, hits in of if len(hits)}
    return out


def summarise(records: Sequence[RoundRecord], initial: float, targets: Sequence[float]) -> dict[str, Any]:
    """Final, best and mean of the last ten accuracies, first rounds at the targets, and totals."""
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
    }
