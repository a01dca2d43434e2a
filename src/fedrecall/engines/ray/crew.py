"""The actors of an engine: made when there is work, replaced when they or their nodes die, ended with the engine."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from types import ModuleType
from typing import Any

from fedrecall.engines.ray.actor import VERSIONS, Actor, Answer, Cargo
from fedrecall.engines.shift import LIVES
from fedrecall.errors import UserError

log = logging.getLogger(__name__)

Job = Callable[[Any], Any]  # what an actor is asked for, as a reference to its answer; may be asked again of another
PATIENCE = 30.0  # seconds without a single actor before somebody is told


@dataclass(eq=False)
class Hand:
    """One actor, as the engine sees it."""

    actor: Any
    awaited: Any  # the reference to what it says next: at first its versions
    ready: bool = False  # it has been heard of
    job: int | None = None  # what it is at


class Crew:
    """At most one actor for each GPU of the cluster, or each core if it has none; fewer as long as there is less to do.

    An actor has a job only once it has been heard of: where others use the cluster, one may wait long for its place.
    """

    def __init__(self, ray: ModuleType, cargo: Cargo, limit: int | None) -> None:
        self._ray = ray
        self._limit = limit
        try:
            self._cargo = ray.put(cargo)  # once; each node fetches it when its first actor starts
        except (TypeError, AttributeError) as error:  # whatever pickling says
            why = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"the method and the model cannot be sent to Ray ({why})") from error
        self._hands: list[Hand] = []
        self._stillborn = 0  # actors in a row that never were heard of
        self._since = 0.0  # when somebody was last heard of

    @property
    def size(self) -> int:
        """How many actors there may be now: nodes come and go."""
        there = self._ray.cluster_resources()
        units = int(there.get("GPU", 0)) or int(there.get("CPU", 0))
        if not units:
            raise UserError("the Ray cluster has no core to run clients on: start a node with ray start --address=...")
        return min(units, self._limit or units)

    def answers(self, jobs: Sequence[Job], buffer: int) -> Iterator[Answer]:
        """The answers in the order of the jobs, which are also begun in it; the jobs of the dead go to others.

        Beyond `buffer` bytes of answers that wait for their turn, no job is begun.
        """
        if any(hand.job is not None for hand in self._hands):
            raise RuntimeError("one exchange at a time: take all replies of the first, or close it, before the next")
        queue, early, deaths = list(range(len(jobs))), dict[int, Answer](), Counter[int]()  # the earliest job first
        size, self._since = self.size, time.monotonic()
        try:
            for turn in range(len(jobs)):
                while turn not in early:
                    held = sum(map(_bytes, early.values()))
                    while queue and (held <= buffer or queue[0] == turn) and (hand := self._idle(size, len(queue))):
                        hand.job = heappop(queue)
                        hand.awaited = jobs[hand.job](hand.actor)
                    for number, answer in self._news():
                        if isinstance(answer, Answer):
                            early[number] = answer
                            continue
                        deaths[number] += 1
                        if deaths[number] < LIVES:
                            heappush(queue, number)
                        else:
                            error = f"its Ray actor died {LIVES} times; {answer}"
                            early[number] = Answer({"error": error, "traceback": error + "\n"})
                yield early.pop(turn)
        finally:
            for hand in [hand for hand in self._hands if hand.job is not None]:  # nobody waits for their answers
                self._dismiss(hand)

    def close(self) -> None:
        """End all actors at once, whatever they are doing."""
        while self._hands:
            self._dismiss(self._hands[-1])

    def _idle(self, size: int, wanted: int) -> Hand | None:
        """An actor that has nothing to do, if there is one; as many more as are of use are on their way."""
        free = [hand for hand in self._hands if hand.ready and hand.job is None]
        coming = sum(not hand.ready for hand in self._hands)
        for _ in range(min(size - len(self._hands), wanted - len(free) - coming)):
            self._hire()
        return free[0] if free else None

    def _hire(self) -> None:
        gpus = int(self._ray.cluster_resources().get("GPU", 0)) > 0
        place = {"num_cpus": 0, "num_gpus": 1} if gpus else {"num_cpus": 1}
        actor = self._ray.remote(**place, max_restarts=0, scheduling_strategy="SPREAD")(Actor).remote(self._cargo)
        self._hands.append(Hand(actor, actor.versions.remote()))

    def _news(self) -> list[tuple[int, Answer | str]]:
        """Wait for something to happen; jobs that are done with their answers, or with how their actors died."""
        listened = {hand.awaited: hand for hand in self._hands if hand.job is not None or not hand.ready}
        heard, _ = self._ray.wait(list(listened), timeout=PATIENCE)
        if not heard and not any(hand.ready for hand in self._hands) and time.monotonic() - self._since >= PATIENCE:
            log.warning("no core of the Ray cluster is free yet: waiting for one")
            self._since = time.monotonic()
        return [news for reference in heard if (news := self._hear(listened[reference])) is not None]

    def _hear(self, hand: Hand) -> tuple[int, Answer | str] | None:
        number = hand.job
        try:
            said = self._ray.get(hand.awaited)
        except self._ray.exceptions.RayError as error:  # the actor or its node is gone, or what it said is
            self._dismiss(hand)
            if number is None:
                self._lose_newborn(error)
                return None
            return number, _why(error)
        hand.job = None
        if number is None:
            hand.ready, self._stillborn = True, 0
            _require_same(said)
            return None
        return number, said

    def _lose_newborn(self, error: Exception) -> None:
        self._stillborn += 1
        if self._stillborn >= LIVES:
            raise UserError(
                f"Ray actors cannot start ({_why(error)}): every node needs this Python, the packages that are "
                "installed here and the modules of your own that the experiment uses"
            ) from error

    def _dismiss(self, hand: Hand) -> None:
        self._hands.remove(hand)
        with suppress(Exception):  # it is dead already, or Ray is
            self._ray.kill(hand.actor)


def _require_same(versions: dict[str, str]) -> None:
    """Results would otherwise depend on where a client runs."""
    for package, version in versions.items():
        if version != (ours := VERSIONS[package]):
            raise UserError(f"a Ray node has {package} {version}, this machine {ours}: install the same everywhere")


def _bytes(answer: Answer) -> int:
    return sum(array.content.nbytes for arrays in answer.arrays.values() for array in arrays.values())


def _why(error: Exception) -> str:
    """Of the many lines with which Ray explains an error, the one that says most, and of that a sentence or two."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    deaths = [line for line in lines if line.startswith("The actor") and "creation task" not in line]
    telling = (deaths or lines)[-1][:200]
    return telling.rpartition(". ")[0] or telling
