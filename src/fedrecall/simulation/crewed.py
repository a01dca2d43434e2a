"""What engines with workers have in common, wherever their workers are: exchanges and evaluations as jobs."""

from collections.abc import Iterator, Sequence
from typing import Generic, Self

import torch
from torch import Tensor

from fedrecall.core.client_state import Memories
from fedrecall.core.exchange import Diverged
from fedrecall.core.failures import CLIENT_FAILED, Attendance, Faults, Remote
from fedrecall.core.flat_model import chunks
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.errors import UserError
from fedrecall.simulation.clients import World
from fedrecall.simulation.cohort import Sampled
from fedrecall.simulation.jobs import Answer, Job, Part, Task
from fedrecall.simulation.scheduler import Crew, H, Shift

BUFFER = 256 * 2**20  # bytes of replies kept for their turn before no further client is begun

PARTS = 8  # jobs for each worker in an evaluation: enough to even out their pace


class Crewed(Generic[H]):
    """All clients of a run, and what each remembers. The same bits as `serial`, for any number of workers."""

    def __init__(
        self, world: World, crew: Crew[H], faults: Faults | None, memories: Memories | None, buffer: int
    ) -> None:
        self.world = world
        self.crew = crew
        self.faults = faults or Faults()
        self.memories = Memories() if memories is None else memories
        self._buffer = buffer

    def cohort(self, t: int, clients: Sequence[int]) -> Sampled:
        """These clients, for round t."""
        self.crew.new_round()
        return Sampled(self, t, self.world.order(clients))

    def exchange(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on each."""
        attendance = Attendance(self.faults, t, len(clients))
        jobs = [Task(task, client, t, self.memories) for client in clients]
        for client, (said, payloads) in zip(clients, self._answers(jobs, down), strict=True):
            if "error" in said:
                cause = Remote(said["traceback"])
                attendance.failed(client, said["error"], said["traceback"], cause=cause, code=said["code"])
                continue
            yield Reply(payloads["up"], said["n"], payloads["memory"], payloads["report"], client)

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set, in the chunks and the order of `Flat.score`."""
        predicted, loss = list[Tensor](), 0.0
        ranges = [[rows.start, rows.stop] for rows in chunks(len(self.world.test))]
        several = -(-len(ranges) // (PARTS * self.crew.size))
        jobs = [Part(ranges[i : i + several]) for i in range(0, len(ranges), several)]
        for said, payloads in self._answers(jobs, {"state": state}):
            if "error" in said:
                what = f"the global model cannot be evaluated: {said['error']}"
                code = "engine.evaluation_failed" if said["code"] == CLIENT_FAILED else said["code"]
                raise UserError(code, what) from Remote(said["traceback"])
            predicted.append(payloads["said"]["predicted"])
            for lost in said["losses"]:  # one by one, as `Flat.score` adds them
                loss += lost
        return Score(torch.cat(predicted), self.world.test.y, loss)

    def _answers(self, jobs: Sequence[Job], down: Payload) -> Iterator[Answer]:
        for answer in Shift(self.crew, jobs, self._buffer).answers(down):
            if "refused" in answer.message:
                kind = Diverged if answer.message["kind"] == Diverged.__name__ else UserError
                raise kind(*answer.message["refused"])
            yield answer

    def close(self) -> None:
        """End the workers at once, and give back what the engine holds outside this process's memory."""
        self.crew.close()
        self.memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
