"""Machines are shared and noisy: things that are compared take turns, and the best of several turns counts."""

import time
from collections.abc import Callable, Mapping


def seconds(action: Callable[[], object]) -> float:
    """Wall-clock seconds that one call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def take_turns(actions: Mapping[str, Callable[[], object]], turns: int = 5) -> dict[str, float]:
    """The best time of each, after one call each to warm up."""
    for action in actions.values():
        action()
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(turns):
        for name, action in actions.items():
            best[name] = min(best[name], seconds(action))
    return best
