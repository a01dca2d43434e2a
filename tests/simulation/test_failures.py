"""Workers that exit and clients that raise: retries, stored tracebacks, and the end of a run."""

import faulthandler
import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedrecall as fr
from fedrecall.core.exchange import Diverged
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Local, Payload, Step
from fedrecall.simulation import ENGINES, ClientFailure, FailurePolicy, PoolEngine, SerialEngine, processes
from fedrecall.testing.federation import SKEWED_LABELS, model, simulated_clients
from support.processes import children, shared_memory, until
from support.tiny_federation import accepted

ALL_CLIENTS = range(len(SKEWED_LABELS))
engines = pytest.mark.parametrize("name", ENGINES)


@dataclass(frozen=True)
class ExitsInTraining(fr.Method):
    """Method that ends its process at one client's last step, once for every token in a folder."""

    folder: str = ""
    signal_number: int = signal.SIGKILL
    examples: int = 7  # of the client that is hit

    def memory(self, w: Tensor) -> Payload:
        return {"last": torch.zeros_like(w)}

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        token = next(Path(self.folder).iterdir(), None) if len(r.y) == self.examples else None
        if token is not None:
            token.unlink()
            os.kill(os.getpid(), self.signal_number)
        return {"w": w + r.memory["last"]}, {"last": w}


def trained(engine: PoolEngine | SerialEngine, rounds: int = 2, population: int = len(ALL_CLIENTS)) -> list[Tensor]:
    with engine:
        down, all_clients = {"w": model().w}, range(population)
        return [r.up["w"] for t in range(rounds) for r in accepted(engine.cohort(t, all_clients), "train", down)]


def tokens(folder: Path, number: int) -> str:
    for i in range(number):
        (folder / str(i)).touch()
    return str(folder)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_worker_killed_in_a_round_is_replaced_to_the_bit(workers: int, deaths: int, tmp_path: Path) -> None:
    expected = trained(SerialEngine(simulated_clients(ExitsInTraining(str(tmp_path))), model()))
    before, processes_before = shared_memory(), children(os.getpid())
    got = trained(PoolEngine(simulated_clients(ExitsInTraining(tokens(tmp_path, deaths))), model(), workers=workers))
    assert list(tmp_path.iterdir()) == [], "it did die"
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert set(children(os.getpid())) <= set(processes_before)  # the resource tracker of another test may be there
    assert shared_memory() == before


@pytest.mark.parametrize("deaths", [2, 9])
def test_the_jobs_that_follow_on_a_killed_worker_are_not_lost(
    deaths: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SHORT_JOB_SECONDS", 60.0)
    labels = [*SKEWED_LABELS, *[[0, 1, 2, 0]] * 30]  # one client with seven examples
    expected = trained(SerialEngine(simulated_clients(ExitsInTraining(str(tmp_path)), labels), model()), 1, len(labels))
    failures: list[ClientFailure] = []
    faults = FailurePolicy(min_replies=1, save_traceback=failures.append)
    clients = simulated_clients(ExitsInTraining(tokens(tmp_path, deaths)), labels)
    got = trained(PoolEngine(clients, model(), faults, workers=2), 1, len(labels))
    if deaths == 9:  # more than one job may cost
        assert [failure.code for failure in failures] == ["engine.worker_exited"]
        del expected[1]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@dataclass(frozen=True)
class TwoExit(fr.Method):
    """Method whose clients with seven and four examples end their processes once, after the others are done."""

    folder: str = ""

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        token = Path(self.folder) / str(len(r.y))
        if token.exists():
            time.sleep(0.3)
            token.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"w": w}, {}


def test_two_workers_exit_while_the_reply_buffer_is_full(tmp_path: Path) -> None:
    for examples in (7, 4):
        (tmp_path / str(examples)).touch()
    f = model()
    with PoolEngine(simulated_clients(TwoExit(str(tmp_path))), f, workers=4, buffer=0) as pool:
        replies = pool.cohort(0, ALL_CLIENTS).run("train", {"w": f.w})
        sizes = [next(replies).n]
        until(lambda: not list(tmp_path.iterdir()))
        time.sleep(0.3)  # both deaths and the fourth client's answer are there before anybody listens
        sizes += [reply.n for reply in replies]
    assert sizes == [9, 7, 4, 2, 1]


def test_a_worker_killed_between_rounds_is_replaced(tmp_path: Path) -> None:
    w, f = simulated_clients(ExitsInTraining(str(tmp_path))), model()
    with PoolEngine(w, f, workers=2) as pool:
        expected = pool.evaluate(f.w)
        for _ in range(4):  # more often than one job may fail
            for pid in pool.workers.pids:
                os.kill(pid, signal.SIGKILL)
            score = pool.evaluate(f.w)
            assert torch.equal(score.predicted, expected.predicted)
            assert score.loss == expected.loss
            assert len(list(pool.cohort(0, ALL_CLIENTS).run("train", {"w": f.w}))) == 5


def test_a_client_that_kills_every_worker_has_failed(tmp_path: Path) -> None:
    failures: list[ClientFailure] = []
    faults = FailurePolicy(min_replies=4, save_traceback=failures.append)
    pool = PoolEngine(simulated_clients(ExitsInTraining(tokens(tmp_path, 9))), model(), faults, workers=2)
    assert len(trained(pool, rounds=1)) == 4
    assert [(k.t, k.client, k.code) for k in failures] == [(0, 1, "engine.worker_exited")]
    for fact in ("worker process", "3 times", "SIGKILL", "memory"):
        assert fact in failures[0].error
    assert len(list(tmp_path.iterdir())) == 6
    with pytest.raises(fr.UserError) as caught:
        trained(PoolEngine(simulated_clients(ExitsInTraining(str(tmp_path))), model()))
    assert caught.value.code == "engine.worker_exited"
    for fact in ("round 1", "client 1", "worker process", "3 times"):
        assert fact in str(caught.value)


def test_writing_to_a_received_tensor_is_fatal_and_explained() -> None:
    @dataclass(frozen=True)
    class Vandal(fr.Method):
        def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
            faulthandler.disable()  # pytest's, which would tell the whole story on the console
            r.w.zero_()
            return {"w": w}, {}

    with pytest.raises(fr.UserError) as caught:
        trained(PoolEngine(simulated_clients(Vandal()), model()))
    assert caught.value.code == "engine.worker_exited"
    assert "SIGSEGV" in str(caught.value)
    assert "read-only" in str(caught.value)


@dataclass(frozen=True)
class RaisesForSome(fr.Method):
    """Method that raises for some clients."""

    sizes: tuple[int, ...] = (7,)
    error: Exception = ValueError("I do not like\nthis batch")

    def memory(self, w: Tensor) -> Payload:
        return {"rounds": torch.tensor(0)}

    def loss(self, s: Step, r: Local) -> Tensor:
        if len(r.y) in self.sizes:
            raise self.error
        return super().loss(s, r)

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        return {"w": w}, {"rounds": r.memory["rounds"] + 1}


@engines
def test_a_client_that_raises_stops_the_run_with_one_line(name: str) -> None:
    with pytest.raises(fr.UserError) as caught:
        trained(ENGINES[name](simulated_clients(RaisesForSome()), model()))
    assert (caught.value.code, caught.value.key) == ("round.client_failed", None)
    for fact in ("round 1", "client 1", "ValueError: I do not like this batch"):
        assert fact in str(caught.value)
    assert "\n" not in str(caught.value)
    cause = str(caught.value.__cause__)
    assert "I do not like\nthis batch" in cause
    assert name == "serial" or "in loss" in cause, "where it happened"


@engines
def test_a_round_with_enough_replies_completes_and_failed_clients_keep_their_state(name: str) -> None:
    failures: list[ClientFailure] = []
    engine = ENGINES[name](
        simulated_clients(RaisesForSome()), model(), FailurePolicy(min_replies=4, save_traceback=failures.append)
    )
    assert len(trained(engine)) == 8
    assert [(k.t, k.client, k.code) for k in failures] == [(t, 1, "round.client_failed") for t in (0, 1)]
    assert {k.error for k in failures} == {"ValueError: I do not like this batch"}
    assert all("in loss" in k.traceback for k in failures)
    assert {k: int(m["rounds"]) for k, m in engine.client_state.items()} == {0: 2, 2: 2, 3: 2, 4: 2}


@engines
def test_too_few_replies_stop_the_run_as_soon_as_it_is_known(name: str) -> None:
    engine = ENGINES[name](
        simulated_clients(RaisesForSome(sizes=(9, 7))),
        model(),
        FailurePolicy(min_replies=4, save_traceback=lambda f: "a file"),
    )
    with pytest.raises(fr.UserError) as caught:
        trained(engine)
    assert (caught.value.code, caught.value.key) == ("round.too_few_replies", "engine.min_replies")
    facts = ("round 1", "client 1", "ValueError: I do not like this batch", "3 of 5", "min_replies = 4", "a file")
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


@engines
@pytest.mark.parametrize("kind", [fr.UserError, Diverged])
@pytest.mark.parametrize("more", [(), ("local.lr",), ("local.lr", "mend it")])
def test_user_errors_of_a_client_are_raised_unchanged(
    name: str, kind: type[fr.UserError], more: tuple[str, ...]
) -> None:
    """The error is the same for every client, so `min_replies` does not apply."""
    error = kind("method.own_code", "I do not like\nthis batch", *more)
    with pytest.raises(fr.UserError) as caught:
        trained(ENGINES[name](simulated_clients(RaisesForSome(error=error)), model(), FailurePolicy(min_replies=1)))
    assert type(caught.value) is kind
    assert caught.value.args == error.args, "with its code, key and hint"
    assert str(caught.value) == str(error)


def test_a_model_that_cannot_be_scored() -> None:
    with PoolEngine(simulated_clients(fr.Method()), model()) as pool, pytest.raises(fr.UserError) as caught:
        pool.evaluate(torch.zeros(3))
    assert caught.value.code == "engine.evaluation_failed"
    assert "RuntimeError" in str(caught.value)


class ExitsInEvaluation(torch.nn.Module):
    """Model that ends its process in evaluation, once for every token in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.inner = folder, model().model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        token = None if self.training else next(Path(self.folder).iterdir(), None)
        if token is not None:
            token.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


def test_a_worker_killed_in_an_evaluation_is_replaced_to_the_bit(tmp_path: Path) -> None:
    f = FlatModel(ExitsInEvaluation(str(tmp_path)))
    expected = SerialEngine(simulated_clients(fr.Method()), f).evaluate(f.w)
    tokens(tmp_path, 2)
    with PoolEngine(simulated_clients(fr.Method()), f, workers=2) as pool:
        score = pool.evaluate(f.w)
        assert list(tmp_path.iterdir()) == [], "they did die"
        assert torch.equal(score.predicted, expected.predicted)
        assert score.loss == expected.loss
        tokens(tmp_path, 20)
        with pytest.raises(fr.UserError) as caught:
            pool.evaluate(f.w)
        assert caught.value.code == "engine.worker_exited"
        for fact in ("global model", "3 times", "SIGKILL", "memory"):
            assert fact in str(caught.value)


@engines
def test_run_directory_keeps_the_tracebacks(name: str, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Rounds(fr.Method):
        def loss(self, s: Step, r: Local) -> Tensor:
            if r.t == 2 and r.counts[0] > r.counts[1]:
                raise ValueError("too many noughts")
            return super().loss(s, r)

    settings = {"run": {"rounds": 4}, "local": {"epochs": 1}, "federation": {"clients": 4}}
    with pytest.raises(fr.UserError) as caught:
        fr.run(fr.Experiment(method=Rounds(), engine={"name": name}, **settings), out=tmp_path / "a")
    assert caught.value.code == "round.client_failed"
    (file,) = (tmp_path / "a" / "failures").iterdir()
    for fact in ("round 3", "ValueError: too many noughts", str(file)):
        assert fact in str(caught.value)
    assert file.name.startswith("round-3-client-")
    assert "too many noughts" in file.read_text()
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert "round 3: client" in summary["failed"]
    result = fr.run(fr.Experiment(method=Rounds(), engine={"name": name, "min_replies": 1}, **settings))
    assert len(result.rounds) == 4


def test_min_replies_above_the_cohort_is_an_error() -> None:
    with pytest.raises(fr.UserError) as caught:
        fr.Experiment(engine={"min_replies": 11})
    assert (caught.value.code, caught.value.key) == ("config.conflict", "engine.min_replies")
    assert "11" in str(caught.value)
    assert "10 clients" in str(caught.value)


def test_objects_that_cannot_be_sent_to_a_spawned_worker_are_errors() -> None:
    @dataclass(frozen=True)
    class LocalMethod(fr.Method):
        pass

    with pytest.raises(fr.UserError) as caught:
        trained(PoolEngine(simulated_clients(LocalMethod()), model(), start="spawn"))
    assert (caught.value.code, caught.value.key) == ("engine.cannot_pickle", "engine.name")
    assert "LocalMethod" in str(caught.value)
    assert "top of a module" in str(caught.value)


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(fr.UserError) as caught:
        trained(PoolEngine(simulated_clients(fr.Method()), model()))
    assert (caught.value.code, caught.value.key) == ("engine.worker_start_failed", "engine.workers")
    assert "Resource temporarily unavailable" in str(caught.value)


def test_workers_that_exit_at_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrecall.simulation.processes.worker_main", lambda *_: os._exit(3))
    with pytest.raises(fr.UserError) as caught:
        trained(PoolEngine(simulated_clients(fr.Method()), model()))
    assert caught.value.code == "engine.worker_start_failed"
    assert "exit code 3" in str(caught.value)


def test_a_worker_killed_before_it_is_ready_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(SerialEngine(simulated_clients(fr.Method()), model()))
    real = processes.worker_main

    def fatal_start(*args: Any) -> None:
        token = next(tmp_path.iterdir(), None)
        if token is not None:
            token.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        real(*args)

    monkeypatch.setattr(processes, "worker_main", fatal_start)
    tokens(tmp_path, 2)
    got = trained(PoolEngine(simulated_clients(fr.Method()), model(), workers=1))
    assert list(tmp_path.iterdir()) == []
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    tokens(tmp_path, 9)
    with pytest.raises(fr.UserError) as caught:
        trained(PoolEngine(simulated_clients(fr.Method()), model(), workers=1))
    assert caught.value.code == "engine.worker_exited"


def test_a_stopped_worker_is_replaced_after_the_timeout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = trained(SerialEngine(simulated_clients(ExitsInTraining(str(tmp_path), signal.SIGSTOP)), model()))
    before = children(os.getpid())
    stopping = simulated_clients(ExitsInTraining(tokens(tmp_path, 1), signal.SIGSTOP))
    got = trained(PoolEngine(stopping, model(), workers=2, timeout=2.0))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert children(os.getpid()) == before  # the resource tracker of another test may be there
    assert re.search(r"process \d+ is stopped", caplog.text)
    tokens(tmp_path, 3)
    with pytest.raises(fr.UserError) as caught:
        trained(PoolEngine(stopping, model(), workers=2, timeout=0.5))
    assert caught.value.code == "engine.worker_exited"
    assert "is stopped" in str(caught.value)
    assert "engine.timeout" in str(caught.value)


def test_a_stopped_worker_is_reported_without_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "STOPPED_WARNING_SECONDS", 0.5)
    stopping = simulated_clients(ExitsInTraining(tokens(tmp_path, 1), signal.SIGSTOP))
    with PoolEngine(stopping, model(), workers=1) as pool, ThreadPoolExecutor(1) as thread:
        replies = thread.submit(lambda: list(pool.cohort(0, ALL_CLIENTS).run("train", {"w": model().w})))
        until(lambda: bool(caplog.records))
        (pid,) = pool.workers.pids
        assert str(pid) in caplog.text
        os.kill(pid, signal.SIGCONT)
        assert len(replies.result(timeout=30)) == 5
    assert len(caplog.records) == 1


def test_every_exit_status_has_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrecall.simulation.processes.EXIT_TIMEOUT", 0.0)
    with PoolEngine(simulated_clients(fr.Method()), model(), workers=1) as pool:
        for end, fact in ((signal.SIGTERM, "SIGTERM"), (0, "connection")):
            pool.evaluate(model().w)
            worker = pool.workers.available_worker(waiting=1)
            assert worker is not None
            os.kill(pool.workers.pids[0], end)
            until(lambda: end == 0 or not worker.process.is_alive())  # noqa: B023 (called at once)
            assert fact in pool.workers._reap(worker)


def test_other_systems_get_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    w, f = simulated_clients(fr.Method()), model()
    monkeypatch.setattr("fedrecall.simulation.processes.os", SimpleNamespace(name="nt"))
    with pytest.raises(fr.UserError) as caught:
        PoolEngine(w, f, workers=1)
    assert (caught.value.code, caught.value.key) == ("engine.unsupported_platform", "engine.name")
    assert 'engine.name = "serial"' in str(caught.value)
    assert "WSL" in str(caught.value)


def test_from_a_thread() -> None:
    """Signals are handled in the main thread, which is a forked worker's only thread."""
    with ThreadPoolExecutor(1) as threads:
        got = threads.submit(lambda: trained(PoolEngine(simulated_clients(fr.Method()), model(), workers=2))).result(
            timeout=60
        )
    assert all(
        torch.equal(a, b)
        for a, b in zip(got, trained(SerialEngine(simulated_clients(fr.Method()), model())), strict=True)
    )
