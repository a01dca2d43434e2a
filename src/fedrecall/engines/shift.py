"""Who does what when: jobs to idle workers, answers in the order of the jobs, the jobs of the dead to others."""

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from fedrecall.core.types import Payload
from fedrecall.engines.crew import ADVICE, Crew, Hand
from fedrecall.engines.shared import Message, Parcel
from fedrecall.errors import UserError

LIVES = 3  # workers that a job may cost before it is given up


class Job(Protocol):
    """Something for a worker to do: a pure function, so it can be done again."""

    @property
    def order(self) -> Message:
        """What."""
        ...

    @property
    def client(self) -> int | None:
        """For whom: the worker that did the client's last job of the round may have kept what helps with the next."""
        ...

    def luggage(self) -> dict[str, Payload]:
        """What goes along with it to its worker alone; asked for when the job is given out."""
        ...


class Answer(NamedTuple):
    """What came of a job."""

    message: Message
    payloads: dict[str, Payload]


class Shift:
    """The jobs of one exchange."""

    def __init__(self, crew: Crew, jobs: Sequence[Job], board: Parcel, buffer: int) -> None:
        """All jobs read the board. Beyond `buffer` bytes of answers that wait for their turn, no job is begun."""
        self._crew, self._jobs, self._board, self._buffer = crew, jobs, board, buffer
        self._queue = deque(range(len(jobs)))
        self._turn = 0  # whose answer is due
        self._early: dict[int, Answer] = {}  # answers whose turn has not come
        self._held = 0  # their bytes
        self._deaths = Counter[int]()

    def answers(self) -> Iterator[Answer]:
        """The answers in the order of the jobs, which are also begun in it."""
        if self._crew.busy:
            raise RuntimeError("one exchange at a time: take all replies of the first, or close it, before the next")
        try:
            while self._turn < len(self._jobs):
                self._give_out()
                while self._turn not in self._early:
                    for hand in self._crew.speaking():
                        self._hear(hand)
                    self._give_out()
                answer = self._early.pop(self._turn)
                self._held -= _bytes(answer)
                self._turn += 1
                yield answer
        finally:
            if self._crew.busy:  # nobody waits for their answers
                self._crew.close()

    def _may_begin(self) -> bool:
        return bool(self._queue) and (self._held <= self._buffer or self._queue[0] == self._turn)

    def _give_out(self) -> None:
        while self._may_begin() and (hand := self._crew.idle()):
            self._give(hand)

    def _give(self, hand: Hand) -> None:
        hand.job = self._next(hand)
        self._queue.remove(hand.job)
        job = self._jobs[hand.job]
        if job.client is not None:
            hand.met.add(job.client)
        luggage = job.luggage()
        with suppress(ConnectionError):  # a dead worker is found out when it is listened to
            hand.channel.send(job.order, self._board, *([hand.inbox.put(luggage)] if luggage else []))

    def _next(self, hand: Hand) -> int:
        """The first job for a client that the worker has met, if there is room for its answer, else the first."""
        if hand.met and self._held <= self._buffer:
            return next((n for n in self._queue if self._jobs[n].client in hand.met), self._queue[0])
        return self._queue[0]

    def _hear(self, hand: Hand) -> None:
        number = hand.job
        assert number is not None
        try:
            answer = Answer(*hand.channel.receive())
        except (EOFError, ConnectionError):
            self._lose(hand, number)
            return
        if not hand.ready:
            hand.ready = True
            return
        hand.job = None
        self._held += _bytes(answer)
        if self._may_begin():  # at once: the worker has another place for the next answer
            self._give(hand)
        copied = {group: {k: t.clone() for k, t in payload.items()} for group, payload in answer.payloads.items()}
        self._early[number] = answer._replace(payloads=copied)

    def _lose(self, hand: Hand, number: int) -> None:
        how = self._crew.bury(hand)
        if not hand.ready:
            raise UserError(f"a worker process could not start ({how}; what it said is above): {ADVICE}")
        self._deaths[number] += 1
        if self._deaths[number] < LIVES:
            insort(self._queue, number)  # several may have died: the one whose answer is due comes first
        else:
            error = f"its worker process died {LIVES} times; {how}"
            self._early[number] = Answer({"error": error, "traceback": error + "\n"}, {})


def _bytes(answer: Answer) -> int:
    return sum(t.nbytes for payload in answer.payloads.values() for t in payload.values())
