"""What runs on the nodes: an actor, which has the data of its node at hand and performs one task at a time."""

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall._version import __version__
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload
from fedrecall.data.examples import Examples
from fedrecall.data.transforms import Transform
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.jobs import run_job
from fedrecall.simulation.processes import worker_device
from fedrecall.simulation.shared_memory import ALIGNMENT, DTYPES, Message


class PackedTensor(NamedTuple):
    """A tensor as bytes, and what they mean."""

    content: np.ndarray[Any, np.dtype[np.uint8]]
    dtype: str
    shape: tuple[int, ...]  # as it lies in memory
    channels_last: bool


PackedPayload = dict[str, PackedTensor]  # a payload on its way


class PackedExamples(NamedTuple):
    """Examples on their way."""

    x: PackedTensor
    labels: PackedTensor
    rows: PackedTensor | None
    transform: Transform


def pack_tensor(t: Tensor) -> PackedTensor:
    """A tensor as an array; of one that lies there in one piece it is a view."""
    last = t.ndim == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)
    laid = (t.permute(0, 2, 3, 1) if last else t).detach().cpu().contiguous()
    return PackedTensor(laid.reshape(-1).view(torch.uint8).numpy(), str(t.dtype), tuple(laid.shape), last)


def view_tensor(array: PackedTensor) -> Tensor:
    """The tensor, in the memory that Ray holds where torch could have put it there: not to be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        content = torch.from_numpy(array.content)
    if content.data_ptr() % ALIGNMENT:
        content = content.clone()
    dtype = DTYPES[array.dtype]
    t = content.view(dtype).view(array.shape) if len(content) else torch.empty(array.shape, dtype=dtype)
    return t.permute(0, 3, 1, 2) if array.channels_last else t


def pack_payload(payload: Payload) -> PackedPayload:
    """A payload as arrays."""
    return {name: pack_tensor(t) for name, t in payload.items()}


def view_payload(arrays: PackedPayload) -> Payload:
    """The payload, in the memory that Ray holds."""
    return {name: view_tensor(array) for name, array in arrays.items()}


def copy_payload(arrays: PackedPayload) -> Payload:
    """The payload, in memory of one's own: whoever writes to it disturbs nobody."""
    return {name: t.clone() for name, t in view_payload(arrays).items()}


def pack_examples(data: Examples) -> PackedExamples:
    """The store that examples are a view of, and which of it."""
    return PackedExamples(
        pack_tensor(data.x),
        pack_tensor(data.labels),
        None if data.rows is None else pack_tensor(data.rows),
        data.transform,
    )


def view_examples(stored: PackedExamples) -> Examples:
    """The examples, in the memory that Ray holds."""
    rows = None if stored.rows is None else view_tensor(stored.rows)
    return Examples(view_tensor(stored.x), view_tensor(stored.labels), stored.transform, rows)


NO_EXAMPLES = Examples(torch.empty(0), torch.empty(0, dtype=torch.int64), Transform())

VERSIONS = {"fedrecall": __version__, "torch": torch.__version__, "numpy": np.__version__}


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
