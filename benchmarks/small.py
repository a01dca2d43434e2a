"""Seconds per round of many small clients on `pool`, compared with the lower bound of `bare`.

The sizes are those of pfl-research's CIFAR-10 benchmark, except for its network: 1,000 clients with 50 images each, 50
per round, batches of 10, one epoch.
"""

import os
from typing import Any

from benchmarks.bare import Bare
from benchmarks.federation import Running, Work
from benchmarks.timing import take_turns
from fedrecall.methods import METHODS

WORK = Work(clients=1000, images=50, epochs=1, batch=10, sample=50)
BOUND = 1.05  # of the ratio


def measure() -> list[dict[str, Any]]:
    """Return one row."""
    pool, bare = Running(WORK, METHODS["fedavg"]()), Bare(WORK, len(os.sched_getaffinity(0)))
    best = take_turns({"pool": pool.round, "bare": bare.round}, turns=9)
    pool.close()
    bare.close()
    name = "50 of 1,000 clients x 50 images x 1 epoch, batch 10, 6/16 CNN"
    times = {"pool s": best["pool"], "bare s": best["bare"], "ratio": best["pool"] / best["bare"]}
    return [{"case": name, **times, "bound": BOUND}]
