"""What workers are asked for and what they answer, whatever carries it there and back.

A job is a pure function of the order, what all workers were given and its own luggage: it can be done again.
"""

from typing import NamedTuple

import torch

from fedrecall.core.client_state import Memories
from fedrecall.core.failures import CLIENT_FAILED, described
from fedrecall.core.flat_model import Flat
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.clients import World
from fedrecall.simulation.shared_memory import Message


class Task(NamedTuple):
    """A client's task."""

    task: str
    client: int  # the worker that did its last job of the round may have kept what helps with the next
    t: int
    memories: Memories

    @property
    def order(self) -> Message:
        """What is to be done."""
        return {"task": self.task, "client": self.client, "t": self.t}

    def luggage(self) -> dict[str, Payload]:
        """What goes along with it to its worker alone; asked for when the job is given out."""
        memory = self.memories.get(self.client)
        return {} if memory is None else {"memory": memory}


class Part(NamedTuple):
    """Some rows of the test set, to be scored."""

    ranges: list[list[int]]

    @property
    def order(self) -> Message:
        """What is to be done."""
        return {"score": self.ranges}

    @property
    def client(self) -> None:
        """It is nobody's."""
        return None

    def luggage(self) -> dict[str, Payload]:
        """Nothing."""
        return {}


Job = Task | Part


class Answer(NamedTuple):
    """What came of a job."""

    message: Message
    payloads: dict[str, Payload]


def carry_out(world: World, f: Flat, order: Message, given: dict[str, Payload]) -> Answer:
    """Do a job. An error is an answer too, in words: an exception of the user's own may not survive the way."""
    try:
        return _score(world, f, order, given) if "score" in order else _perform(world, f, order, given)
    except UserError as error:
        return Answer({"refused": [error.code, error.message, error.key, error.hint], "kind": type(error).__name__}, {})
    except Exception as error:
        line, text = described(error)
        return Answer({"error": line, "traceback": text, "code": CLIENT_FAILED}, {})


def _perform(world: World, f: Flat, order: Message, given: dict[str, Payload]) -> Answer:
    reply = world.perform(f, order["task"], order["client"], order["t"], given["down"], given.get("memory"))
    return Answer({"n": reply.n}, {"up": reply.up, "memory": reply.memory, "report": reply.report})


def _score(world: World, f: Flat, order: Message, given: dict[str, Payload]) -> Answer:
    state = given["down"]["state"].to(f.w.device)
    scores = [f.score(state, world.test.take(torch.arange(*rows))) for rows in order["score"]]
    predicted = torch.cat([score.predicted for score in scores])
    return Answer({"losses": [score.loss for score in scores]}, {"said": {"predicted": predicted}})
