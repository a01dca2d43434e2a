"""What runs on the nodes: an actor, which has the data of its node at hand and performs one task at a time."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import fedrecall
from fedrecall.core.flat import Flat
from fedrecall.data.augment import Transform
from fedrecall.data.examples import Examples
from fedrecall.engines.faults import described
from fedrecall.engines.ray.arrays import Arrays, Stored, copy_all, pack, pack_all, pack_examples, view_examples
from fedrecall.engines.worker import device
from fedrecall.engines.world import World
from fedrecall.errors import UserError

NOTHING = Examples(torch.empty(0), torch.empty(0, dtype=torch.int64), Transform())
VERSIONS = {"fedrecall": fedrecall.__version__, "torch": torch.__version__, "numpy": np.__version__}


class Answer(NamedTuple):
    """What came of a task: plain values, and arrays."""

    said: dict[str, Any]
    arrays: dict[str, Arrays] = {}  # noqa: RUF012 (nobody writes to it)


class Cargo(NamedTuple):
    """All that an actor needs to know, once for the whole run."""

    world: World  # without its examples
    train: Stored
    test: Stored
    model: nn.Module


def load(world: World, f: Flat) -> Cargo:
    """A world and a model, ready for Ray."""
    model = f.module(f.w, f.b, f.counters)
    for t in (*model.parameters(), *model.buffers()):
        t.data = t.data.clone()  # a view would be sent with all that it is a view of
    bare = replace(world, train=NOTHING, test=NOTHING)
    return Cargo(bare, pack_examples(world.train), pack_examples(world.test), model)


class Actor:
    """One core's or GPU's worth of clients."""

    def __init__(self, cargo: Cargo) -> None:
        """Ray hands over what it holds: the examples stay where they are, the model is this actor's own."""
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written to
        self._world = replace(cargo.world, train=view_examples(cargo.train), test=view_examples(cargo.test))
        self._f = Flat(cargo.model).to(device(0))  # Ray shows an actor its own GPU only

    def versions(self) -> dict[str, str]:
        """Of what the last bit of a result depends on."""
        return VERSIONS

    def perform(self, task: str, client: int, t: int, down: Arrays, memory: Arrays | None) -> Answer:
        """A client's task."""

        def work() -> Answer:
            remembered = None if memory is None else copy_all(memory)
            reply = self._world.perform(self._f, task, client, t, copy_all(down), remembered)
            payloads = {"up": reply.up, "memory": reply.memory, "report": reply.report}
            return Answer({"n": reply.n}, {name: pack_all(payload) for name, payload in payloads.items()})

        return _answered(work)

    def score(self, ranges: list[tuple[int, int]], down: Arrays) -> Answer:
        """A complete model on some rows of the test set."""

        def work() -> Answer:
            state = copy_all(down)["state"].to(self._f.w.device)
            scores = [self._f.score(state, self._world.test.take(torch.arange(*rows))) for rows in ranges]
            predicted = torch.cat([score.predicted for score in scores])
            return Answer({"losses": [score.loss for score in scores]}, {"said": {"predicted": pack(predicted)}})

        return _answered(work)


def _answered(work: Callable[[], Answer]) -> Answer:
    """An error is an answer too, in words: an exception of the user's own may not survive the way."""
    try:
        return work()
    except UserError as error:
        return Answer({"refused": str(error), "kind": type(error).__name__})
    except Exception as error:
        line, text = described(error)
        return Answer({"error": line, "traceback": text})
