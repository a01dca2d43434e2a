"""What every method owes, on every engine: adding a method to METHODS adds these tests without writing one."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch

from fedrecall import METHODS, UserError
from fedrecall.core.method import Method
from fedrecall.core.optim import Adaptive, Average
from fedrecall.core.types import Reply
from fedrecall.engines import ENGINES
from support.federation import federate

CASES = {
    "plain": {},
    "batch norm": {"batch_norm": True},
    "augmented": {"augment": True},
    "partial participation": {"sample": 2},
    "one client": {"clients": ((0, 1, 2, 0),)},
    "one class each": {"clients": ((0, 0, 0), (1, 1, 1), (2, 2))},
    "one sample each": {"clients": ((0,), (1,), (2,))},
    "momentum at the server": {"optimiser": Average(momentum=0.5)},
    "Adam at the server": {"optimiser": Adaptive("adam", lr=0.01)},
}
methods = pytest.mark.parametrize("name", METHODS)


def last_state(name: str, **kwargs: object) -> torch.Tensor:
    done, _ = federate(METHODS[name](), **kwargs)
    return done[-1].server.state


@methods
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_runs_on_anything_and_stays_finite(name: str, case: str, engine: str) -> None:
    done, _ = federate(METHODS[name](), engine=engine, **CASES[case])
    assert [r.number for r in done] == [1, 2, 3]
    for r in done:
        assert torch.isfinite(r.server.state).all()
        assert all(torch.isfinite(t).all() for t in r.server.extra.values())
        assert r.score is not None
        assert 0 <= r.score.accuracy <= 1
        assert r.bytes_up > 0
        assert r.bytes_down > 0


@methods
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["plain", "batch norm", "augmented", "partial participation"])
def test_same_seed_same_bits_on_every_engine_whatever_ran_before(name: str, engine: str, case: str) -> None:
    expected = last_state(name, **CASES[case])
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 (poison on purpose)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert torch.equal(last_state(name, engine=engine, **CASES[case]), expected)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


@methods
def test_is_a_frozen_dataclass_of_one_level(name: str) -> None:
    method = METHODS[name]()
    assert is_dataclass(method)
    assert type(method).__dataclass_params__.frozen
    assert type(method) is Method or type(method).__bases__ == (Method,)
    assert METHODS[name]() == method


@methods
def test_what_came_down_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS[name]()
    seen: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    original = type(method).frozen

    def frozen(self, r):
        out = original(self, r)
        everything = {
            **r.down,
            **{f"memory {k}": t for k, t in r.memory.items()},
            **{f"frozen {k}": t for k, t in out.items()},
        }
        seen.append((everything, {k: t.clone() for k, t in everything.items()}))
        return out

    monkeypatch.setattr(type(method), "frozen", frozen)
    federate(method, batch_norm=True)
    assert len(seen) == 15
    for now, before in seen:
        assert all(torch.equal(now[k], before[k]) for k in before)


@methods
def test_memory_is_declared_and_keeps_its_shape(name: str) -> None:
    method = METHODS[name]()
    done, engine = federate(method, sample=2)
    took_part = {k for r in done for k in r.clients}
    declared = method.memory(done[0].server.w)
    assert set(engine.memories) <= took_part
    if not declared:
        assert not any(engine.memories.values())
    for memory in engine.memories.values():
        assert set(memory) == set(declared)
        assert all(t.abs().sum() > 0 for t in memory.values()), "what is declared is used"
        assert all(t.shape == declared[k].shape or len(declared[k]) == 0 for k, t in memory.items())  # 0: none yet


@methods
def test_payloads_are_flat_named_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[Reply] = []
    method = METHODS[name]()
    original = type(method).merge

    def merge(self, server, given, cohort):
        def spy():
            for reply in given:
                replies.append(reply)
                yield reply

        return original(self, server, spy(), cohort)

    monkeypatch.setattr(type(method), "merge", merge)
    federate(method)
    assert len(replies) == 15
    names = {tuple(r.up) for r in replies}
    assert len(names) == 1, "every client sends the same names"
    for r in replies:
        assert all(isinstance(t, torch.Tensor) and not t.requires_grad for t in [*r.up.values(), *r.memory.values()])


@methods
@pytest.mark.parametrize("engine", ENGINES)
def test_a_lost_reply_is_as_if_the_client_had_not_been_asked(name: str, engine: str) -> None:
    asked_all, kept = federate(METHODS[name](), engine=engine, lost=(1, 3))
    assert all(torch.isfinite(r.server.state).all() for r in asked_all)
    assert not {1, 3} & set(kept.memories)
    without, _ = federate(METHODS[name](), engine=engine, unasked=(1, 3))
    assert torch.equal(asked_all[-1].server.state, without[-1].server.state)


WRONG = {"tau": 0.0, "mu": -1.0, "lam": -1.0, "beta": float("nan"), "alpha": float("inf"), "buffer": 0, "beta_s": 1.0}


@pytest.mark.parametrize(
    ("name", "key"), [(name, f.name) for name in METHODS for f in fields(METHODS[name]()) if f.name in WRONG]
)
def test_impossible_hyper_parameters_are_refused(name: str, key: str) -> None:
    with pytest.raises(UserError, match=f"{METHODS[name].__name__} needs .*{key}"):
        METHODS[name](**{key: WRONG[key]})
