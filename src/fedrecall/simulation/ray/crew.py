"""The actors of an engine: made when there is work, replaced when they or their nodes die, ended with the engine."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.jobs import Answer, Job
from fedrecall.simulation.ray.actor import VERSIONS, Actor, Cargo
from fedrecall.simulation.ray.arrays import pack_all, view_all
from fedrecall.simulation.scheduler import LIVES, Crew, Hand

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds without a single actor before somebody is told


@dataclass(eq=False)
class ActorHand(Hand):
    """One actor. It has a job only once it has been heard of: in a busy cluster it may wait long for its place."""

    actor: Any
    awaited: Any  # the reference to what it says next: at first its versions


class ActorCrew(Crew[ActorHand]):
    """At most one actor for each GPU of the cluster, or each core if it has none; fewer while there is less to do."""

    noun: ClassVar[str] = "Ray actor"

    def __init__(self, ray: ModuleType, cargo: Cargo, limit: int | None) -> None:
        super().__init__()
        self._ray = ray
        self._limit = limit
        try:
            self._cargo = ray.put(cargo)  # once; each node fetches it when its first actor starts
        except (TypeError, AttributeError) as error:  # whatever pickling says
            why = " ".join(str(error).split()) or type(error).__name__
            what = f"the method and the model cannot be sent to Ray ({why})"
            raise UserError("engine.cannot_pickle", what, "engine.name", "remove what cannot be pickled") from error
        self._stillborn = 0  # actors in a row that never were heard of
        self._board: Any = None  # the reference to what all jobs of the shift read
        self._most = 0  # actors in this shift
        self._since = 0.0  # when somebody was last heard of, or it was said that nobody is

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

    def begin(self, down: Payload) -> None:
        """Hand what goes down to Ray, once for all actors."""
        self._board, self._most, self._since = self._ray.put(pack_all(down)), self.size, time.monotonic()

    def idle(self, waiting: int) -> ActorHand | None:
        """An actor that has nothing to do, if there is one; as many more as are of use are on their way."""
        free = [hand for hand in self._hands if hand.ready and hand.job is None]
        coming = sum(not hand.ready for hand in self._hands)
        for _ in range(min(self._most - len(self._hands), waiting - len(free) - coming)):
            self._hire()
        return free[0] if free else None

    def give(self, hand: ActorHand, job: Job) -> None:
        """Call the actor."""
        luggage = {name: pack_all(payload) for name, payload in job.luggage().items()}
        hand.awaited = hand.actor.do.remote(job.order, self._board, luggage)

    def news(self) -> Iterator[tuple[ActorHand, Answer | str]]:
        """Wait for an actor to answer, to be there or to die, but not for ever."""
        listened = {hand.awaited: hand for hand in self._hands if hand.job is not None or not hand.ready}
        heard, _ = self._ray.wait(list(listened), timeout=PATIENCE)
        if not heard and not any(hand.ready for hand in self._hands) and time.monotonic() - self._since >= PATIENCE:
            log.warning("no core of the Ray cluster is free yet: waiting for one")
            self._since = time.monotonic()
        for hand in map(listened.__getitem__, heard):
            try:
                said = self._ray.get(hand.awaited)
            except self._ray.exceptions.RayError as error:  # the actor or its node is gone, or what it said is
                self._dismiss(hand)
                if hand.ready:
                    yield hand, _why(error)
                else:
                    self._lose_newborn(error)
                continue
            if hand.ready:
                yield hand, Answer(said.message, {name: view_all(arrays) for name, arrays in said.arrays.items()})
            else:
                hand.ready, self._stillborn = True, 0
                _require_same(said)

    def abandon(self) -> None:
        """End those at a job."""
        for hand in self.busy:
            self._dismiss(hand)

    def close(self) -> None:
        """End all actors at once, whatever they are doing."""
        while self._hands:
            self._dismiss(self._hands[-1])

    def _hire(self) -> None:
        gpus = int(self._ray.cluster_resources().get("GPU", 0)) > 0
        place = {"num_cpus": 0, "num_gpus": 1} if gpus else {"num_cpus": 1}
        actor = self._ray.remote(**place, max_restarts=0, scheduling_strategy="SPREAD")(Actor).remote(self._cargo)
        self._hands.append(ActorHand(actor, actor.versions.remote()))

    def _lose_newborn(self, error: Exception) -> None:
        self._stillborn += 1
        if self._stillborn >= LIVES:
            raise UserError(
                "engine.worker_start_failed",
                f"Ray actors cannot start ({_why(error)})",
                "engine.name",
                "install on every node this Python, the packages of this machine and your own modules that the "
                "experiment uses",
            ) from error

    def _dismiss(self, hand: ActorHand) -> None:
        self._hands.remove(hand)
        with suppress(Exception):  # it is dead already, or Ray is
            self._ray.kill(hand.actor)


def _require_same(versions: dict[str, str]) -> None:
    """Results would otherwise depend on where a client runs."""
    for package, version in versions.items():
        if version != (ours := VERSIONS[package]):
            what = f"a Ray node has {package} {version}, but this machine has {ours}"
            raise UserError("engine.version_mismatch", what, package, "install the same version on all machines")


def _why(error: Exception) -> str:
    """Of the many lines with which Ray explains an error, the one that says most, and of that a sentence or two."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    deaths = [line for line in lines if line.startswith("The actor") and "creation task" not in line]
    telling = (deaths or lines)[-1][:200]
    return telling.rpartition(". ")[0] or telling
