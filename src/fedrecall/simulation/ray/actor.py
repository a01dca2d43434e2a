"""What runs on the nodes: an actor, which has the data of its node at hand and performs one task at a time."""

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import fedrecall
from fedrecall.core.flat_model import FlatModel
from fedrecall.data.examples import Examples
from fedrecall.data.transforms import Transform
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.jobs import run_job
from fedrecall.simulation.ray.arrays import (
    PackedExamples,
    PackedPayload,
    copy_payload,
    pack_examples,
    pack_payload,
    view_examples,
)
from fedrecall.simulation.shared_memory import Message
from fedrecall.simulation.worker import worker_device

NO_EXAMPLES = Examples(torch.empty(0), torch.empty(0, dtype=torch.int64), Transform())

VERSIONS = {"fedrecall": fedrecall.__version__, "torch": torch.__version__, "numpy": np.__version__}


class ActorResult(NamedTuple):
    """An answer on its way: plain values, and arrays."""

    message: Message
    arrays: dict[str, PackedPayload]


class ActorArgs(NamedTuple):
    """All that an actor needs to know, once for the whole run."""

    world: SimulatedClients  # without its examples
    train: PackedExamples
    test: PackedExamples
    model: nn.Module


def make_actor_args(world: SimulatedClients, f: FlatModel) -> ActorArgs:
    """A world and a model, ready for Ray."""
    model = f.to_module(f.w, f.b, f.int_buffers)
    for t in (*model.parameters(), *model.buffers()):
        t.data = t.data.clone()  # a view would be sent with all that it is a view of
    bare = replace(world, train=NO_EXAMPLES, test=NO_EXAMPLES)
    return ActorArgs(bare, pack_examples(world.train), pack_examples(world.test), model)


class Actor:
    """One core's or GPU's worth of clients."""

    def __init__(self, cargo: ActorArgs) -> None:
        """Ray hands over what it holds: the examples stay where they are, the model is this actor's own."""
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written to
        self._world = replace(cargo.world, train=view_examples(cargo.train), test=view_examples(cargo.test))
        self._f = FlatModel(cargo.model).to(worker_device(0))  # Ray shows an actor its own GPU only

    def versions(self) -> dict[str, str]:
        """Of what the last bit of a result depends on."""
        return VERSIONS

    def run_job(self, order: Message, down: PackedPayload, client_payloads: dict[str, PackedPayload]) -> ActorResult:
        """A job. Ray fetches what goes down to all; it is copied, for a client may write to it."""
        given = {name: copy_payload(arrays) for name, arrays in ({"down": down} | client_payloads).items()}
        message, payloads = run_job(self._world, self._f, order, given)
        return ActorResult(message, {name: pack_payload(payload) for name, payload in payloads.items()})
