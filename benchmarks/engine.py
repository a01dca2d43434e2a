"""Seconds per round of `pool`, compared with the lower bound of `bare`."""

import os
from typing import Any

from benchmarks.bare import Bare
from benchmarks.federation import Running, Work
from benchmarks.timing import take_turns
from fedrecall.methods import METHODS

CASES = {  # name -> work, bound of the ratio
    "10 clients x 500 images x 5 epochs, 6/16 CNN": (Work(), 1.0),
    "10 clients x 500 images x 5 epochs, 32/64 CNN": (Work(model="cnn-32-64"), 1.0),
    "100 clients x 50 images x 1 epoch, 6/16 CNN": (Work(100, 50, 1), 1.05),
    "100 clients x 50 images x 1 epoch, 32/64 CNN": (Work(100, 50, 1, model="cnn-32-64"), 1.05),
}
TURNS = {(5, "cnn"): 5, (5, "cnn-32-64"): 3, (1, "cnn"): 25, (1, "cnn-32-64"): 5}  # short rounds need many


def measure() -> list[dict[str, Any]]:
    """Return one row per case."""
    workers = len(os.sched_getaffinity(0))
    rows = []
    for name, (work, bound) in CASES.items():
        pool, bare = Running(work, METHODS["fedavg"]()), Bare(work, workers)
        best = take_turns({"pool": pool.round, "bare": bare.round}, turns=TURNS[work.epochs, work.model])
        pool.close()
        bare.close()
        rows.append(
            {
                "case": name,
                "pool s": best["pool"],
                "bare s": best["bare"],
                "ratio": best["pool"] / best["bare"],
                "bound": bound,
            }
        )
    return rows
