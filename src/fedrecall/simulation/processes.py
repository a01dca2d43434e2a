"""The worker processes of an engine: started when there is work, replaced when they die, ended with the engine.

On Linux they are forked: `world` and `f` are simply there, the data in the same physical memory, and classes that a
user defined in a script or a notebook cell work as they are. Elsewhere, and beside CUDA (autograd's device threads do
not survive a fork), they are spawned: multiprocessing pickles `world` and `f` on their way from this process to its own
child, tensors excepted. Nothing that comes from a file or a network is ever unpickled, and nothing at all after the
start.
"""

import multiprocessing
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import ClassVar, Literal

import torch

from fedrecall.core.flat_model import Flat
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.clients import World
from fedrecall.simulation.jobs import Answer, Job
from fedrecall.simulation.scheduler import Crew, Hand
from fedrecall.simulation.shared_memory import Channel, Parcel, Shelf
from fedrecall.simulation.worker import work

Start = Literal["fork", "spawn"]

GRACE = 5.0  # seconds that a process may take to end once its line is dead

ADVICE = (
    "define classes at the top of a module, put the code that runs the experiment under "
    '`if __name__ == "__main__":`, or set engine.name = "serial"'
)  # for systems where workers are spawned


def best_start() -> Start:
    """How workers are started on this machine."""
    return "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(eq=False)
class ProcessHand(Hand):
    """One worker process; a new one may have a job before it is heard of."""

    process: BaseProcess
    channel: Channel
    inbox: Shelf = field(default_factory=lambda: Shelf("inbox"))  # what this worker alone reads


class ProcessCrew(Crew[ProcessHand]):
    """At most `size` workers, fewer as long as there is less to do."""

    noun: ClassVar[str] = "worker process"

    def __init__(self, world: World, f: Flat, size: int, start: Start | None = None) -> None:
        if os.name == "nt":
            raise UserError(
                "engine.unsupported_platform",
                'engine.name = "pool": worker processes need Linux or macOS',
                "engine.name",
                'set engine.name = "serial", or use WSL',
            )
        super().__init__()
        self._world, self._f, self._size = world, f, size
        self._start = start or best_start()
        self._shelf = Shelf("board")  # what all workers read: written once a shift
        self._board: Parcel | None = None
        self._hired = 0  # workers so far: the next one's number
        weakref.finalize(self, _end, self._hands)

    @property
    def size(self) -> int:
        """How many there may be."""
        return self._size

    @property
    def pids(self) -> list[int]:
        """The processes there are now."""
        return [hand.process.pid for hand in self._hands if hand.process.pid is not None]

    def begin(self, down: Payload) -> None:
        """Write down what all jobs of the shift read."""
        self._board = self._shelf.put({"down": down})

    def idle(self, waiting: int) -> ProcessHand | None:
        """One that has nothing to do, new if need be; None if all are busy."""
        for hand in self._hands:
            if hand.job is None:
                return hand
        return self._hire() if len(self._hands) < self._size else None

    def give(self, hand: ProcessHand, job: Job) -> None:
        """Send the order, and say where the payloads lie."""
        assert self._board is not None
        luggage = job.luggage()
        with suppress(ConnectionError):  # a dead worker is found out when it is listened to
            hand.channel.send(job.order, self._board, *([hand.inbox.put(luggage)] if luggage else []))

    def news(self) -> Iterator[tuple[ProcessHand, Answer | str]]:
        """Wait until some of the busy ones have something to say (their death is also news)."""
        heard = wait([hand.channel.connection for hand in self.busy])
        for hand in [hand for hand in self.busy if hand.channel.connection in heard]:
            try:
                answer = Answer(*hand.channel.receive())
            except (EOFError, ConnectionError):
                how = self.bury(hand)
                if not hand.ready:
                    raise UserError(
                        "engine.worker_start_failed",
                        f"a worker process could not start ({how}; its output is above)",
                        "engine.workers",
                        ADVICE,
                    ) from None
                yield hand, how
                continue
            if hand.ready:
                yield hand, answer
            hand.ready = True  # which is the first thing it says

    def bury(self, hand: ProcessHand) -> str:
        """Remove a worker that has died; returns how."""
        self._hands.remove(hand)
        hand.process.join(GRACE)
        code = hand.process.exitcode
        _end([hand])
        if code is None:
            return "it closed its connection"
        if code >= 0:
            return f"exit code {code}"
        guess = {
            signal.SIGKILL: ", perhaps by the system because memory ran out",
            signal.SIGSEGV: ", perhaps by a write to the received payload, which is read-only",
        }
        return f"killed by {signal.Signals(-code).name}{guess.get(signal.Signals(-code), '')}"

    def abandon(self) -> None:
        """End those at a job."""
        busy = self.busy
        self._hands[:] = [hand for hand in self._hands if hand.job is None]
        _end(busy)

    def close(self) -> None:
        """End all workers at once, whatever they are doing."""
        _end(self._hands)

    def _hire(self) -> ProcessHand:
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
            target=work, args=(theirs, self._world, self._f, self._hired), name="fedrecall", daemon=True
        )
        try:
            with _undisturbed():
                process.start()
        except OSError as error:
            what = f"cannot start a worker process ({error.strerror})"
            raise UserError("engine.worker_start_failed", what, "engine.workers", "lower engine.workers") from error
        except Exception as error:  # whatever pickling says
            why = " ".join(str(error).split())
            what = f"the method and the model cannot be sent to a worker process ({why})"
            raise UserError("engine.cannot_pickle", what, "engine.name", ADVICE) from error
        finally:
            theirs.close()
        self._hired += 1
        self._hands.append(ProcessHand(process, Channel(ours)))
        return self._hands[-1]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the worker can ignore it, or this process can end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of every fork beside threads; `worker` says why this one is safe.
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(hands: list[ProcessHand]) -> None:
    for hand in hands:
        hand.process.kill()
    while hands:
        hand = hands.pop()
        hand.process.join()
        hand.process.close()
        hand.channel.close()
