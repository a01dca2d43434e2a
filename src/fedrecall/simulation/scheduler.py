"""Who does what when: jobs to idle workers, answers in the order of the jobs, the jobs of the dead to others."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from fedrecall.core.types import Payload
from fedrecall.simulation.jobs import Job, JobResult

MAX_ATTEMPTS = 3  # workers that a job may cost before it is given up


@dataclass(eq=False, kw_only=True)
class Worker:
    """One worker, as the engine sees it."""

    ready: bool = False  # it has been heard of
    job: int | None = None  # what it is at
    served_clients: set[int] = field(default_factory=set)  # clients of the round that it has served before


H = TypeVar("H", bound=Worker)


class WorkerPool(ABC, Generic[H]):
    """The workers of an engine: hired when there is work, replaced when they die, ended with the engine."""

    worker_kind: ClassVar[str]  # what one of them is

    def __init__(self) -> None:
        self._workers: list[H] = []

    @property
    def busy(self) -> list[H]:
        """Those at a job."""
        return [hand for hand in self._workers if hand.job is not None]

    def new_round(self) -> None:
        """Nobody has met any of the clients."""
        for hand in self._workers:
            hand.served_clients.clear()

    @property
    @abstractmethod
    def size(self) -> int:
        """How many there may be now."""

    @abstractmethod
    def broadcast(self, down: Payload) -> None:
        """A shift begins; this goes down to whoever has a job in it."""

    @abstractmethod
    def idle_worker(self, waiting: int) -> H | None:
        """One that has nothing to do, new if need be; None if there is none yet. So many jobs wait."""

    @abstractmethod
    def submit(self, hand: H, job: Job) -> None:
        """Send somebody to work. Its death is heard of, not raised."""

    @abstractmethod
    def wait(self) -> Iterator[tuple[H, JobResult | str]]:
        """Wait for something to happen; those that have answered, or how they died, in which case they are gone.

        The tensors of an answer are views, good until the worker's next answer.
        """

    @abstractmethod
    def cancel_running(self) -> None:
        """End those at a job: nobody waits for their answers."""

    @abstractmethod
    def close(self) -> None:
        """End all at once, whatever they are doing."""


class Scheduler(Generic[H]):
    """The jobs of one exchange."""

    def __init__(self, crew: WorkerPool[H], jobs: Sequence[Job], buffer: int) -> None:
        """Beyond `buffer` bytes of answers that wait for their turn, no job is begun."""
        self._crew, self._jobs, self._buffer = crew, jobs, buffer
        self._queue = deque(range(len(jobs)))
        self._next_result = 0  # whose answer is due
        self._out_of_order: dict[int, JobResult] = {}  # answers whose turn has not come
        self._buffered_bytes = 0  # their bytes
        self._lost_workers = Counter[int]()

    def results(self, down: Payload) -> Iterator[JobResult]:
        """The answers in the order of the jobs, which are also begun in it; all of them read what goes down."""
        if self._crew.busy:
            raise RuntimeError("another exchange is running: read all its replies, or close it, before the next")
        self._crew.broadcast(down)
        try:
            while self._next_result < len(self._jobs):
                self._submit_all()
                while self._next_result not in self._out_of_order:
                    for hand, heard in self._crew.wait():
                        self._on_result(hand, heard)
                    self._submit_all()
                answer = self._out_of_order.pop(self._next_result)
                self._buffered_bytes -= _bytes(answer)
                self._next_result += 1
                yield answer
        finally:
            self._crew.cancel_running()

    def _can_submit(self) -> bool:
        return bool(self._queue) and (self._buffered_bytes <= self._buffer or self._queue[0] == self._next_result)

    def _submit_all(self) -> None:
        while self._can_submit() and (hand := self._crew.idle_worker(len(self._queue))):
            self._submit(hand)

    def _submit(self, hand: H) -> None:
        hand.job = self._pick_job(hand)
        self._queue.remove(hand.job)
        job = self._jobs[hand.job]
        if job.client is not None:
            hand.served_clients.add(job.client)
        self._crew.submit(hand, job)

    def _pick_job(self, hand: H) -> int:
        """The first job for a client that the worker has met, if there is room for its answer, else the first."""
        if hand.served_clients and self._buffered_bytes <= self._buffer:
            return next((n for n in self._queue if self._jobs[n].client in hand.served_clients), self._queue[0])
        return self._queue[0]

    def _on_result(self, hand: H, heard: JobResult | str) -> None:
        number, hand.job = hand.job, None
        assert number is not None
        if isinstance(heard, str):
            self._on_worker_lost(number, heard)
            return
        self._buffered_bytes += _bytes(heard)
        if self._can_submit():  # at once: the worker has another place for the next answer
            self._submit(hand)
        copied = {group: {k: t.clone() for k, t in payload.items()} for group, payload in heard.payloads.items()}
        self._out_of_order[number] = heard._replace(payloads=copied)

    def _on_worker_lost(self, number: int, how: str) -> None:
        self._lost_workers[number] += 1
        if self._lost_workers[number] < MAX_ATTEMPTS:
            insort(self._queue, number)  # several may have died: the one whose answer is due comes first
        else:
            error = f"the {self._crew.worker_kind} exited {MAX_ATTEMPTS} times before the job was done ({how})"
            self._out_of_order[number] = JobResult(
                {"error": error, "traceback": error + "\n", "code": "engine.worker_exited"}, {}
            )


def _bytes(answer: JobResult) -> int:
    return sum(t.nbytes for payload in answer.payloads.values() for t in payload.values())
