"""Replies that are malformed in hundreds of ways: each is refused, and nothing of it is left."""

import random

import pytest
import torch

import fedrecall as fr
from fedrecall.core.types import Reply
from support.malicious_client import Lie, go

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


def lie(rng: random.Random) -> Lie:
    """One of the many ways in which a reply can be wrong."""
    kind = rng.choice(["value", "shape", "type", "name", "less", "more", "huge", "number", "report", "beside"])
    seed = rng.random()

    def told(reply: Reply) -> Reply:
        own, up = random.Random(seed), dict(reply.up)
        name = own.choice(sorted(k for k, t in up.items() if t.is_floating_point()))
        t = up[name].clone()
        if kind == "number":
            return reply._replace(n=own.choice(NUMBERS))
        if kind == "report" and reply.metrics:
            return reply._replace(metrics=reply.metrics | own.choice(REPORTS))
        if kind == "beside":  # any tensor that is not the weights, or else the weights
            name = own.choice(sorted(k for k, t in up.items() if t.is_floating_point() and k != "w") or ["w"])
            up[name] = up[name] + own.choice([1e12, -1e20, 3e37])
        elif kind in {"value", "report"}:
            t.view(-1)[own.randrange(t.numel())] = own.choice([float("nan"), float("inf"), float("-inf")])
            up[name] = t
        elif kind == "shape":
            up[name] = own.choice([t.flatten()[:-1], t[None], torch.cat([t.flatten()] * 2), t.new_empty(0)])
        elif kind == "type":
            up[name] = t.to(own.choice([torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]))
        elif kind == "name":
            up[own.choice(["", "w ", "W", "../w", "b2"])] = up.pop(name)
        elif kind == "less":
            del up[name]
        elif kind == "more":
            up[own.choice(["extra", "\n", "x" * 500])] = t
        elif "w" in up:
            up["w"] = up["w"] + own.choice([1e6, -1e20, 3e37])
        else:  # the weights go with another task: another lie for this one
            return reply._replace(n=-1)
        return reply._replace(up=up)

    return told


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova", "fedcurv", "fedproto", "fedcsd"])
def test_malformed_replies(method: str, tally) -> None:
    expected = go(fr.METHODS[method](), lambda r: r._replace(n=0))[-1].server.state
    count, rng = tally(f"malformed replies, {method}"), random.Random(method)
    for _ in range(50):
        done = go(fr.METHODS[method](), lie(rng))
        refused = all(r.replies == 4 and {refusal.client for refusal in r.rejected} == {3} for r in done)
        same = torch.equal(done[-1].server.state, expected)
        count.add("" if refused and same else f"{[r.rejected for r in done]}")
