"""Worker processes: started when there are jobs, replaced when they exit, stopped with the engine.

On Linux workers are forked: `clients` and `f` are in the same physical memory, and classes that a user defined in a
script or a notebook cell work unchanged. Elsewhere, and with CUDA (autograd's device threads do not survive a fork),
workers are spawned: multiprocessing pickles `clients` and `f` for its own child, except for tensors. Nothing from a
file or a network is unpickled, and nothing at all after the start.
"""

import ctypes
import gc
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import ClassVar, Literal

import torch

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.devices import make_deterministic, worker_device
from fedrecall.simulation.jobs import Job, JobResult, run_job
from fedrecall.simulation.scheduler import Worker, WorkerPool
from fedrecall.simulation.shared_memory import BlockRef, Channel, SharedBuffer

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def worker_main(connection: Connection, clients: SimulatedClients, f: FlatModel, number: int, device: str) -> None:
    """Run jobs until the engine closes the connection."""
    _init_process()
    own = worker_device(number, device)
    make_deterministic(own)
    f = f.to(own)
    channel = Channel(connection)
    try:
        # While the engine copies a result, the worker may finish the job that it has and one that it gets meanwhile.
        buffers = [SharedBuffer(f"result {i}") for i in range(3)]
    except OSError as error:
        sys.exit(f"worker process {number}: {error.strerror}")
    channel.send({"ready": True})
    for buffer in cycle(buffers):
        try:
            message, payloads = run_job(clients, f, *channel.receive())
            channel.send(message, buffer.write(payloads))
        except (EOFError, ConnectionError):  # the engine has exited
            return


def _init_process() -> None:
    """Set up signals, threads and output of a worker, which may be a fork of a process with threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the engine, which then stops its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # One thread per worker. It also makes a fork safe after the parent has used OpenMP, whose threads the child lacks;
    # torch's DataLoader does the same.
    torch.set_num_threads(1)
    _keep_freed_memory()
    gc.freeze()  # a collection would otherwise write to, and so copy, every page shared with the parent
    if sys.stdout is sys.__stdout__:  # another thread of the parent may have held the lock of its buffer
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (a file descriptor, kept open)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _keep_freed_memory() -> None:
    """Stop glibc from returning memory to the system that the next batch needs again, page by page.

    Other C libraries have no `mallopt`, or ignore it.
    """
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest that it accepts
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


log = logging.getLogger(__name__)

StartMethod = Literal["fork", "spawn"]

STOPPED_WARNING_SECONDS = 60.0  # time after which a worker process that a signal stopped is reported

SHORT_JOB_SECONDS = 0.05  # a worker whose jobs are shorter gets the next one before it has finished

EXIT_TIMEOUT = 5.0  # seconds to wait for a worker to exit after its pipe was closed

KILLED = "killed by "  # first words of the reason of exit of a worker that got a signal

SPAWN_HINT = (
    "define classes at the top of a module, put the code that runs the experiment under "
    '`if __name__ == "__main__":`, or set engine.name = "serial"'
)  # for systems on which workers are spawned


def default_start_method(device: str = "auto") -> StartMethod:
    """Return the start method of workers on this machine."""
    return "fork" if sys.platform == "linux" and worker_device(0, device).type == "cpu" else "spawn"


@dataclass(eq=False)
class ProcessWorker(Worker):
    """One worker process. A new one may get a job before its first message."""

    process: BaseProcess
    channel: Channel
    inboxes: Iterator[SharedBuffer] = field(  # payloads for this worker alone, of the running job and of the next one
        default_factory=lambda: cycle([SharedBuffer("inbox 0"), SharedBuffer("inbox 1")])
    )
    started: float = 0.0  # time at which its job started
    job_seconds: float = math.inf  # time that its last job took
    reported: bool = False  # a warning named it as stopped

    @property
    def is_stopped(self) -> bool:
        """True if the process was stopped by a signal. Known on Linux only."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].startswith("T")
        except OSError:
            return False


class ProcessPool(WorkerPool[ProcessWorker]):
    """At most `size` workers, started when needed."""

    worker_kind: ClassVar[str] = "worker process"

    def __init__(
        self,
        clients: SimulatedClients,
        f: FlatModel,
        size: int,
        start: StartMethod | None = None,
        timeout: float | None = None,
        device: str = "auto",
    ) -> None:
        if os.name == "nt":
            raise UserError(
                "engine.unsupported_platform",
                'engine.name = "pool": worker processes need Linux or macOS',
                "engine.name",
                'set engine.name = "serial", or use WSL',
            )
        super().__init__()
        self._clients, self._f, self._size, self._timeout = clients, f, size, timeout
        self._start = start or default_start_method(device)
        self._device = device
        self._broadcast_buffer = SharedBuffer("board")  # read by all workers, written once per exchange
        self._broadcast_ref: BlockRef | None = None
        self._num_started = 0  # workers so far: the number of the next one
        weakref.finalize(self, _kill_all, self._workers)

    @property
    def size(self) -> int:
        """Largest number of workers."""
        return self._size

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def broadcast(self, down: Payload) -> None:
        """Write the payload that all jobs of the exchange read."""
        self._broadcast_ref = self._broadcast_buffer.write({"down": down})

    def can_take(self, worker: ProcessWorker, waiting: int) -> bool:
        """Return True if a worker has no job, or only one, and jobs are short: then it need not wait for the next."""
        is_short = len(worker.jobs) == 1 and worker.job_seconds < SHORT_JOB_SECONDS and self._start == "fork"
        return not worker.jobs or (is_short and waiting > self._size)

    def available_worker(self, waiting: int) -> ProcessWorker | None:
        """Return a worker without a job, a new one if needed, one with a short job, or None if all have enough."""
        for worker in self._workers:
            if not worker.jobs:
                return worker
        if len(self._workers) < self._size:
            return self._start_worker()
        return next((worker for worker in self._workers if self.can_take(worker, waiting)), None)

    def submit(self, worker: ProcessWorker, job: Job) -> None:
        """Send the message of a job and references to its payloads."""
        assert self._broadcast_ref is not None
        refs, payloads = [self._broadcast_ref], job.client_payloads()
        if payloads:
            refs.append(next(worker.inboxes).write(payloads))
        if not worker.jobs:
            worker.started = time.monotonic()
        with suppress(ConnectionError):  # `wait` reports a worker that has exited
            worker.channel.send(job.message, *refs)

    def wait(self) -> Iterator[tuple[ProcessWorker, JobResult | str]]:
        """Wait for messages of busy workers; yield results, or the reason of exit of workers."""
        readable = wait([worker.channel.connection for worker in self.busy], self._timeout or STOPPED_WARNING_SECONDS)
        yield from self._replace_silent([worker for worker in self.busy if worker.channel.connection not in readable])
        for worker in [worker for worker in self.busy if worker.channel.connection in readable]:
            try:
                result = JobResult(*worker.channel.receive())
            except (EOFError, ConnectionError):
                reason = self._reap(worker)
                if not worker.ready and not reason.startswith(KILLED):  # a worker that exits by itself does so again
                    raise UserError(
                        "engine.worker_start_failed",
                        f"a worker process could not start ({reason}; its output is above)",
                        "engine.workers",
                        SPAWN_HINT,
                    ) from None
                yield worker, reason
                continue
            if worker.ready:
                now = time.monotonic()
                worker.job_seconds, worker.started = now - worker.started, now
                yield worker, result
            worker.ready = True  # the first message has no result

    def _replace_silent(self, workers: list[ProcessWorker]) -> Iterator[tuple[ProcessWorker, str]]:
        """Kill workers without a result after the timeout, and yield them. Without a timeout warn of stopped ones."""
        limit, now = self._timeout or STOPPED_WARNING_SECONDS, time.monotonic()
        for worker in workers:
            if now - worker.started < limit or worker.reported:
                continue
            pid, is_stopped = worker.process.pid, worker.is_stopped
            if self._timeout is not None:
                self._workers.remove(worker)
                _kill_all([worker])
                state = f"process {pid} is stopped" if is_stopped else f"process {pid} is running"
                reason = f"no result within engine.timeout = {limit:g} seconds; {state}"
                log.warning("worker process %d is replaced: %s", pid, reason)
                yield worker, reason
            elif is_stopped:
                worker.reported = True
                log.warning(
                    "worker process %d is stopped: continue it (kill -CONT %d), or set engine.timeout", pid, pid
                )

    def _reap(self, worker: ProcessWorker) -> str:
        """Remove a worker that has exited; return the reason."""
        self._workers.remove(worker)
        worker.process.join(EXIT_TIMEOUT)
        code = worker.process.exitcode
        _kill_all([worker])
        if code is None:
            return "it closed its connection"
        if code >= 0:
            return f"exit code {code}"
        causes = {
            signal.SIGKILL: ", perhaps by the system because memory ran out",
            signal.SIGSEGV: ", perhaps by a write to the received payload, which is read-only",
        }
        return f"{KILLED}{signal.Signals(-code).name}{causes.get(signal.Signals(-code), '')}"

    def cancel_running(self) -> None:
        """Stop all workers that run a job."""
        busy = self.busy
        self._workers[:] = [worker for worker in self._workers if not worker.jobs]
        _kill_all(busy)

    def close(self) -> None:
        """Stop all workers at once."""
        _kill_all(self._workers)

    def _start_worker(self) -> ProcessWorker:
        if multiprocessing.current_process().daemon:
            raise UserError(
                "engine.daemonic_process",
                "this process is daemonic and cannot start worker processes",
                "engine.name",
                'set engine.name = "serial"',
            )
        context = multiprocessing.get_context("fork") if self._start == "fork" else multiprocessing.get_context("spawn")
        parent_end, child_end = context.Pipe()
        process = context.Process(
            target=worker_main,
            args=(child_end, self._clients, self._f, self._num_started, self._device),
            name="fedrecall",
            daemon=True,
        )
        try:
            with _sigint_blocked():
                process.start()
        except OSError as error:
            what = f"cannot start a worker process ({error.strerror})"
            raise UserError("engine.worker_start_failed", what, "engine.workers", "lower engine.workers") from error
        except Exception as error:  # of any class: raised by pickling
            why = " ".join(str(error).split())
            what = f"the method and the model cannot be sent to a worker process ({why})"
            raise UserError("engine.cannot_pickle", what, "engine.name", SPAWN_HINT) from error
        finally:
            child_end.close()
        self._num_started += 1
        self._workers.append(ProcessWorker(process, Channel(parent_end)))
        return self._workers[-1]


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C until the worker ignores it, or this process can stop the worker."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of every fork of a process with threads; `_init_process` states why this one is safe.
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_all(workers: list[ProcessWorker]) -> None:
    for worker in workers:
        worker.process.kill()
    while workers:
        worker = workers.pop()
        worker.process.join()
        worker.process.close()
        worker.channel.close()
