"""The pool engine: the bits and the order of `serial`, bounded processes and memory."""

import os
import time
from dataclasses import dataclass
from multiprocessing import process

import pytest
import torch
from torch import Tensor

from fedrecall import Method, UserError
from fedrecall.core.client_report import ReportRequest
from fedrecall.core.flat_model import EVAL_BATCH
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Local, Payload, Step
from fedrecall.simulation import ClientStateStore, PoolEngine, SerialEngine
from fedrecall.simulation.devices import available_cores
from fedrecall.simulation.jobs import Job
from fedrecall.simulation.processes import ProcessPool, ProcessWorker
from fedrecall.testing.federation import SKEWED_LABELS, examples, model, simulated_clients
from support.processes import children, has_exited
from support.tiny_federation import accepted

ALL_CLIENTS = range(len(SKEWED_LABELS))


@dataclass(frozen=True)
class Stateful(Method):
    """Method with every kind of payload: extra tensors in both directions, client state, an extra task."""

    @property
    def traits(self) -> Traits:
        return Traits(extra_tasks=("labels",))

    def memory(self, w: Tensor) -> Payload:
        return {"last": torch.zeros_like(w), "rounds": torch.tensor(0)}

    def loss(self, s: Step, r: Local) -> Tensor:
        return super().loss(s, r) + (s.w - r.memory["last"]).square().sum() * r.down["strength"]

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        return {"w": w, "steps": torch.tensor([steps])}, {"last": w, "rounds": r.memory["rounds"] + 1}

    def labels(self, r: Local) -> Payload:
        return {"counts": r.counts, "process": torch.tensor(os.getpid())}


def replies(engine: PoolEngine | SerialEngine, population: int = len(SKEWED_LABELS)) -> list[Tensor]:
    """Return all tensors of a few exchanges and evaluations, in order."""
    tensors, f = [], model(batch_norm=True)
    down = {"w": f.w, "b": f.b, "counters": f.int_buffers, "strength": torch.tensor(0.01)}
    with engine:
        for t in range(3):
            received = list(accepted(engine.cohort(t, range(population)), "train", down))
            for r in received:
                tensors += [*r.up.values(), *r.memory.values(), *r.metrics.values(), torch.tensor(r.n)]
            down["w"] = received[-1].up["w"]
            tensors += [reply.up["counts"] for reply in accepted(engine.cohort(t, range(population)), "labels", down)]
            score = engine.evaluate(f.join(down["w"], f.b))
            tensors += [score.predicted, score.y, torch.tensor(score.loss, dtype=torch.float64)]
        tensors += [t for k in range(population) for t in engine.client_state[k].values()]
    return tensors


@pytest.mark.parametrize("workers", [1, 2, 3, None])
def test_the_bits_of_serial_for_any_number_of_workers(workers: int | None) -> None:
    test = examples([0, 1, 2] * EVAL_BATCH + [1], seed=1)  # four chunks, the last one of a single example
    w = simulated_clients(
        Stateful(),
        test=test,
        report=ReportRequest(predictions=True, own_data=True, shift=True, distillation=True, features=True, last=1),
    )
    expected = replies(SerialEngine(w, model(batch_norm=True)))
    got = replies(PoolEngine(w, model(batch_norm=True), workers=workers))
    assert len(got) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_workers_with_short_jobs_have_the_next_one_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, and the state of clients, are in memory that the next jobs do not write to."""
    depths, submit = list[int](), ProcessPool.submit

    def counting(self: ProcessPool, worker: ProcessWorker, job: Job) -> None:
        depths.append(len(worker.jobs))
        submit(self, worker, job)

    monkeypatch.setattr(ProcessPool, "submit", counting)
    clients = simulated_clients(Stateful(), SKEWED_LABELS * 8)
    expected = replies(SerialEngine(clients, model(batch_norm=True)), population=len(SKEWED_LABELS) * 8)
    got = replies(PoolEngine(clients, model(batch_norm=True), workers=2), population=len(SKEWED_LABELS) * 8)
    assert max(depths) == 1, "one running job, and one that follows"
    assert depths.count(1) > 100
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_long_jobs_wait_for_a_free_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrecall.simulation.processes.SHORT_JOB_SECONDS", 0.0)
    f = model()
    with PoolEngine(simulated_clients(Method(), SKEWED_LABELS * 4), f, workers=2) as pool:
        for _ in pool.cohort(0, range(20)).run("train", {"w": f.w}):
            assert all(len(worker.jobs) == 1 for worker in pool.workers.busy)


def test_spawned_workers_give_the_same_bits() -> None:
    w = simulated_clients(Stateful())
    expected = replies(SerialEngine(w, model(batch_norm=True)))
    got = replies(PoolEngine(w, model(batch_norm=True), workers=1, start="spawn"))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_states_in_files_change_no_bit() -> None:
    w = simulated_clients(Stateful())
    expected = replies(SerialEngine(w, model(batch_norm=True)))
    for engine in (SerialEngine, PoolEngine):
        got = replies(engine(w, model(batch_norm=True), client_state=ClientStateStore(cache_bytes=0)))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@dataclass(frozen=True)
class SlowFirst(Method):
    """Method whose largest client takes as long as all others."""

    seconds: float = 0.3

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        time.sleep(self.seconds if len(r.y) == 9 else 0)
        return {"w": w, "n": torch.tensor(len(r.y))}, {}


def test_longest_first_and_replies_in_order_for_any_durations() -> None:
    f = model()
    with PoolEngine(simulated_clients(SlowFirst()), f, workers=3) as pool:
        received = [int(reply.up["n"]) for reply in pool.cohort(0, ALL_CLIENTS).run("train", {"w": f.w})]
    assert received == [9, 7, 4, 2, 1]


@pytest.mark.parametrize(("buffer", "started"), [(0, 2), (10**9, 5)])
def test_buffered_replies_are_bounded(buffer: int, started: int, tmp_path) -> None:
    """With one slow client and a full buffer of replies, the others are not started."""

    @dataclass(frozen=True)
    class Marks(SlowFirst):
        def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
            (tmp_path / str(len(r.y))).touch()
            return super().reply(w, steps, r)

    f = model()
    with PoolEngine(simulated_clients(Marks(seconds=1.0)), f, workers=2, buffer=buffer) as pool:
        stream = pool.cohort(0, ALL_CLIENTS).run("train", {"w": f.w})
        first = next(stream)
        assert int(first.up["n"]) == 9
        assert len(list(tmp_path.iterdir())) == started
        assert [int(reply.up["n"]) for reply in stream] == [7, 4, 2, 1]


def test_a_client_is_served_by_the_same_worker_within_a_round() -> None:
    @dataclass(frozen=True)
    class Naps(Stateful):
        def labels(self, r: Local) -> Payload:
            time.sleep(float(r.down["naps"][len(r.y)]))
            return super().labels(r)

    naps = torch.zeros(10)
    naps[[9, 7, 4, 2, 1]] = torch.tensor(
        [0.8, 0.3, 0.3, 0.6, 0.3]
    )  # one worker has time for 9 and 1, the other for the rest
    f = model()
    with PoolEngine(simulated_clients(Naps()), f, workers=2) as pool:
        cohort = pool.cohort(0, ALL_CLIENTS)
        served_by = [
            [int(reply.up["process"]) for reply in cohort.run("labels", {"w": f.w, "naps": times})]
            for times in (naps, torch.full((10,), 0.3))
        ]
    for a, b, c, _, e in served_by:
        assert a == e != b == c, "in the order of the jobs the third would be the first worker's"


def test_no_more_workers_than_jobs() -> None:
    f = model()
    with PoolEngine(simulated_clients(Stateful()), f, workers=4) as pool:
        assert pool.workers.pids == [], "none before the first job"
        pool.evaluate(f.w)
        assert len(pool.workers.pids) == 1, "one chunk"
        for number in (1, 3):
            list(pool.cohort(0, range(number)).run("labels", {"w": f.w}))
            assert len(pool.workers.pids) == number
        list(pool.cohort(0, ALL_CLIENTS).run("labels", {"w": f.w}))
        pids = pool.workers.pids
        assert len(pids) == 4
        assert set(pids) <= set(children(os.getpid()))
    assert all(has_exited(pid) for pid in pids)
    assert not set(pids) & set(children(os.getpid())), "not even as zombies"
    assert (
        PoolEngine(simulated_clients(Stateful()), f).workers.size == available_cores() == len(os.sched_getaffinity(0))
    )


def test_workers_of_an_unclosed_engine_exit_with_it() -> None:
    f = model()
    pool = PoolEngine(simulated_clients(Method()), f)
    pool.evaluate(f.w)
    (pid,) = pool.workers.pids
    del pool
    assert has_exited(pid)


def test_a_stream_closed_early_stores_only_accepted_states() -> None:
    """A stream of replies may be closed early: only accepted replies change client states."""
    f, down = model(), {"w": model().w, "strength": torch.tensor(0.0)}
    with PoolEngine(simulated_clients(Stateful()), f, workers=2) as pool:
        stream = accepted(pool.cohort(0, ALL_CLIENTS), "train", down)
        next(stream)
        other = pool.cohort(0, ALL_CLIENTS).run("train", down)
        with pytest.raises(RuntimeError, match="exchange"):
            next(other)
        stream.close()
        assert list(pool.client_state) == [3], "the largest client, whose reply was accepted"
        assert len(list(pool.cohort(0, ALL_CLIENTS).run("train", down))) == 5


def test_replies_are_not_changed_by_later_ones() -> None:
    f, down = model(), {"w": model().w, "strength": torch.tensor(0.0)}
    with PoolEngine(simulated_clients(Stateful()), f, workers=1) as pool:
        received = [(reply, reply.up["w"].clone()) for reply in pool.cohort(0, ALL_CLIENTS).run("train", down)]
    assert all(torch.equal(reply.up["w"], w) for reply, w in received)


def test_a_daemonic_process_gets_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(process.current_process()._config, "daemon", True)
    with pytest.raises(UserError) as error:
        PoolEngine(simulated_clients(Method()), model()).evaluate(model().w)
    assert (error.value.code, error.value.key) == ("engine.daemonic_process", "engine.name")
    assert 'engine.name = "serial"' in str(error.value)
