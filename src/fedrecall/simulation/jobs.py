"""What workers are asked for and what they answer, whatever carries it there and back.

A job is a pure function of the order, what all workers were given and its own luggage: it can be done again.
"""

from typing import NamedTuple

import torch

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.failures import CLIENT_FAILED, format_exception
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.shared_memory import Message


class TaskJob(NamedTuple):
    """A client's task."""

    task: str
    client: int  # the worker that did its last job of the round may have kept what helps with the next
    t: int
    memories: ClientStateStore

    @property
    def message(self) -> Message:
        """What is to be done."""
        return {"task": self.task, "client": self.client, "t": self.t}

    def client_payloads(self) -> dict[str, Payload]:
        """What goes along with it to its worker alone; asked for when the job is given out."""
        memory = self.memories.get(self.client)
        return {} if memory is None else {"memory": memory}


class ScoreJob(NamedTuple):
    """Some rows of the test set, to be scored."""

    ranges: list[list[int]]

    @property
    def message(self) -> Message:
        """What is to be done."""
        return {"score": self.ranges}

    @property
    def client(self) -> None:
        """It is nobody's."""
        return None

    def client_payloads(self) -> dict[str, Payload]:
        """Nothing."""
        return {}


Job = TaskJob | ScoreJob


class JobResult(NamedTuple):
    """What came of a job."""

    message: Message
    payloads: dict[str, Payload]


def run_job(world: SimulatedClients, f: FlatModel, order: Message, payloads: dict[str, Payload]) -> JobResult:
    """Do a job. An error is an answer too, in words: an exception of the user's own may not survive the way."""
    try:
        return _score(world, f, order, payloads) if "score" in order else _run_task(world, f, order, payloads)
    except UserError as error:
        return JobResult(
            {"refused": [error.code, error.message, error.key, error.hint], "kind": type(error).__name__}, {}
        )
    except Exception as error:
        line, text = format_exception(error)
        return JobResult({"error": line, "traceback": text, "code": CLIENT_FAILED}, {})


def _run_task(world: SimulatedClients, f: FlatModel, order: Message, given: dict[str, Payload]) -> JobResult:
    reply = world.run_task(f, order["task"], order["client"], order["t"], given["down"], given.get("memory"))
    return JobResult({"n": reply.n}, {"up": reply.up, "memory": reply.memory, "report": reply.metrics})


def _score(world: SimulatedClients, f: FlatModel, order: Message, given: dict[str, Payload]) -> JobResult:
    state = given["down"]["state"].to(f.w.device)
    scores = [f.score(state, world.test.subset(torch.arange(*rows))) for rows in order["score"]]
    predicted = torch.cat([score.predicted for score in scores])
    return JobResult({"losses": [score.loss for score in scores]}, {"said": {"predicted": predicted}})
