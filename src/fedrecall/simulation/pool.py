"""The default engine: worker processes with one thread each. The same bits as `serial`, for any number of workers."""

from collections.abc import Iterator, Sequence
from typing import Generic, Self

import torch
from torch import Tensor

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.exchange import Diverged
from fedrecall.core.failures import CLIENT_FAILED, FailurePolicy, FailureTracker, RemoteTraceback
from fedrecall.core.flat_model import FlatModel, eval_slices
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.jobs import Job, JobResult, ScoreJob, TaskJob
from fedrecall.simulation.processes import ProcessPool, ProcessWorker, StartMethod, available_cores
from fedrecall.simulation.scheduler import H, Scheduler, WorkerPool
from fedrecall.simulation.serial import SimulatedCohort

REPLY_BUFFER_BYTES = 256 * 2**20  # bytes of replies kept for their turn before no further client is begun

EVAL_JOBS_PER_WORKER = 8  # jobs for each worker in an evaluation: enough to even out their pace


class WorkerEngine(Generic[H]):
    """All clients of a run, and what each remembers. The same bits as `serial`, for any number of workers."""

    def __init__(
        self,
        world: SimulatedClients,
        crew: WorkerPool[H],
        faults: FailurePolicy | None,
        memories: ClientStateStore | None,
        buffer: int,
    ) -> None:
        self.clients = world
        self.workers = crew
        self.faults = faults or FailurePolicy()
        self.client_state = ClientStateStore() if memories is None else memories
        self._buffer = buffer

    def cohort(self, t: int, clients: Sequence[int]) -> SimulatedCohort:
        """These clients, for round t."""
        self.workers.new_round()
        return SimulatedCohort(self, t, self.clients.largest_first(clients))

    def run_task(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on each."""
        attendance = FailureTracker(self.faults, t, len(clients))
        jobs = [TaskJob(task, client, t, self.client_state) for client in clients]
        for client, (said, payloads) in zip(clients, self._results(jobs, down), strict=True):
            if "error" in said:
                cause = RemoteTraceback(said["traceback"])
                attendance.record(client, said["error"], said["traceback"], cause=cause, code=said["code"])
                continue
            yield Reply(payloads["up"], said["n"], payloads["memory"], payloads["report"], client)

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set, in the chunks and the order of `Flat.score`."""
        predicted, loss = list[Tensor](), 0.0
        ranges = [[rows.start, rows.stop] for rows in eval_slices(len(self.clients.test))]
        several = -(-len(ranges) // (EVAL_JOBS_PER_WORKER * self.workers.size))
        jobs = [ScoreJob(ranges[i : i + several]) for i in range(0, len(ranges), several)]
        for said, payloads in self._results(jobs, {"state": state}):
            if "error" in said:
                what = f"the global model cannot be evaluated: {said['error']}"
                code = "engine.evaluation_failed" if said["code"] == CLIENT_FAILED else said["code"]
                raise UserError(code, what) from RemoteTraceback(said["traceback"])
            predicted.append(payloads["said"]["predicted"])
            for lost in said["losses"]:  # one by one, as `Flat.score` adds them
                loss += lost
        return Score(torch.cat(predicted), self.clients.test.y, loss)

    def _results(self, jobs: Sequence[Job], down: Payload) -> Iterator[JobResult]:
        for answer in Scheduler(self.workers, jobs, self._buffer).results(down):
            if "refused" in answer.message:
                kind = Diverged if answer.message["kind"] == Diverged.__name__ else UserError
                raise kind(*answer.message["refused"])
            yield answer

    def close(self) -> None:
        """End the workers at once, and give back what the engine holds outside this process's memory."""
        self.workers.close()
        self.client_state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PoolEngine(WorkerEngine[ProcessWorker]):
    """All clients of a run, and what each remembers; the workers start when there is something to do."""

    def __init__(
        self,
        world: SimulatedClients,
        f: FlatModel,
        faults: FailurePolicy | None = None,
        memories: ClientStateStore | None = None,
        *,
        workers: int | None = None,
        start: StartMethod | None = None,
        buffer: int = REPLY_BUFFER_BYTES,
    ) -> None:
        """`workers` defaults to the cores there are, `start` to what is best on this system."""
        super().__init__(world, ProcessPool(world, f, workers or available_cores(), start), faults, memories, buffer)
