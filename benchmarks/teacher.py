"""Seconds per round of every distillation method, compared with FedAvg: the cost of a teacher."""

from typing import Any

from benchmarks.federation import AUGMENTED, PLAIN, Running, Work
from benchmarks.timing import take_turns
from fedrecall.methods import METHODS

TAUGHT = ("fedlsd", "fedntd", "fedgkd", "fedcad", "fedssd", "fedcsd", "fedlmd")
TWICE = ("moon",)  # has two teachers, so twice the cost
FREE = ("fedlmd-tf", "fedrs")
BOUNDS = {  # of the ratio: images -> methods
    "plain": {TAUGHT: 1.15, TWICE: 1.3, FREE: 1.03},
    "augmented": {TAUGHT: 1.5, TWICE: 2.0, FREE: 1.03},
}


def measure() -> list[dict[str, Any]]:
    """Return one row per method, for plain and for augmented images."""
    rows = []
    for images, transform in (("plain", PLAIN), ("augmented", AUGMENTED)):
        bounds = {name: bound for names, bound in BOUNDS[images].items() for name in names}
        running = {name: Running(Work(), METHODS[name](), transform=transform) for name in ("fedavg", *bounds)}
        for r in running.values():  # buffers and previous models exist from the second or third round on
            r.round()
            r.round()
        best = take_turns({name: r.round for name, r in running.items()}, turns=7)
        for r in running.values():
            r.close()
        rows += [
            {
                "method": name,
                "images": images,
                "seconds": best[name],
                "ratio": best[name] / best["fedavg"],
                "bound": bound,
            }
            for name, bound in bounds.items()
        ]
    return rows
