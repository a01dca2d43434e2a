"""The engine for a cluster: the same tasks as on `pool`, performed by Ray actors on any number of machines."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from fedrecall.core.client_state import ClientStateStore
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

NO_ACTOR_WARNING_SECONDS = 30.0  # seconds without a single actor before somebody is told


@dataclass(eq=False)
class ActorWorker(Worker):
    """One actor. It has a job only once it has been heard of: in a busy cluster it may wait long for its place."""

    actor: Any
    pending: Any  # the reference to what it says next: at first its versions


class ActorPool(WorkerPool[ActorWorker]):
    """At most one actor for each GPU of the cluster, or each core if it has none; fewer while there is less to do."""

    worker_kind: ClassVar[str] = "Ray actor"

    def __init__(self, ray: ModuleType, cargo: ActorArgs, limit: int | None) -> None:
        super().__init__()
        self._ray = ray
        self._limit = limit
        try:
            self._cargo = ray.put(cargo)  # once; each node fetches it when its first actor starts
        except (TypeError, AttributeError) as error:  # whatever pickling says
            why = " ".join(str(error).split()) or type(error).__name__
            what = f"the method and the model cannot be sent to Ray ({why})"
            raise UserError("engine.cannot_pickle", what, "engine.name", "remove what cannot be pickled") from error
        self._failed_starts = 0  # actors in a row that never were heard of
        self._board: Any = None  # the reference to what all jobs of the shift read
        self._max_actors = 0  # actors in this shift
        self._last_contact = 0.0  # when somebody was last heard of, or it was said that nobody is

    @property
    def size(self) -> int:
        """How many actors there may be now: nodes come and go."""
        there = self._ray.cluster_resources()
        units = int(there.get("GPU", 0)) or int(there.get("CPU", 0))
        if not units:
            raise UserError(
                "engine.ray_no_resources",
                "the Ray cluster has no core to run clients on",
                "ray.address",
                "start a node with ray start --address=...",
            )
        return min(units, self._limit or units)

    def broadcast(self, down: Payload) -> None:
        """Hand what goes down to Ray, once for all actors."""
        self._board, self._max_actors, self._last_contact = (
            self._ray.put(pack_payload(down)),
            self.size,
            time.monotonic(),
        )

    def idle_worker(self, waiting: int) -> ActorWorker | None:
        """An actor that has nothing to do, if there is one; as many more as are of use are on their way."""
        free = [hand for hand in self._workers if hand.ready and hand.job is None]
        coming = sum(not hand.ready for hand in self._workers)
        for _ in range(min(self._max_actors - len(self._workers), waiting - len(free) - coming)):
            self._start_actor()
        return free[0] if free else None

    def submit(self, hand: ActorWorker, job: Job) -> None:
        """Call the actor."""
        luggage = {name: pack_payload(payload) for name, payload in job.client_payloads().items()}
        hand.pending = hand.actor.run_job.remote(job.message, self._board, luggage)

    def wait(self) -> Iterator[tuple[ActorWorker, JobResult | str]]:
        """Wait for an actor to answer, to be there or to die, but not for ever."""
        listened = {hand.pending: hand for hand in self._workers if hand.job is not None or not hand.ready}
        heard, _ = self._ray.wait(list(listened), timeout=NO_ACTOR_WARNING_SECONDS)
        if (
            not heard
            and not any(hand.ready for hand in self._workers)
            and time.monotonic() - self._last_contact >= NO_ACTOR_WARNING_SECONDS
        ):
            log.warning("no core of the Ray cluster is free yet: waiting for one")
            self._last_contact = time.monotonic()
        for hand in map(listened.__getitem__, heard):
            try:
                said = self._ray.get(hand.pending)
            except self._ray.exceptions.RayError as error:  # the actor or its node is gone, or what it said is
                self._kill(hand)
                if hand.ready:
                    yield hand, _short_reason(error)
                else:
                    self._count_failed_start(error)
                continue
            if hand.ready:
                yield (
                    hand,
                    JobResult(said.message, {name: view_payload(arrays) for name, arrays in said.arrays.items()}),
                )
            else:
                hand.ready, self._failed_starts = True, 0
                _check_versions(said)

    def cancel_running(self) -> None:
        """End those at a job."""
        for hand in self.busy:
            self._kill(hand)

    def close(self) -> None:
        """End all actors at once, whatever they are doing."""
        while self._workers:
            self._kill(self._workers[-1])

    def _start_actor(self) -> None:
        gpus = int(self._ray.cluster_resources().get("GPU", 0)) > 0
        place = {"num_cpus": 0, "num_gpus": 1} if gpus else {"num_cpus": 1}
        actor = self._ray.remote(**place, max_restarts=0, scheduling_strategy="SPREAD")(Actor).remote(self._cargo)
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

    def _kill(self, hand: ActorWorker) -> None:
        self._workers.remove(hand)
        with suppress(Exception):  # it is dead already, or Ray is
            self._ray.kill(hand.actor)


def _check_versions(versions: dict[str, str]) -> None:
    """Results would otherwise depend on where a client runs."""
    for package, version in versions.items():
        if version != (ours := VERSIONS[package]):
            what = f"a Ray node has {package} {version}, but this machine has {ours}"
            raise UserError("engine.version_mismatch", what, package, "install the same version on all machines")


def _short_reason(error: Exception) -> str:
    """Of the many lines with which Ray explains an error, the one that says most, and of that a sentence or two."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    deaths = [line for line in lines if line.startswith("The actor") and "creation task" not in line]
    telling = (deaths or lines)[-1][:200]
    return telling.rpartition(". ")[0] or telling


class RayEngine(WorkerEngine[ActorWorker]):
    """All clients of a run, and what each remembers; the actors start when there is something to do."""

    def __init__(
        self,
        world: SimulatedClients,
        f: FlatModel,
        faults: FailurePolicy | None = None,
        memories: ClientStateStore | None = None,
        *,
        address: str | None = None,
        workers: int | None = None,
        buffer: int = REPLY_BUFFER_BYTES,
    ) -> None:
        """Connect to the cluster at `address`, or start a Ray of one's own; at most `workers` actors."""
        self._session = open_session(address, workers)
        try:
            crew = ActorPool(self._session.ray, make_actor_args(world, f), workers)
        except BaseException:
            self._session.close()
            raise
        super().__init__(world, crew, faults, memories, buffer)

    def close(self) -> None:
        """End the actors at once, leave Ray, and give back what the engine holds outside this process's memory."""
        super().close()
        self._session.close()
