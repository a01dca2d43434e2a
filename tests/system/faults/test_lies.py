"""Malformed replies: hundreds of random ones are rejected and change no state."""

import random

import pytest
import torch

import fedrecall as fr
from fedrecall.core.types import Reply
from support.malicious_client import Poison, run_with_attacker

pytestmark = pytest.mark.faults
NUMBERS = [0, -1, -(2**40), 10, 10**30, 1.5, float("nan"), float("inf"), "7", None, True]
REPORTS = [
    {"loss": torch.tensor(float("nan"))},
    {"loss": torch.zeros(3)},
    {"loss": torch.tensor(1)},
    {"client": torch.tensor(0)},
    {"predicted": torch.full((12,), -1)},
    {"predicted": torch.full((12,), 2**62)},
    {"local_accuracy": torch.tensor(float("inf"))},
    {"shift": torch.zeros(3)},
    {"observed.x": torch.zeros(3)},
    {"../../x": torch.zeros(())},
]


def random_poison(rng: random.Random) -> Poison:
    """Return a random change that makes a reply invalid."""
    kind = rng.choice(["value", "shape", "type", "name", "less", "more", "huge", "number", "report", "beside"])
    seed = rng.random()

    def poisoned(reply: Reply) -> Reply:
        draws, up = random.Random(seed), dict(reply.up)
        name = draws.choice(sorted(k for k, t in up.items() if t.is_floating_point()))
        t = up[name].clone()
        if kind == "number":
            return reply._replace(n=draws.choice(NUMBERS))
        if kind == "report" and reply.metrics:
            return reply._replace(metrics=reply.metrics | draws.choice(REPORTS))
        if kind == "beside":  # any tensor that is not the weights, or else the weights
            name = draws.choice(sorted(k for k, t in up.items() if t.is_floating_point() and k != "w") or ["w"])
            up[name] = up[name] + draws.choice([1e12, -1e20, 3e37])
        elif kind in {"value", "report"}:
            t.view(-1)[draws.randrange(t.numel())] = draws.choice([float("nan"), float("inf"), float("-inf")])
            up[name] = t
        elif kind == "shape":
            up[name] = draws.choice([t.flatten()[:-1], t[None], torch.cat([t.flatten()] * 2), t.new_empty(0)])
        elif kind == "type":
            up[name] = t.to(draws.choice([torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]))
        elif kind == "name":
            up[draws.choice(["", "w ", "W", "../w", "b2"])] = up.pop(name)
        elif kind == "less":
            del up[name]
        elif kind == "more":
            up[draws.choice(["extra", "\n", "x" * 500])] = t
        elif "w" in up:
            up["w"] = up["w"] + draws.choice([1e6, -1e20, 3e37])
        else:  # the weights go with another task: another lie for this one
            return reply._replace(n=-1)
        return reply._replace(up=up)

    return poisoned


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova", "fedcurv", "fedproto", "fedcsd"])
def test_malformed_replies(method: str, tally) -> None:
    expected = run_with_attacker(fr.METHODS[method](), lambda r: r._replace(n=0))[-1].server.state
    count, rng = tally(f"malformed replies, {method}"), random.Random(method)
    for _ in range(50):
        done = run_with_attacker(fr.METHODS[method](), random_poison(rng))
        rejected = all(r.replies == 4 and {rejection.client for rejection in r.rejected} == {3} for r in done)
        same = torch.equal(done[-1].server.state, expected)
        count.add("" if rejected and same else f"{[r.rejected for r in done]}")
