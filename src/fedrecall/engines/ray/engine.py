"""The engine for a cluster: the same tasks as on `pool`, performed by Ray actors on any number of machines."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from fedrecall.core.exchange import Diverged
from fedrecall.core.flat import Flat, chunks
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.engines.cohort import Sampled
from fedrecall.engines.faults import Attendance, Faults, Remote
from fedrecall.engines.memory import Memories
from fedrecall.engines.pool import BUFFER, PARTS
from fedrecall.engines.ray.actor import Answer, load
from fedrecall.engines.ray.arrays import copy_all, pack_all
from fedrecall.engines.ray.crew import Crew, Job
from fedrecall.engines.ray.session import connect
from fedrecall.engines.world import World
from fedrecall.errors import UserError


class Ray:
    """All clients of a run, and what each remembers."""

    def __init__(
        self,
        world: World,
        f: Flat,
        faults: Faults | None = None,
        memories: Memories | None = None,
        *,
        address: str | None = None,
        workers: int | None = None,
        buffer: int = BUFFER,
    ) -> None:
        """Connect to the cluster at `address`, or start a Ray of one's own; at most `workers` actors."""
        self.world = world
        self.faults = faults or Faults()
        self.memories = Memories() if memories is None else memories
        self._session = connect(address, workers)
        try:
            self.crew = Crew(self._session.ray, load(world, f), workers)
        except BaseException:
            self._session.close()
            raise
        self._buffer = buffer

    def cohort(self, t: int, clients: Sequence[int]) -> Sampled:
        """These clients, for round t."""
        return Sampled(self, t, self.world.order(clients))

    def exchange(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on each."""
        attendance, board = Attendance(self.faults, t, len(clients)), self._put(down)

        def ask(client: int) -> Job:
            def job(actor: Any) -> Any:
                memory = self.memories.get(client)
                return actor.perform.remote(task, client, t, board, None if memory is None else pack_all(memory))

            return job

        for client, answer in zip(clients, self._answers([ask(client) for client in clients]), strict=True):
            said = answer.said
            if "error" in said:
                attendance.failed(client, said["error"], said["traceback"], cause=Remote(said["traceback"]))
                continue
            payloads = {name: copy_all(arrays) for name, arrays in answer.arrays.items()}
            yield Reply(payloads["up"], said["n"], payloads["memory"], payloads["report"], client)

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set, in the chunks and the order of `Flat.score`."""
        predicted, loss, board = list[Tensor](), 0.0, self._put({"state": state})
        ranges = [(rows.start, rows.stop) for rows in chunks(len(self.world.test))]
        several = -(-len(ranges) // (PARTS * self.crew.size))

        def ask(first: int) -> Job:
            return lambda actor: actor.score.remote(ranges[first : first + several], board)

        for answer in self._answers([ask(first) for first in range(0, len(ranges), several)]):
            said = answer.said
            if "error" in said:
                raise RuntimeError(f"the global model cannot be scored: {said['error']}") from Remote(said["traceback"])
            predicted.append(copy_all(answer.arrays["said"])["predicted"])
            for lost in said["losses"]:  # one by one, as `Flat.score` adds them
                loss += lost
        return Score(torch.cat(predicted), self.world.test.y, loss)

    def _put(self, payload: Payload) -> Any:
        """Hand a payload to Ray, once for all actors."""
        return self._session.ray.put(pack_all(payload))

    def _answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        for answer in self.crew.answers(jobs, self._buffer):
            if "refused" in answer.said:
                kind = Diverged if answer.said["kind"] == Diverged.__name__ else UserError
                raise kind(answer.said["refused"])
            yield answer

    def close(self) -> None:
        """End the actors at once, leave Ray, and give back what the engine holds outside this process's memory."""
        self.crew.close()
        self._session.close()
        self.memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
