"""Timing on a shared, noisy machine: compared functions run alternately, and the best of several repetitions counts."""

import time
from collections.abc import Callable, Mapping


def seconds(action: Callable[[], object]) -> float:
    """Measure the wall-clock seconds of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def take_turns(actions: Mapping[str, Callable[[], object]], turns: int = 5) -> dict[str, float]:
    """Return the best time of each function, after one warm-up call each."""
    for action in actions.values():
        action()
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(turns):
        for name, action in actions.items():
            best[name] = min(best[name], seconds(action))
    return best
