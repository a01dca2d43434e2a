"""The worker processes of an engine: started when there is work, replaced when they die, ended with the engine.

On Linux they are forked: `world` and `f` are simply there, the data in the same physical memory, and classes that a
user defined in a script or a notebook cell work as they are. Elsewhere, and beside CUDA (autograd's device threads do
not survive a fork), they are spawned, and multiprocessing pickles `world` and `f` on their way from this process to its
own child, tensors excepted. Nothing that comes from a file or a network is ever unpickled, and in neither case
anything after the start.
"""

import multiprocessing
import signal
import sys
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, NamedTuple, Protocol

import torch

from fedrecall.core.flat import Flat
from fedrecall.core.types import Payload
from fedrecall.engines.shared import Channel, Message, Parcel, Shelf
from fedrecall.engines.worker import work
from fedrecall.engines.world import World
from fedrecall.errors import UserError

Start = Literal["fork", "spawn"]
START: Start = "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"
LIVES = 3  # workers that a job may cost before it is given up
BUFFER = 256 * 2**20  # bytes of answers kept for their turn before no new jobs are given out


class Job(Protocol):
    """Something for a worker to do. A pure function, so it can be done again."""

    @property
    def order(self) -> Message:
        """What."""
        ...

    def luggage(self) -> Payload | None:
        """What goes along with it to this worker alone."""
        ...


class Done(NamedTuple):
    """What a worker answered."""

    message: Message
    payloads: dict[str, Payload]


@dataclass(eq=False)
class Hand:
    """One worker, as the crew sees it."""

    process: BaseProcess
    channel: Channel
    inbox: Shelf = field(default_factory=lambda: Shelf("luggage"))
    ready: bool = False
    job: int | None = None  # what it is at


class Crew:
    """At most `size` workers, fewer as long as there is less to do."""

    def __init__(self, world: World, f: Flat, size: int, *, start: Start = START, buffer: int = BUFFER) -> None:
        self._world, self._f, self._size, self._start, self._buffer = world, f, size, start, buffer
        self._board = Shelf("board")  # what all workers read
        self._hands: list[Hand] = []
        weakref.finalize(self, _dismiss, self._hands)

    @property
    def pids(self) -> list[int]:
        """The processes there are now."""
        return [hand.process.pid for hand in self._hands if hand.process.pid is not None]

    def close(self) -> None:
        """End all workers at once, whatever they are doing."""
        _dismiss(self._hands)

    def map(self, jobs: Sequence[Job], down: Payload) -> Iterator[Done]:
        """The answers, in the order of the jobs, which are also begun in it. `down` is what all of them read."""
        if any(hand.job is not None for hand in self._hands):
            raise RuntimeError("an exchange is still going on: take all its replies, or close it, before the next")
        self._settle_vacancies()
        board = self._board.put({"down": down})
        queue, deaths = deque(range(len(jobs))), Counter[int]()
        early: dict[int, Done] = {}  # answers whose turn has not come
        held = 0
        try:
            for turn in range(len(jobs)):
                while turn not in early:
                    while queue and held <= self._buffer and (hand := self._free_hand()):
                        self._give(hand, queue, jobs, board)
                    for hand in self._wait():
                        number = hand.job
                        done = self._take(hand)
                        if number is None or (done is None and hand in self._hands):
                            continue  # it has only said that it is ready
                        if done is None:
                            deaths[number] += 1
                            if deaths[number] < LIVES:
                                queue.appendleft(number)
                                continue
                            done = _died(hand)
                        held += _bytes(done)
                        if queue and held <= self._buffer and hand in self._hands:
                            self._give(hand, queue, jobs, board)  # before the answer is copied: it need not wait
                        early[number] = _kept(done)
                done = early.pop(turn)
                held -= _bytes(done)
                yield done
        finally:
            self._abandon()
