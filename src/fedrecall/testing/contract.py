"""Checks that every method passes on every engine. They need no knowledge of the method.

Each check runs a few rounds of a tiny federation and raises an AssertionError that states what is wrong.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fedrecall.core.method import Method
from fedrecall.core.optim import AdaptiveServer, ServerSGD
from fedrecall.core.private_part import without_private
from fedrecall.core.types import Cohort, Local, Reply, Server
from fedrecall.simulation import ENGINES
from fedrecall.testing.federation import run_federation

Check = Callable[[Method], None]

SETTINGS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "batch norm": {"batch_norm": True},
    "augmented": {"augment": True},
    "partial participation": {"sample": 2},
    "one client": {"clients": ((0, 1, 2, 0),)},
    "one class each": {"clients": ((0, 0, 0), (1, 1, 1), (2, 2))},
    "one sample each": {"clients": ((0,), (1,), (2,))},
    "momentum at the server": {"optimiser": ServerSGD(momentum=0.5)},
    "private normalisation": {"private": "norm", "batch_norm": True},
    "Adam at the server": {"optimiser": AdaptiveServer("adam", lr=0.01)},
}

RANDOM_SETTINGS = (
    "plain",
    "batch norm",
    "augmented",
    "partial participation",
    "private normalisation",
)  # settings with randomness of their own


def stays_finite(method: Method, *, case: str, engine: str) -> None:
    """Check that three rounds complete with finite numbers."""
    done, _ = run_federation(method, engine=engine, **SETTINGS[case])
    _require([r.number for r in done] == [1, 2, 3], "there are not three rounds")
    for r in done:
        _require(_finite([r.server.state]), f"the global model is not finite after round {r.number}")
        _require(_finite(r.server.extra.values()), f"the server's extra state is not finite after round {r.number}")
        accuracy = r.local_accuracy if r.score is None else r.score.accuracy
        _require(accuracy is not None and 0 <= accuracy <= 1, f"round {r.number} has no accuracy")
        _require(r.bytes_up > 0 and r.bytes_down > 0, f"nothing travels in round {r.number}")


def is_reproducible(method: Method, *, case: str, engine: str) -> None:
    """Check that the seed determines all bits on any engine, and that global generators are not used."""
    expected = _last_state(method, **SETTINGS[case])
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 (poison on purpose)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    _require(
        torch.equal(_last_state(method, engine=engine, **SETTINGS[case]), expected), "the same seed gives other bits"
    )
    _require(torch.equal(torch.get_rng_state(), before[0]), "torch's global generator was used")
    now = np.random.get_state()[1]  # type: ignore[index]  # noqa: NPY002
    _require(bool((now == before[1]).all()), "numpy's global generator was used")


def is_a_frozen_dataclass(method: Method) -> None:
    """Check that the method is a frozen dataclass, described by its fields alone."""
    settings = vars(type(method)).get("__dataclass_params__")
    _require(settings is not None and settings.frozen, "decorate the class with @dataclass(frozen=True)")
    _require(type(method)(**vars(method)) == method, "the method has state that is not in its fields")


def does_not_modify_inputs(method: Method) -> None:
    """Check that the payload, the client state and frozen models, which are shared, are not modified."""
    seen: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    original = type(method).frozen

    def frozen(self: Method, r: Local) -> dict[str, Tensor]:
        out = original(self, r)
        groups = {"": r.down, "memory ": r.memory, "frozen ": out}
        tensors = {kind + name: value for kind, group in groups.items() for name, value in group.items()}
        seen.append((tensors, {k: t.clone() for k, t in tensors.items()}))
        return out

    with patch.object(type(method), "frozen", frozen):
        run_federation(method, batch_norm=True)
    _require(seen != [], "no client trained")
    for now, before in seen:
        for name, value in before.items():
            _require(torch.equal(now[name], value), f"{name} was changed in place")


def declares_client_state(method: Method) -> None:
    """Check that client states have the names and shapes that `memory` declares."""
    done, engine = run_federation(method, sample=2)
    declared = method.memory(done[0].server.w)
    _require(
        set(engine.client_state) <= {k for r in done for k in r.clients},
        "a client that did not participate has a state",
    )
    for memory in map(without_private, engine.client_state.values()):
        _require(
            set(memory) == set(declared), f"the state has {sorted(memory)}, but memory() declares {sorted(declared)}"
        )
        for name, value in memory.items():
            _require(bool(value.abs().sum() > 0), f"{name} is declared and never used")
            fits = value.shape == declared[name].shape or len(declared[name]) == 0  # 0: no initial value
            _require(fits, f"{name} has another shape than memory() declares")


def sends_plain_tensors(method: Method) -> None:
    """Check that all clients send the same names, and tensors without a graph."""
    replies: list[Reply] = []
    original = type(method).aggregate

    def aggregate(self: Method, server: Server, stream: Iterable[Reply], cohort: Cohort) -> Server:
        def spy() -> Iterator[Reply]:
            for reply in stream:
                replies.append(reply)
                yield reply

        return original(self, server, spy(), cohort)

    with patch.object(type(method), "aggregate", aggregate):
        run_federation(method)
    _require(replies != [], "aggregate received no replies")
    _require(len({tuple(r.up) for r in replies}) == 1, "clients send different names")
    for value in (t for r in replies for t in (*r.up.values(), *r.memory.values())):
        plain = isinstance(value, Tensor) and not value.requires_grad  # type: ignore[redundant-expr]
        _require(plain, "replies and client states must be tensors without a graph")


def tolerates_lost_replies(method: Method, *, engine: str) -> None:
    """Check that a lost reply has the effect of not sampling the client."""
    done, ran_on = run_federation(method, engine=engine, lost=(1, 3))
    _require(not {1, 3} & set(ran_on.client_state), "a client whose reply was lost has a new state")
    without, _ = run_federation(method, engine=engine, not_sampled=(1, 3))
    same = torch.equal(done[-1].server.state, without[-1].server.state)
    _require(same, "a lost reply changes the result: count replies (cohort.size), not sampled clients")


def method_checks(engines: Collection[str] = tuple(ENGINES)) -> dict[str, Check]:
    """Return all checks by name, for `pytest.mark.parametrize`. Each is called with a method.

    >>> from fedrecall import Method
    >>> method_checks(["serial"])["sends plain tensors"](Method())
    """
    checks: list[tuple[Callable[..., None], dict[str, str]]] = [
        *((stays_finite, {"case": case, "engine": engine}) for engine in engines for case in SETTINGS),
        *((is_reproducible, {"case": case, "engine": engine}) for engine in engines for case in RANDOM_SETTINGS),
        *((tolerates_lost_replies, {"engine": engine}) for engine in engines),
        *((each, {}) for each in (is_a_frozen_dataclass, does_not_modify_inputs)),
        *((each, {}) for each in (declares_client_state, sends_plain_tensors)),
    ]
    return {
        ", ".join([check.__name__.replace("_", " "), *settings.values()]): partial(check, **settings)
        for check, settings in checks
    }


def check_method(method: Method, engines: Collection[str] = tuple(ENGINES)) -> int:
    """Run all checks on a method and return their number. The first failed check raises an AssertionError.

    >>> from fedrecall import METHODS
    >>> check_method(METHODS["fedlmd"](), engines=["serial"])
    20
    """
    checks = method_checks(engines)
    for name, check in checks.items():
        try:
            check(method)
        except Exception as error:
            error.add_note(f"in the check: {name}")
            raise
    return len(checks)


def _last_state(method: Method, **settings: Any) -> Tensor:
    done, _ = run_federation(method, **settings)
    state: Tensor = done[-1].server.state
    return state


def _finite(values: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
