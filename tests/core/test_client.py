"""The client's half of a round: a function of its arguments and the seed."""

from dataclasses import dataclass

import pytest
import torch

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Local, Payload, Reply
from fedrecall.errors import UserError
from fedrecall.methods import METHODS
from fedrecall.testing.federation import SKEWED_LABELS, examples, model, simulated_clients

DATA = examples(SKEWED_LABELS[3])


@dataclass(frozen=True)
class Counting(Method):
    """Method with client state, an extra task, and an attribute that is no task."""

    secret: float = 0.0

    @property
    def traits(self) -> Traits:
        return Traits(extra_tasks=("count",))

    def memory(self, w: torch.Tensor) -> Payload:
        return {"rounds": torch.tensor(0), "received": w}

    def reply(self, w: torch.Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        return {"w": w}, {"rounds": r.memory["rounds"] + 1, "received": r.w}

    def count(self, r: Local) -> Payload:
        return {"counts": r.counts, "t": torch.tensor(r.t), "rounds": r.memory["rounds"]}


def run(f: FlatModel, task: str = "train", method: Method = Counting(), client=3, t=0, memory=None, down=None) -> Reply:
    runner = simulated_clients(method, augment=True)
    return runner.run_on(DATA, f, task, client, t, {"w": f.w} if down is None else down, memory)


def test_equal_arguments_give_equal_bits_and_no_argument_is_changed() -> None:
    f = model(batch_norm=True)
    down = {"w": f.w.clone(), "b": f.b.clone()}
    memory = {"rounds": torch.tensor(4), "received": f.w.clone()}
    before = {name: t.clone() for name, t in (down | memory | {"f.w": f.w, "f.b": f.b}).items()}
    torch.manual_seed(1)
    first = run(f, memory=memory, down=down)
    torch.manual_seed(2)
    run(f, client=1, t=7)  # another client in between leaves no trace
    second = run(f, memory=memory, down=down)
    for part in ("up", "memory", "metrics"):
        a, b = getattr(first, part), getattr(second, part)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    now = down | memory | {"f.w": f.w, "f.b": f.b}
    assert all(torch.equal(before[name], now[name]) for name in before)


@pytest.mark.parametrize("change", [{"client": 2}, {"t": 1}])
def test_randomness_depends_on_the_client_and_the_round(change: dict[str, int]) -> None:
    f = model()
    assert not torch.equal(run(f, **change).up["w"], run(f).up["w"])


def test_a_client_without_a_state_has_the_methods_initial_one() -> None:
    f = model()
    assert run(f).memory["rounds"] == 1
    received = f.w + 1
    assert torch.equal(run(f, down={"w": received}).memory["received"], received)
    assert run(f, memory={"rounds": torch.tensor(4), "received": f.w}).memory["rounds"] == 5


def test_without_global_weights_a_client_continues_with_its_own_model() -> None:
    f = model(batch_norm=True)
    method = METHODS["fedproto"](share_weights=False)
    first = run(f, method=method, down={})
    assert "own" in first.memory
    assert "w" not in first.up
    again = run(f, method=method, down={}, memory=dict(first.memory), t=1)
    fresh = run(f, method=method, down={}, t=1)
    assert not torch.equal(again.memory["own"], fresh.memory["own"])


def test_an_extra_task_returns_its_payload_and_keeps_the_state() -> None:
    memory = {"rounds": torch.tensor(4), "received": torch.zeros(1)}
    reply = run(model(), "count", t=5, memory=memory)
    assert reply.up["counts"].tolist() == [3, 3, 3]
    assert (reply.up["t"], reply.up["rounds"], reply.n) == (5, 4, len(DATA))
    assert reply.memory.keys() == memory.keys()
    assert all(torch.equal(reply.memory[name], memory[name]) for name in memory)


@pytest.mark.parametrize("task", ["secret", "memory", "__init__", "reply", "x" * 1000])
def test_a_task_that_is_not_declared_is_an_error(task: str) -> None:
    with pytest.raises(UserError) as error:
        run(model(), task)
    assert (error.value.code, error.value.key) == ("method.unknown_task", "method")
    assert len(str(error.value)) < 300
