"""Ray actors: the bits and the order of `serial`; dead actors are replaced, failures are reported."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedrecall as fr
from fedrecall.core.client_report import ReportRequest
from fedrecall.core.exchange import Diverged
from fedrecall.core.flat_model import EVAL_BATCH
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Local, Payload, Step
from fedrecall.data.examples import Examples
from fedrecall.data.transforms import Transform
from fedrecall.simulation import ClientFailure, ClientStateStore, FailurePolicy, SerialEngine
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.ray import RayEngine
from fedrecall.simulation.ray.actor import pack_examples, view_examples
from fedrecall.simulation.ray.session import RaySession, open_session
from fedrecall.tensor_dict import TensorDict
from fedrecall.testing.federation import SKEWED_LABELS, examples, model, simulated_clients
from support.processes import children, has_exited
from support.tiny_federation import accepted

pytestmark = pytest.mark.ray

ALL_CLIENTS = range(len(SKEWED_LABELS))
LONGEST_FIRST = [3, 1, 0, 2, 4]


def eventful(folder: Path) -> fr.Method:
    """Return a method with every kind of payload and a task for every kind of failure."""

    @dataclass(frozen=True)
    class Eventful(fr.Method):
        folder: str

        @property
        def traits(self) -> Traits:
            return Traits(extra_tasks=("labels", "vandal", "dawdle", "fatal", "picky", "refuse", "diverge"))

        def memory(self, w: Tensor) -> Payload:
            return {"last": torch.zeros_like(w), "rounds": torch.tensor(0)}

        def loss(self, s: Step, r: Local) -> Tensor:
            return super().loss(s, r) + (s.w - r.memory["last"]).square().sum() * r.down["strength"]

        def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
            up = {"w": w, "steps": torch.tensor([steps]), "half": w.bfloat16(), "none": torch.empty(0, 3)}
            return up, {"last": w, "rounds": r.memory["rounds"] + 1}

        def labels(self, r: Local) -> Payload:
            return {"counts": r.counts, "threads": torch.tensor(torch.get_num_threads())}

        def vandal(self, r: Local) -> Payload:
            was = r.w.clone()
            r.down["w"].zero_()
            return {"w": was}

        def dawdle(self, r: Local) -> Payload:
            (Path(self.folder) / f"{len(r.y)}").touch()
            time.sleep(1.0 if len(r.y) == 9 else 0.0)
            return {"n": torch.tensor(len(r.y))}

        def fatal(self, r: Local) -> Payload:
            token = next(Path(self.folder).iterdir(), None) if len(r.y) == 7 else None
            if token is not None:
                token.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return {"n": torch.tensor(len(r.y))}

        def picky(self, r: Local) -> Payload:
            if len(r.y) == 7:
                raise ValueError("I do not like\nthis client")
            return {"n": torch.tensor(len(r.y))}

        def refuse(self, r: Local) -> Payload:
            raise fr.UserError("method.own_code", "wrong", "method.tau", "mend this")

        def diverge(self, r: Local) -> Payload:
            raise Diverged("round.diverged", "no longer finite", "local.lr")

    return Eventful(str(folder))


def description(folder: Path) -> SimulatedClients:
    test = examples([0, 1, 2] * EVAL_BATCH + [1], seed=1)  # four chunks, the last one of a single example
    observe = ReportRequest(predictions=True, own_data=True, shift=True, distillation=True, features=True, last=1)
    return simulated_clients(eventful(folder), test=test, report=observe)


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    """Start one Ray for all tests and stop it at the end."""
    before = set(children(os.getpid()))
    session = open_session(None, 3)  # two for the actors that are shared, one for others
    started = [pid for child in set(children(os.getpid())) - before for pid in (child, *children(child))]
    assert len(started) > 2
    assert session.folder is not None
    yield session
    session.close()
    assert all(has_exited(pid) for pid in started)
    assert not Path(session.folder).exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def shared(session: RaySession, folder: Path) -> Iterator[RayEngine]:
    with RayEngine(description(folder), model(batch_norm=True), workers=2) as engine:
        yield engine
    assert session.ray.is_initialized(), "somebody else's connection is left alone"


@pytest.fixture
def engine(shared: RayEngine, folder: Path) -> RayEngine:
    """Return an engine with the same actors for every test and no client states."""
    for token in folder.iterdir():
        token.unlink()
    shared.client_state, shared.failures = ClientStateStore(), FailurePolicy()
    return shared


def down() -> Payload:
    f = model(batch_norm=True)
    return {"w": f.w, "b": f.b, "counters": f.int_buffers, "strength": torch.tensor(0.01)}


def replies(engine: RayEngine | SerialEngine) -> list[Tensor]:
    """Return all tensors of a few exchanges and evaluations, in order."""
    tensors, sent, f = [], down(), model(batch_norm=True)
    for t in range(3):
        received = list(accepted(engine.cohort(t, ALL_CLIENTS), "train", sent))
        for r in received:
            tensors += [*r.up.values(), *r.memory.values(), *r.metrics.values(), torch.tensor(r.n)]
        sent["w"] = received[-1].up["w"]
        tensors += [t for reply in accepted(engine.cohort(t, ALL_CLIENTS), "labels", sent) for t in reply.up.values()]
        score = engine.evaluate(f.join(sent["w"], f.b))
        tensors += [score.predicted, score.y, torch.tensor(score.loss, dtype=torch.float64)]
    return tensors + [t for k in ALL_CLIENTS for t in engine.client_state[k].values()]


def test_the_bits_of_serial(engine: RayEngine, folder: Path) -> None:
    expected = replies(SerialEngine(description(folder), model(batch_norm=True)))
    got = replies(engine)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_writing_to_a_received_tensor_affects_no_other_client(engine: RayEngine) -> None:
    for reply in engine.cohort(0, ALL_CLIENTS).run("vandal", down()):
        assert torch.equal(reply.up["w"], down()["w"])


@pytest.mark.parametrize(("buffer", "started"), [(0, 2), (10**9, 5)])
def test_longest_first_in_order_and_no_more_than_fits(
    engine: RayEngine, folder: Path, buffer: int, started: int
) -> None:
    list(engine.cohort(0, ALL_CLIENTS).run("labels", down()))  # both actors are there
    engine._buffer, before = buffer, engine._buffer
    stream = engine.cohort(0, ALL_CLIENTS).run("dawdle", down())
    assert next(stream).client == 3
    assert len(list(folder.iterdir())) == started
    assert [reply.client for reply in stream] == LONGEST_FIRST[1:]
    engine._buffer = before


def test_a_stream_closed_early_stores_only_accepted_states(engine: RayEngine) -> None:
    stream = accepted(engine.cohort(0, ALL_CLIENTS), "train", down())
    next(stream)
    with pytest.raises(RuntimeError, match="exchange"):
        next(engine.cohort(0, ALL_CLIENTS).run("train", down()))
    stream.close()
    assert list(engine.client_state) == [3], "the largest client, whose reply was accepted"
    assert len(list(engine.cohort(0, ALL_CLIENTS).run("labels", down()))) == 5


@pytest.mark.parametrize("deaths", [1, 2])
def test_an_actor_killed_in_a_round_is_replaced(engine: RayEngine, folder: Path, deaths: int) -> None:
    for i in range(deaths):
        (folder / str(i)).touch()
    assert [reply.client for reply in engine.cohort(0, ALL_CLIENTS).run("fatal", down())] == LONGEST_FIRST
    assert list(folder.iterdir()) == [], "it did die"


def test_a_client_that_kills_every_actor_has_failed(engine: RayEngine, folder: Path) -> None:
    failures: list[ClientFailure] = []
    engine.failures = FailurePolicy(min_replies=4, save_traceback=failures.append)
    for i in range(4):
        (folder / str(i)).touch()
    assert [reply.client for reply in engine.cohort(2, ALL_CLIENTS).run("fatal", down())] == [3, 0, 2, 4]
    assert [(k.t, k.client, k.code) for k in failures] == [(2, 1, "engine.worker_exited")]
    assert "Ray actor" in failures[0].error
    assert "3 times" in failures[0].error
    assert "The actor is dead because its worker process has died" in failures[0].error, "Ray's own words"
    assert len(list(folder.iterdir())) == 1


def test_a_client_that_raises(engine: RayEngine) -> None:
    with pytest.raises(fr.UserError) as caught:
        list(engine.cohort(0, ALL_CLIENTS).run("picky", down()))
    assert (caught.value.code, caught.value.key) == ("round.client_failed", None)
    for fact in ("round 1", "client 1", "ValueError: I do not like this client"):
        assert fact in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "in picky" in str(caught.value.__cause__), "where it happened"
    failures: list[ClientFailure] = []
    engine.failures = FailurePolicy(min_replies=4, save_traceback=failures.append)
    cohort = engine.cohort(1, ALL_CLIENTS)
    replies = list(cohort.run("picky", down()))
    assert [reply.client for reply in replies] == [3, 0, 2, 4]
    assert not list(engine.client_state), "only acceptance stores a client's state"
    for reply in replies:
        cohort.accept(reply)
    assert [(k.t, k.client, k.code, k.error) for k in failures] == [
        (1, 1, "round.client_failed", "ValueError: I do not like this client")
    ]
    assert sorted(engine.client_state) == [0, 2, 3, 4]


@pytest.mark.parametrize(("task", "kind", "code", "key", "fact"), [
    ("refuse", fr.UserError, "method.own_code", "method.tau", "wrong: mend this"),
    ("diverge", Diverged, "round.diverged", "local.lr", "no longer finite"),
    ("unheard", fr.UserError, "method.unknown_task", "method", '"unheard"'),
])  # fmt: skip
def test_user_errors_of_a_client_are_raised_unchanged(
    engine: RayEngine, task: str, kind: type[fr.UserError], code: str, key: str, fact: str
) -> None:
    engine.failures = FailurePolicy(min_replies=1)
    with pytest.raises(fr.UserError) as caught:
        list(engine.cohort(0, ALL_CLIENTS).run(task, down()))
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.key) == (code, key)
    assert fact in str(caught.value)


def test_a_model_that_cannot_be_scored(engine: RayEngine) -> None:
    with pytest.raises(fr.UserError) as caught:
        engine.evaluate(torch.zeros(3))
    assert caught.value.code == "engine.evaluation_failed"
    assert "RuntimeError" in str(caught.value)


def test_actors_that_cannot_start(session: RaySession) -> None:
    class Absent(fr.Method):
        """Method whose module exists on no other machine."""

        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return __import__, ("a_module_of_mine",)

    with RayEngine(simulated_clients(Absent()), model(), workers=1) as broken, pytest.raises(fr.UserError) as caught:
        broken.evaluate(model().w)
    assert caught.value.code == "engine.worker_start_failed"
    assert "ModuleNotFoundError: No module named 'a_module_of_mine'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objects_that_cannot_be_sent_are_errors(session: RaySession) -> None:
    @dataclass(frozen=True)
    class Holds(fr.Method):
        thing: object

    with pytest.raises(fr.UserError) as caught, socket.socket() as listener:
        RayEngine(simulated_clients(Holds(listener)), model())
    assert caught.value.code == "engine.cannot_pickle"
    assert "socket" in str(caught.value)


def test_other_versions_are_errors(session: RaySession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrecall.simulation.ray.engine.VERSIONS", {"fedrecall": "0", "torch": "1.0", "numpy": "1"})
    with (
        RayEngine(simulated_clients(fr.Method()), model(), workers=1) as engine,
        pytest.raises(fr.UserError) as caught,
    ):
        engine.evaluate(model().w)
    assert (caught.value.code, caught.value.key) == ("engine.version_mismatch", "fedrecall")
    assert f"fedrecall {fr.__version__}" in str(caught.value)


def test_examples_with_inputs_by_name_are_packed_as_views() -> None:
    x = TensorDict({"ids": torch.arange(12).view(4, 3), "image": torch.rand(4, 3, 2, 2).to(torch.uint8)})
    data = Examples(x, torch.arange(4), Transform(flip=True), torch.tensor([3, 1]))
    seen = view_examples(pack_examples(data))
    batch = seen.batch(slice(None))
    assert batch.names == ("ids", "image")
    assert all(torch.equal(batch[name], data.batch(slice(None))[name]) for name in batch.names)
    assert (seen.y.tolist(), seen.transform) == ([3, 1], data.transform)
