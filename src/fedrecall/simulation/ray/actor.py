"""What runs on the nodes: an actor, which has the data of its node at hand and performs one task at a time."""

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import fedrecall
from fedrecall.core.flat_model import Flat
from fedrecall.data.examples import Examples
from fedrecall.data.transforms import Transform
from fedrecall.simulation.clients import World
from fedrecall.simulation.jobs import carry_out
from fedrecall.simulation.ray.arrays import Arrays, Stored, copy_all, pack_all, pack_examples, view_examples
from fedrecall.simulation.shared_memory import Message
from fedrecall.simulation.worker import device

NOTHING = Examples(torch.empty(0), torch.empty(0, dtype=torch.int64), Transform())

VERSIONS = {"fedrecall": fedrecall.__version__, "torch": torch.__version__, "numpy": np.__version__}


class Said(NamedTuple):
    """An answer on its way: plain values, and arrays."""

    message: Message
    arrays: dict[str, Arrays]


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

    def do(self, order: Message, down: Arrays, luggage: dict[str, Arrays]) -> Said:
        """A job. Ray fetches what goes down to all; it is copied, for a client may write to it."""
        given = {name: copy_all(arrays) for name, arrays in ({"down": down} | luggage).items()}
        message, payloads = carry_out(self._world, self._f, order, given)
        return Said(message, {name: pack_all(payload) for name, payload in payloads.items()})
