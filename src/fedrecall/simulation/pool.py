"""Default engine: worker processes with one thread each. It gives the bits of `serial` for any number of workers."""

from collections.abc import Iterator, Sequence
from typing import Generic

import torch
from torch import Tensor

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.engine import SampledCohort, TaskEngine
from fedrecall.core.exchange import Diverged
from fedrecall.core.failures import CLIENT_FAILED, FailurePolicy, FailureTracker, RemoteTraceback
from fedrecall.core.flat_model import FlatModel, eval_slices
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.devices import default_workers
from fedrecall.simulation.jobs import Job, JobResult, ScoreJob, TaskJob
from fedrecall.simulation.processes import ProcessPool, ProcessWorker, StartMethod
from fedrecall.simulation.scheduler import Scheduler, W, WorkerPool

REPLY_BUFFER_BYTES = 256 * 2**20  # limit of buffered out-of-order replies; above it no further client starts

EVAL_JOBS_PER_WORKER = 8  # jobs per worker in an evaluation: enough to balance workers of different speed


class WorkerEngine(TaskEngine, Generic[W]):
    """Base of the engines that run tasks on a pool of workers."""

    def __init__(
        self,
        clients: SimulatedClients,
        workers: WorkerPool[W],
        failures: FailurePolicy | None,
        client_state: ClientStateStore | None,
        buffer: int,
    ) -> None:
        self.clients = clients
        self.workers = workers
        self.failures = failures or FailurePolicy()
        self.client_state = ClientStateStore() if client_state is None else client_state
        self._buffer = buffer

    @property
    def population(self) -> int:
        """Number of all clients."""
        return len(self.clients.partition)

    def cohort(self, t: int, clients: Sequence[int]) -> SampledCohort:
        """Return the cohort of round t, largest client first."""
        self.workers.new_round()
        return super().cohort(t, self.clients.largest_first(clients))

    def run_task(self, t: int, clients: Sequence[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task of round t on these clients. Replies come in the order of the clients."""
        failures = FailureTracker(self.failures, t, len(clients))
        jobs = [TaskJob(task, client, t, self.client_state) for client in clients]
        for client, (message, payloads) in zip(clients, self._results(jobs, down), strict=True):
            if "error" in message:
                cause = RemoteTraceback(message["traceback"])
                failures.record(client, message["error"], message["traceback"], cause=cause, code=message["code"])
                continue
            yield Reply(payloads["up"], message["n"], payloads["memory"], payloads["report"], client)

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the test set, in the slices and the order of `FlatModel.score`."""
        predicted, loss, kept = list[Tensor](), 0.0, list[Tensor]()
        ranges = [[rows.start, rows.stop] for rows in eval_slices(len(self.clients.test))]
        per_job = -(-len(ranges) // (EVAL_JOBS_PER_WORKER * self.workers.size))
        jobs = [ScoreJob(ranges[i : i + per_job], logits) for i in range(0, len(ranges), per_job)]
        for message, payloads in self._results(jobs, {"state": state}):
            if "error" in message:
                what = f"the global model cannot be evaluated: {message['error']}"
                code = "engine.evaluation_failed" if message["code"] == CLIENT_FAILED else message["code"]
                raise UserError(code, what) from RemoteTraceback(message["traceback"])
            predicted.append(payloads["score"]["predicted"])
            for slice_loss in message["losses"]:  # one by one: `FlatModel.score` adds them in this order
                loss += slice_loss
            if logits:
                kept.append(payloads["score"]["z"])
        return Score(torch.cat(predicted), self.clients.test.y, loss, torch.cat(kept) if logits else None)

    def _results(self, jobs: Sequence[Job], down: Payload) -> Iterator[JobResult]:
        for result in Scheduler(self.workers, jobs, self._buffer).results(down):
            if "user_error" in result.message:
                kind = Diverged if result.message["kind"] == Diverged.__name__ else UserError
                raise kind(*result.message["user_error"])
            yield result

    def close(self) -> None:
        """Stop the workers at once, and release what the engine holds outside the memory of this process."""
        self.workers.close()
        super().close()


class PoolEngine(WorkerEngine[ProcessWorker]):
    """Engine that runs clients in worker processes, which start with the first task."""

    def __init__(
        self,
        clients: SimulatedClients,
        f: FlatModel,
        failures: FailurePolicy | None = None,
        client_state: ClientStateStore | None = None,
        *,
        workers: int | None = None,
        start: StartMethod | None = None,
        timeout: float | None = None,
        device: str = "auto",
        buffer: int = REPLY_BUFFER_BYTES,
    ) -> None:
        """Configure the pool. `workers` defaults to `default_workers`, `start` to `default_start_method`.

        `device` is engine.device. A worker without a result after `timeout` seconds is replaced.
        """
        pool = ProcessPool(clients, f, workers or default_workers(device), start, timeout, device)
        super().__init__(clients, pool, failures, client_state, buffer)
