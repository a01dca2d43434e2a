"""Who does what when: jobs to idle workers, answers in the order of the jobs, the jobs of the dead to others."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from fedrecall.core.types import Payload
from fedrecall.simulation.jobs import Answer, Job

LIVES = 3  # workers that a job may cost before it is given up


@dataclass(eq=False, kw_only=True)
class Hand:
    """One worker, as the engine sees it."""

    ready: bool = False  # it has been heard of
    job: int | None = None  # what it is at
    met: set[int] = field(default_factory=set)  # clients of the round that it has served before


H = TypeVar("H", bound=Hand)


class Crew(ABC, Generic[H]):
    """The workers of an engine: hired when there is work, replaced when they die, ended with the engine."""

    noun: ClassVar[str]  # what one of them is

    def __init__(self) -> None:
        self._hands: list[H] = []

    @property
    def busy(self) -> list[H]:
        """Those at a job."""
        return [hand for hand in self._hands if hand.job is not None]

    def new_round(self) -> None:
        """Nobody has met any of the clients."""
        for hand in self._hands:
            hand.met.clear()

    @property
    @abstractmethod
    def size(self) -> int:
        """How many there may be now."""

    @abstractmethod
    def begin(self, down: Payload) -> None:
        """A shift begins; this goes down to whoever has a job in it."""

    @abstractmethod
    def idle(self, waiting: int) -> H | None:
        """One that has nothing to do, new if need be; None if there is none yet. So many jobs wait."""

    @abstractmethod
    def give(self, hand: H, job: Job) -> None:
        """Send somebody to work. Its death is heard of, not raised."""

    @abstractmethod
    def news(self) -> Iterator[tuple[H, Answer | str]]:
        """Wait for something to happen; those that have answered, or how they died, in which case they are gone.

        The tensors of an answer are views, good until the worker's next answer.
        """

    @abstractmethod
    def abandon(self) -> None:
        """End those at a job: nobody waits for their answers."""

    @abstractmethod
    def close(self) -> None:
        """End all at once, whatever they are doing."""


class Shift(Generic[H]):
    """The jobs of one exchange."""

    def __init__(self, crew: Crew[H], jobs: Sequence[Job], buffer: int) -> None:
        """Beyond `buffer` bytes of answers that wait for their turn, no job is begun."""
        self._crew, self._jobs, self._buffer = crew, jobs, buffer
        self._queue = deque(range(len(jobs)))
        self._turn = 0  # whose answer is due
        self._early: dict[int, Answer] = {}  # answers whose turn has not come
        self._held = 0  # their bytes
        self._deaths = Counter[int]()

    def answers(self, down: Payload) -> Iterator[Answer]:
        """The answers in the order of the jobs, which are also begun in it; all of them read what goes down."""
        if self._crew.busy:
            raise RuntimeError("another exchange is running: read all its replies, or close it, before the next")
        self._crew.begin(down)
        try:
            while self._turn < len(self._jobs):
                self._give_out()
                while self._turn not in self._early:
                    for hand, heard in self._crew.news():
                        self._hear(hand, heard)
                    self._give_out()
                answer = self._early.pop(self._turn)
                self._held -= _bytes(answer)
                self._turn += 1
                yield answer
        finally:
            self._crew.abandon()

    def _may_begin(self) -> bool:
        return bool(self._queue) and (self._held <= self._buffer or self._queue[0] == self._turn)

    def _give_out(self) -> None:
        while self._may_begin() and (hand := self._crew.idle(len(self._queue))):
            self._give(hand)

    def _give(self, hand: H) -> None:
        hand.job = self._next(hand)
        self._queue.remove(hand.job)
        job = self._jobs[hand.job]
        if job.client is not None:
            hand.met.add(job.client)
        self._crew.give(hand, job)

    def _next(self, hand: H) -> int:
        """The first job for a client that the worker has met, if there is room for its answer, else the first."""
        if hand.met and self._held <= self._buffer:
            return next((n for n in self._queue if self._jobs[n].client in hand.met), self._queue[0])
        return self._queue[0]

    def _hear(self, hand: H, heard: Answer | str) -> None:
        number, hand.job = hand.job, None
        assert number is not None
        if isinstance(heard, str):
            self._lose(number, heard)
            return
        self._held += _bytes(heard)
        if self._may_begin():  # at once: the worker has another place for the next answer
            self._give(hand)
        copied = {group: {k: t.clone() for k, t in payload.items()} for group, payload in heard.payloads.items()}
        self._early[number] = heard._replace(payloads=copied)

    def _lose(self, number: int, how: str) -> None:
        self._deaths[number] += 1
        if self._deaths[number] < LIVES:
            insort(self._queue, number)  # several may have died: the one whose answer is due comes first
        else:
            error = f"the {self._crew.noun} exited {LIVES} times before the job was done ({how})"
            self._early[number] = Answer(
                {"error": error, "traceback": error + "\n", "code": "engine.worker_exited"}, {}
            )


def _bytes(answer: Answer) -> int:
    return sum(t.nbytes for payload in answer.payloads.values() for t in payload.values())
