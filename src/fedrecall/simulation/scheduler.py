"""Schedules jobs on workers.

Results are returned in job order; the job of a worker that exited is retried on another one.
"""

from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from fedrecall.core.types import Payload, payload_bytes
from fedrecall.simulation.jobs import Job, JobResult

MAX_ATTEMPTS = 3  # workers that may exit during one job before the job fails


@dataclass(eq=False, kw_only=True)
class Worker:
    """One worker, as the scheduler sees it."""

    ready: bool = False  # it has sent its first message
    jobs: deque[int] = field(default_factory=deque)  # numbers of the running job, and of those that follow it
    served_clients: set[int] = field(default_factory=set)  # clients of this round that it has run a task of


W = TypeVar("W", bound=Worker)


class WorkerPool(ABC, Generic[W]):
    """The workers of an engine: started when there are jobs, replaced when they exit, stopped with the engine."""

    worker_kind: ClassVar[str]  # noun for messages

    def __init__(self) -> None:
        self._workers: list[W] = []

    @property
    def busy(self) -> list[W]:
        """Workers that run a job."""
        return [worker for worker in self._workers if worker.jobs]

    def new_round(self) -> None:
        """Clear the record of served clients."""
        for worker in self._workers:
            worker.served_clients.clear()

    @property
    @abstractmethod
    def size(self) -> int:
        """Largest number of workers at present."""

    @abstractmethod
    def broadcast(self, down: Payload) -> None:
        """Make a payload available to all jobs that are submitted from now on."""

    def can_take(self, worker: W, waiting: int) -> bool:
        """Return True if a worker can get one of the `waiting` jobs."""
        return not worker.jobs

    @abstractmethod
    def available_worker(self, waiting: int) -> W | None:
        """Return a worker that can get a job, a new one if needed, or None. `waiting` jobs are queued."""

    @abstractmethod
    def submit(self, worker: W, job: Job) -> None:
        """Send a job to a worker. If the worker has exited, `wait` reports it."""

    @abstractmethod
    def wait(self) -> Iterator[tuple[W, JobResult | str]]:
        """Wait for messages; yield results of jobs, or the reason of exit of workers, which leave the pool.

        The tensors of a result are views, valid until the worker's next result.
        """

    @abstractmethod
    def cancel_running(self) -> None:
        """Stop all workers that run a job; their results are not needed."""

    @abstractmethod
    def close(self) -> None:
        """Stop all workers at once."""


class Scheduler(Generic[W]):
    """The jobs of one exchange."""

    def __init__(self, pool: WorkerPool[W], jobs: Sequence[Job], buffer: int) -> None:
        """Queue the jobs. While out-of-order results exceed `buffer` bytes, no job starts."""
        self._pool, self._jobs, self._buffer = pool, jobs, buffer
        self._queue = deque(range(len(jobs)))
        self._next_result = 0  # number of the job whose result is returned next
        self._out_of_order: dict[int, JobResult] = {}
        self._buffered_bytes = 0  # size of the out-of-order results
        self._lost_workers = Counter[int]()

    def results(self, down: Payload) -> Iterator[JobResult]:
        """Run all jobs with this broadcast payload; yield their results in job order. Jobs also start in it."""
        if self._pool.busy:
            raise RuntimeError("another exchange is running: read all its replies, or close it, before the next")
        self._pool.broadcast(down)
        try:
            while self._next_result < len(self._jobs):
                self._submit_all()
                while self._next_result not in self._out_of_order:
                    for worker, result in self._pool.wait():
                        self._on_result(worker, result)
                    self._submit_all()
                result = self._out_of_order.pop(self._next_result)
                self._buffered_bytes -= _size(result)
                self._next_result += 1
                yield result
        finally:
            self._pool.cancel_running()

    def _can_submit(self) -> bool:
        return bool(self._queue) and (self._buffered_bytes <= self._buffer or self._queue[0] == self._next_result)

    def _submit_all(self) -> None:
        while self._can_submit() and (worker := self._pool.available_worker(len(self._queue))):
            self._submit(worker)

    def _submit(self, worker: W) -> None:
        number = self._pick_job(worker)
        self._queue.remove(number)
        job = self._jobs[number]
        if job.client is not None:
            worker.served_clients.add(job.client)
        self._pool.submit(worker, job)
        worker.jobs.append(number)

    def _pick_job(self, worker: W) -> int:
        """Return the first job of a client that the worker has cached data of, else the first job.

        While the buffer is full only the first job may start.
        """
        if worker.served_clients and self._buffered_bytes <= self._buffer:
            return next((n for n in self._queue if self._jobs[n].client in worker.served_clients), self._queue[0])
        return self._queue[0]

    def _on_result(self, worker: W, result: JobResult | str) -> None:
        number = worker.jobs.popleft()
        if isinstance(result, str):
            self._on_worker_lost(number, result)
            for following in worker.jobs:  # not started
                insort(self._queue, following)
            return
        self._buffered_bytes += _size(result)
        if self._can_submit() and self._pool.can_take(worker, len(self._queue)):
            self._submit(worker)  # before the copy: the worker writes its next results to other buffers
        copies = {group: {k: t.clone() for k, t in payload.items()} for group, payload in result.payloads.items()}
        self._out_of_order[number] = result._replace(payloads=copies)

    def _on_worker_lost(self, number: int, reason: str) -> None:
        self._lost_workers[number] += 1
        if self._lost_workers[number] < MAX_ATTEMPTS:
            insort(self._queue, number)  # several workers may have exited: the earliest job is retried first
        else:
            error = f"the {self._pool.worker_kind} exited {MAX_ATTEMPTS} times before the job was done ({reason})"
            message = {"error": error, "traceback": error + "\n", "code": "engine.worker_exited"}
            self._out_of_order[number] = JobResult(message, {})


def _size(result: JobResult) -> int:
    return sum(map(payload_bytes, result.payloads.values()))
