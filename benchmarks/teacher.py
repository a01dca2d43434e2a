"""Seconds a round of every distillation method against FedAvg: what listening to a teacher costs."""

from typing import Any

from benchmarks.federation import AUGMENTED, PLAIN, Running, Work
from benchmarks.timing import take_turns
from fedrecall.methods import METHODS

TAUGHT = ("fedlsd", "fedntd", "fedgkd", "fedcad", "fedssd", "fedcsd", "fedlmd", "moon")
FREE = ("fedlmd-tf", "fedrs")


def measure() -> list[dict[str, Any]]:
    """One row a method, plain and augmented."""
    rows = []
    for images, transform, bound in (("plain", PLAIN, 1.15), ("augmented", AUGMENTED, 1.5)):
        running = {
            name: Running(Work(images=250), METHODS[name](), transform=transform) for name in ("fedavg", *TAUGHT, *FREE)
        }
        for r in running.values():  # buffers and previous models exist from the second or third round on
            r.round()
            r.round()
        best = take_turns({name: r.round for name, r in running.items()}, turns=8)
        for r in running.values():
            r.close()
        rows += [
            {
                "method": name,
                "images": images,
                "seconds": best[name],
                "ratio": best[name] / best["fedavg"],
                "bound": 1.03 if name in FREE else bound,
            }
            for name in (*TAUGHT, *FREE)
        ]
    return rows
