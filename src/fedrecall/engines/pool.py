"""The default engine: worker processes with one thread each. The same bits as `serial`, for any number of workers."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedrecall.core.exchange import Diverged
from fedrecall.core.flat import Flat, chunks
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.engines.cohort import Sampled
from fedrecall.engines.crew import Crew, Start, cores
from fedrecall.engines.faults import Attendance, Faults, Remote
from fedrecall.engines.memory import Memories
from fedrecall.engines.shared import Message, Shelf
from fedrecall.engines.shift import Answer, Job, Shift
from fedrecall.engines.world import World
from fedrecall.errors import UserError

BUFFER = 256 * 2**20  # bytes of replies kept for their turn before no further client is begun
PARTS = 8  # jobs for each worker in an evaluation: enough to even out their pace


class Pool:
    """All clients of a run, and what each remembers; the workers start when there is something to do."""

    def __init__(
        self,
        world: World,
        f: Flat,
        faults: Faults | None = None,
        memories: Memories | None = None,
        *,
        workers: int | None = None,
        start: Start | None = None,
        buffer: int = BUFFER,
    ) -> None:
        """`workers` defaults to the cores there are, `start` to what is best on this system."""
        self.world = world
        self.faults = faults or Faults()
        self.memories = Memories() if memories is None else memories
        self.crew = Crew(world, f, workers or cores(), start)
        self._board = Shelf("board")  # what all workers read: written once an exchange
        self._buffer = buffer

    def cohort(self, t: int, clients: Sequence[int]) -> Sampled:
        """These clients, for round t."""
        self.crew.new_round()
        return Sampled(self, t, self.world.order(clients))

    def exchange(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on each."""
        attendance = Attendance(self.faults, t, len(clients))
        jobs = [_Task(task, client, t, self.memories) for client in clients]
        for client, answer in zip(clients, self._answers(jobs, down), strict=True):
            said, payloads = answer
            if "error" in said:
                attendance.failed(client, said["error"], said["traceback"], cause=Remote(said["traceback"]))
                continue
            yield Reply(payloads["up"], said["n"], payloads["memory"], payloads["report"], client)

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set, in the chunks and the order of `Flat.score`."""
        predicted, loss = list[Tensor](), 0.0
        ranges = [[rows.start, rows.stop] for rows in chunks(len(self.world.test))]
        several = -(-len(ranges) // (PARTS * self.crew.size))
        jobs = [_Part(ranges[i : i + several]) for i in range(0, len(ranges), several)]
        for said, payloads in self._answers(jobs, {"state": state}):
            if "error" in said:
                raise UserError(f"the global model cannot be scored: {said['error']}") from Remote(said["traceback"])
            predicted.append(payloads["said"]["predicted"])
            for lost in said["losses"]:  # one by one, as `Flat.score` adds them
                loss += lost
        return Score(torch.cat(predicted), self.world.test.y, loss)

    def _answers(self, jobs: Sequence[Job], down: Payload) -> Iterator[Answer]:
        shift = Shift(self.crew, jobs, self._board.put({"down": down}), self._buffer)
        for answer in shift.answers():
            if "refused" in answer.message:
                kind = Diverged if answer.message["kind"] == Diverged.__name__ else UserError
                raise kind(answer.message["refused"])
            yield answer

    def close(self) -> None:
        """End the workers at once, and give back what the engine holds outside this process's memory."""
        self.crew.close()
        self.memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Task(NamedTuple):
    """A client's task."""

    task: str
    client: int
    t: int
    memories: Memories

    @property
    def order(self) -> Message:
        return {"task": self.task, "client": self.client, "t": self.t}

    def luggage(self) -> dict[str, Payload]:
        memory = self.memories.get(self.client)
        return {} if memory is None else {"memory": memory}


class _Part(NamedTuple):
    """Some rows of the test set."""

    ranges: list[list[int]]

    @property
    def order(self) -> Message:
        return {"score": self.ranges}

    @property
    def client(self) -> None:
        return None

    def luggage(self) -> dict[str, Payload]:
        return {}
