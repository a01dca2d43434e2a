"""The worker processes of an engine: started when there is work, replaced when they die, ended with the engine.

On Linux they are forked: `world` and `f` are simply there, the data in the same physical memory, and classes that a
user defined in a script or a notebook cell work as they are. Elsewhere, and beside CUDA (autograd's device threads do
not survive a fork), they are spawned: multiprocessing pickles `world` and `f` on their way from this process to its own
child, tensors excepted. Nothing that comes from a file or a network is ever unpickled, and nothing at all after the
start.
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import ClassVar, Literal

import torch

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.jobs import Job, JobResult, run_job
from fedrecall.simulation.scheduler import Worker, WorkerPool
from fedrecall.simulation.shared_memory import BlockRef, Channel, SharedBuffer


def worker_main(connection: Connection, world: SimulatedClients, f: FlatModel, number: int) -> None:
    """The life of a worker. How `world` and `f` get here is the crew's affair."""
    _init_process()
    f = f.to(worker_device(number))
    channel = Channel(connection)
    channel.send({"ready": True})
    # Two places for answers: the engine can send the next order before it has taken the last answer.
    for shelf in cycle([SharedBuffer("even"), SharedBuffer("odd")]):
        try:
            said, payloads = run_job(world, f, *channel.receive())
            channel.send(said, shelf.write(payloads))
        except (EOFError, ConnectionError):  # the engine is gone
            return


def worker_device(number: int) -> torch.device:
    """Where a worker computes: the CUDA devices in turn where there are any, else the processor."""
    count = torch.cuda.device_count()
    return torch.device("cuda", number % count) if count else torch.device("cpu")


def _init_process() -> None:
    """Make a process, perhaps a fork of one with threads, a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, which then ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # One thread each. It is also what makes a fork safe after the parent has used OpenMP, whose threads it lacks;
    # torch's own DataLoader does the same.
    torch.set_num_threads(1)
    gc.freeze()  # a collection would otherwise write to, and so copy, every page shared with the parent
    if sys.stdout is sys.__stdout__:  # another thread of the parent may have held the lock of its buffer
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (a file descriptor, kept open)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


StartMethod = Literal["fork", "spawn"]

EXIT_TIMEOUT = 5.0  # seconds that a process may take to end once its line is dead

SPAWN_HINT = (
    "define classes at the top of a module, put the code that runs the experiment under "
    '`if __name__ == "__main__":`, or set engine.name = "serial"'
)  # for systems where workers are spawned


def default_start_method() -> StartMethod:
    """How workers are started on this machine."""
    return "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(eq=False)
class ProcessWorker(Worker):
    """One worker process; a new one may have a job before it is heard of."""

    process: BaseProcess
    channel: Channel
    inbox: SharedBuffer = field(default_factory=lambda: SharedBuffer("inbox"))  # what this worker alone reads


class ProcessPool(WorkerPool[ProcessWorker]):
    """At most `size` workers, fewer as long as there is less to do."""

    worker_kind: ClassVar[str] = "worker process"

    def __init__(self, world: SimulatedClients, f: FlatModel, size: int, start: StartMethod | None = None) -> None:
        if os.name == "nt":
            raise UserError(
                "engine.unsupported_platform",
                'engine.name = "pool": worker processes need Linux or macOS',
                "engine.name",
                'set engine.name = "serial", or use WSL',
            )
        super().__init__()
        self._world, self._f, self._size = world, f, size
        self._start = start or default_start_method()
        self._broadcast_buffer = SharedBuffer("board")  # what all workers read: written once a shift
        self._broadcast_ref: BlockRef | None = None
        self._num_started = 0  # workers so far: the next one's number
        weakref.finalize(self, _kill_all, self._workers)

    @property
    def size(self) -> int:
        """How many there may be."""
        return self._size

    @property
    def pids(self) -> list[int]:
        """The processes there are now."""
        return [hand.process.pid for hand in self._workers if hand.process.pid is not None]

    def broadcast(self, down: Payload) -> None:
        """Write down what all jobs of the shift read."""
        self._broadcast_ref = self._broadcast_buffer.write({"down": down})

    def idle_worker(self, waiting: int) -> ProcessWorker | None:
        """One that has nothing to do, new if need be; None if all are busy."""
        for hand in self._workers:
            if hand.job is None:
                return hand
        return self._start_worker() if len(self._workers) < self._size else None

    def submit(self, hand: ProcessWorker, job: Job) -> None:
        """Send the order, and say where the payloads lie."""
        assert self._broadcast_ref is not None
        luggage = job.client_payloads()
        with suppress(ConnectionError):  # a dead worker is found out when it is listened to
            hand.channel.send(job.message, self._broadcast_ref, *([hand.inbox.write(luggage)] if luggage else []))

    def wait(self) -> Iterator[tuple[ProcessWorker, JobResult | str]]:
        """Wait until some of the busy ones have something to say (their death is also news)."""
        heard = wait([hand.channel.connection for hand in self.busy])
        for hand in [hand for hand in self.busy if hand.channel.connection in heard]:
            try:
                answer = JobResult(*hand.channel.receive())
            except (EOFError, ConnectionError):
                how = self._reap(hand)
                if not hand.ready:
                    raise UserError(
                        "engine.worker_start_failed",
                        f"a worker process could not start ({how}; its output is above)",
                        "engine.workers",
                        SPAWN_HINT,
                    ) from None
                yield hand, how
                continue
            if hand.ready:
                yield hand, answer
            hand.ready = True  # which is the first thing it says

    def _reap(self, hand: ProcessWorker) -> str:
        """Remove a worker that has died; returns how."""
        self._workers.remove(hand)
        hand.process.join(EXIT_TIMEOUT)
        code = hand.process.exitcode
        _kill_all([hand])
        if code is None:
            return "it closed its connection"
        if code >= 0:
            return f"exit code {code}"
        guess = {
            signal.SIGKILL: ", perhaps by the system because memory ran out",
            signal.SIGSEGV: ", perhaps by a write to the received payload, which is read-only",
        }
        return f"killed by {signal.Signals(-code).name}{guess.get(signal.Signals(-code), '')}"

    def cancel_running(self) -> None:
        """End those at a job."""
        busy = self.busy
        self._workers[:] = [hand for hand in self._workers if hand.job is None]
        _kill_all(busy)

    def close(self) -> None:
        """End all workers at once, whatever they are doing."""
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
        ours, theirs = context.Pipe()
        process = context.Process(
            target=worker_main, args=(theirs, self._world, self._f, self._num_started), name="fedrecall", daemon=True
        )
        try:
            with _sigint_blocked():
                process.start()
        except OSError as error:
            what = f"cannot start a worker process ({error.strerror})"
            raise UserError("engine.worker_start_failed", what, "engine.workers", "lower engine.workers") from error
        except Exception as error:  # whatever pickling says
            why = " ".join(str(error).split())
            what = f"the method and the model cannot be sent to a worker process ({why})"
            raise UserError("engine.cannot_pickle", what, "engine.name", SPAWN_HINT) from error
        finally:
            theirs.close()
        self._num_started += 1
        self._workers.append(ProcessWorker(process, Channel(ours)))
        return self._workers[-1]


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Ctrl-C waits until the worker can ignore it, or this process can end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of every fork beside threads; `worker` says why this one is safe.
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_all(hands: list[ProcessWorker]) -> None:
    for hand in hands:
        hand.process.kill()
    while hands:
        hand = hands.pop()
        hand.process.join()
        hand.process.close()
        hand.channel.close()
