"""Profile of a client's round: self time of torch's operations, in one thread of one process."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.federation import Running, Work
from fedrecall.methods import METHODS

CASES = {
    "6/16 CNN": Work(1, 500, 5),
    "6/16 CNN, batches of 10": Work(1, 500, 5, batch=10),
    "32/64 CNN": Work(1, 500, 1, model="cnn-32-64"),
}
KINDS = {  # the first whose text is in the name of an operation
    "convolutions": ("conv",),
    "pooling": ("pool",),
    "matrix products": ("mm", "linear"),
    "copies of data": ("index_select", "copy", "clone", "to_copy", "index"),
    "vector SGD": ("add", "sub", "cat"),
    "ReLU": ("relu", "threshold", "clamp"),
}


def measure() -> list[dict[str, Any]]:
    """Return one row per kind of operation, in per cent of the total time."""
    shares = {name: _shares(work) for name, work in CASES.items()}
    kinds = sorted(KINDS, key=lambda kind: -max(share[kind] for share in shares.values()))
    return [{"what": kind} | {f"{name} %": shares[name][kind] for name in CASES} for kind in [*kinds, "the rest"]]


def _shares(work: Work) -> dict[str, float]:
    running = Running(work, METHODS["fedavg"](), engine="serial")
    running.round()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        running.round()
    running.close()
    spent = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for event in seen.key_averages():
        kind = next((k for k, parts in KINDS.items() if any(part in event.key for part in parts)), "the rest")
        spent[kind] += event.self_cpu_time_total
    total = sum(spent.values())
    return {kind: 100 * time / total for kind, time in spent.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in measure():
        print(row)
