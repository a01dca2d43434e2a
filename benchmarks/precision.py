"""Seconds per round with bf16, compared with fp32.

The bound holds where the processor has bf16 instructions and all of them work: oneDNN is not limited to some of them.
"""

import os
from typing import Any

from benchmarks.federation import Running, Work
from benchmarks.timing import take_turns
from fedrecall.core.precision import ALLOW_SLOW, ONEDNN_LIMIT, bf16_instructions
from fedrecall.methods import METHODS

CASES = {  # name -> work, bound of the ratio
    "10 clients x 500 images x 1 epoch, 32/64 CNN": (Work(epochs=1, model="cnn-32-64"), 0.65),
    "10 clients x 500 images x 1 epoch, 6/16 CNN": (Work(epochs=1), None),
    "2 clients x 50 images x 1 epoch, ResNet-50": (Work(2, 50, 1, model="resnet50"), None),
}


def measure() -> list[dict[str, Any]]:
    """Return one row per case."""
    os.environ[ALLOW_SLOW] = "1"  # read by the workers
    found, is_limited = bf16_instructions(), ONEDNN_LIMIT in os.environ
    instructions = ", ".join([*found, *(["limited"] if is_limited else [])]) or "none"
    rows = []
    for name, (work, bound) in CASES.items():
        running = {p: Running(work, METHODS["fedavg"](), precision=p) for p in ("bf16", "fp32")}
        best = take_turns({p: each.round for p, each in running.items()}, turns=3)
        for each in running.values():
            each.close()
        row = {"case": name, "instructions": instructions}
        row |= {f"{p} s": best[p] for p in running} | {"ratio": best["bf16"] / best["fp32"]}
        rows.append(row | ({"bound": bound} if found and not is_limited and bound is not None else {}))
    return rows
