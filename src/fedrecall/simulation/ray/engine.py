"""Engine for a cluster: Ray actors on any number of machines run the jobs."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.failures import FailurePolicy
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.jobs import Job, JobResult
from fedrecall.simulation.pool import REPLY_BUFFER_BYTES, WorkerEngine
from fedrecall.simulation.ray.actor import VERSIONS, Actor, ActorArgs, make_actor_args, pack_payload, view_payload
from fedrecall.simulation.ray.session import open_session
from fedrecall.simulation.scheduler import MAX_ATTEMPTS, Worker, WorkerPool

log = logging.getLogger(__name__)

NO_ACTOR_WARNING_SECONDS = 30.0  # seconds without any actor before a warning


@dataclass(eq=False)
class ActorWorker(Worker):
    """One actor. It gets a job only after its first message: in a busy cluster it may wait long for a core."""

    actor: Any
    pending: Any  # reference to its next message: at first its versions


class ActorPool(WorkerPool[ActorWorker]):
    """At most one actor per GPU of the cluster, or per core if it has no GPUs; started when needed."""

    worker_kind: ClassVar[str] = "Ray actor"

    def __init__(self, ray: ModuleType, args: ActorArgs, limit: int | None) -> None:
        super().__init__()
        self._device = args.device
        self._ray = ray
        self._limit = limit
        try:
            self._args = ray.put(args)  # once; each node fetches it when its first actor starts
        except (TypeError, AttributeError) as error:  # raised by pickling
            why = " ".join(str(error).split()) or type(error).__name__
            what = f"the method and the model cannot be sent to Ray ({why})"
            raise UserError("engine.cannot_pickle", what, "engine.name", "remove what cannot be pickled") from error
        self._failed_starts = 0  # consecutive actors that failed to start
        self._broadcast_ref: Any = None  # reference to the payload that all jobs of the exchange read
        self._max_actors = 0  # in this exchange
        self._last_contact = 0.0  # time of the last message or warning

    @property
    def size(self) -> int:
        """Largest number of actors at present: nodes join and leave."""
        resources = self._ray.cluster_resources()
        units = self._gpus or int(resources.get("CPU", 0))
        if not units:
            raise UserError(
                "engine.ray_no_resources",
                "the Ray cluster has no core to run clients on",
                "ray.address",
                "start a node with ray start --address=...",
            )
        return min(units, self._limit or units)

    @property
    def _gpus(self) -> int:
        """Number of GPUs of the cluster that the run may use."""
        return 0 if self._device == "cpu" else int(self._ray.cluster_resources().get("GPU", 0))

    def broadcast(self, down: Payload) -> None:
        """Put the payload into Ray, once for all actors."""
        self._broadcast_ref = self._ray.put(pack_payload(down))
        self._max_actors, self._last_contact = self.size, time.monotonic()

    def available_worker(self, waiting: int) -> ActorWorker | None:
        """Return an actor without a job, or None; start further actors for the waiting jobs."""
        free = [worker for worker in self._workers if worker.ready and not worker.jobs]
        starting = sum(not worker.ready for worker in self._workers)
        for _ in range(min(self._max_actors - len(self._workers), waiting - len(free) - starting)):
            self._start_actor()
        return free[0] if free else None

    def submit(self, worker: ActorWorker, job: Job) -> None:
        """Call the actor."""
        payloads = {name: pack_payload(payload) for name, payload in job.client_payloads().items()}
        worker.pending = worker.actor.run_job.remote(job.message, self._broadcast_ref, payloads)

    def wait(self) -> Iterator[tuple[ActorWorker, JobResult | str]]:
        """Wait for results, starts and exits of actors, up to `NO_ACTOR_WARNING_SECONDS`."""
        pending = {worker.pending: worker for worker in self._workers if worker.jobs or not worker.ready}
        done, _ = self._ray.wait(list(pending), timeout=NO_ACTOR_WARNING_SECONDS)
        if (
            not done
            and not any(worker.ready for worker in self._workers)
            and time.monotonic() - self._last_contact >= NO_ACTOR_WARNING_SECONDS
        ):
            log.warning("no core of the Ray cluster is free yet: waiting for one")
            self._last_contact = time.monotonic()
        for worker in map(pending.__getitem__, done):
            try:
                result = self._ray.get(worker.pending)
            except self._ray.exceptions.RayError as error:  # the actor, its node or its result is lost
                self._kill(worker)
                if worker.ready:
                    yield worker, _short_reason(error)
                else:
                    self._count_failed_start(error)
                continue
            if worker.ready:
                yield (
                    worker,
                    JobResult(result.message, {name: view_payload(arrays) for name, arrays in result.arrays.items()}),
                )
            else:
                worker.ready, self._failed_starts = True, 0
                _check_versions(result)

    def cancel_running(self) -> None:
        """Stop all actors that run a job."""
        for worker in self.busy:
            self._kill(worker)

    def close(self) -> None:
        """Stop all actors at once."""
        while self._workers:
            self._kill(self._workers[-1])

    def _start_actor(self) -> None:
        resources = {"num_cpus": 0, "num_gpus": 1} if self._gpus else {"num_cpus": 1}
        actor = self._ray.remote(**resources, max_restarts=0, scheduling_strategy="SPREAD")(Actor).remote(self._args)
        self._workers.append(ActorWorker(actor, actor.versions.remote()))

    def _count_failed_start(self, error: Exception) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MAX_ATTEMPTS:
            raise UserError(
                "engine.worker_start_failed",
                f"Ray actors cannot start ({_short_reason(error)})",
                "engine.name",
                "install on every node this Python, the packages of this machine and your own modules that the "
                "experiment uses",
            ) from error

    def _kill(self, worker: ActorWorker) -> None:
        self._workers.remove(worker)
        with suppress(Exception):  # the actor or Ray has exited already
            self._ray.kill(worker.actor)


def _check_versions(versions: dict[str, str]) -> None:
    """Require the same versions on all nodes: results would otherwise depend on the node of a client."""
    for package, version in versions.items():
        if version != (ours := VERSIONS[package]):
            what = f"a Ray node has {package} {version}, but this machine has {ours}"
            raise UserError("engine.version_mismatch", what, package, "install the same version on all machines")


def _short_reason(error: Exception) -> str:
    """Return the most informative line of a Ray error, at most 200 characters."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    exits = [line for line in lines if line.startswith("The actor") and "creation task" not in line]
    line = (exits or lines)[-1][:200]
    return line.rpartition(". ")[0] or line


class RayEngine(WorkerEngine[ActorWorker]):
    """Engine that runs clients in Ray actors, which start with the first task."""

    def __init__(
        self,
        clients: SimulatedClients,
        f: FlatModel,
        failures: FailurePolicy | None = None,
        client_state: ClientStateStore | None = None,
        *,
        address: str | None = None,
        workers: int | None = None,
        device: str = "auto",
        buffer: int = REPLY_BUFFER_BYTES,
    ) -> None:
        """Connect to the cluster at `address`, or start Ray on this machine; use at most `workers` actors."""
        self._session = open_session(address, workers)
        try:
            pool = ActorPool(self._session.ray, make_actor_args(clients, f, device), workers)
        except BaseException:
            self._session.close()
            raise
        super().__init__(clients, pool, failures, client_state, buffer)

    def close(self) -> None:
        """Stop the actors at once, disconnect from Ray, and release what is held outside the memory of this process."""
        super().close()
        self._session.close()
