"""Ray actor that runs one job at a time on a node, and the packing of tensors for Ray."""

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
from fedrecall.simulation.devices import make_deterministic, worker_device
from fedrecall.simulation.jobs import run_job
from fedrecall.simulation.shared_memory import ALIGNMENT, DTYPES, Message
from fedrecall.tensor_dict import TensorDict


class PackedTensor(NamedTuple):
    """Tensor as bytes, with its type and shape."""

    content: np.ndarray[Any, np.dtype[np.uint8]]
    dtype: str
    shape: tuple[int, ...]  # in memory order
    channels_last: bool


PackedPayload = dict[str, PackedTensor]  # a payload, packed for Ray


class PackedExamples(NamedTuple):
    """Examples, packed for Ray."""

    x: PackedTensor | PackedPayload
    labels: PackedTensor
    rows: PackedTensor | None
    transform: Transform


def pack_tensor(t: Tensor) -> PackedTensor:
    """Pack a tensor as an array; a view if the tensor is contiguous."""
    last = t.ndim == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)
    stored = (t.permute(0, 2, 3, 1) if last else t).detach().cpu().contiguous()
    return PackedTensor(stored.reshape(-1).view(torch.uint8).numpy(), str(t.dtype), tuple(stored.shape), last)


def view_tensor(array: PackedTensor) -> Tensor:
    """Return the tensor as a view of Ray's memory if it is aligned as torch aligns, else a copy. Read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        content = torch.from_numpy(array.content)
    if content.data_ptr() % ALIGNMENT:
        content = content.clone()
    dtype = DTYPES[array.dtype]
    t = content.view(dtype).view(array.shape) if len(content) else torch.empty(array.shape, dtype=dtype)
    return t.permute(0, 3, 1, 2) if array.channels_last else t


def pack_payload(payload: Payload) -> PackedPayload:
    """Pack a payload as arrays."""
    return {name: pack_tensor(t) for name, t in payload.items()}


def view_payload(arrays: PackedPayload) -> Payload:
    """Return the payload as views of Ray's memory."""
    return {name: view_tensor(array) for name, array in arrays.items()}


def copy_payload(arrays: PackedPayload) -> Payload:
    """Return the payload as copies, which may be written to."""
    return {name: t.clone() for name, t in view_payload(arrays).items()}


def pack_examples(data: Examples) -> PackedExamples:
    """Pack the tensors that examples are a view of, and the rows."""
    return PackedExamples(
        pack_payload(dict(data.x.tensors)) if isinstance(data.x, TensorDict) else pack_tensor(data.x),
        pack_tensor(data.labels),
        None if data.rows is None else pack_tensor(data.rows),
        data.transform,
    )


def view_examples(stored: PackedExamples) -> Examples:
    """Return the examples as views of Ray's memory."""
    rows = None if stored.rows is None else view_tensor(stored.rows)
    x = view_tensor(stored.x) if isinstance(stored.x, PackedTensor) else TensorDict(view_payload(stored.x))
    return Examples(x, view_tensor(stored.labels), stored.transform, rows)


NO_EXAMPLES = Examples(torch.empty(0), torch.empty(0, dtype=torch.int64), Transform())

VERSIONS = {"fedrecall": __version__, "torch": torch.__version__, "numpy": np.__version__}


class ActorResult(NamedTuple):
    """Result of a job, packed for Ray."""

    message: Message
    arrays: dict[str, PackedPayload]


class ActorArgs(NamedTuple):
    """Constructor arguments of an actor, stored in Ray once per run."""

    clients: SimulatedClients  # without examples
    train: PackedExamples
    test: PackedExamples
    model: nn.Module  # without frozen weights
    frozen: PackedPayload  # weights that are not trained, read in place by all actors of a node
    device: str  # engine.device
    private: frozenset[str]  # names of the part of the model that stays at the clients


def make_actor_args(clients: SimulatedClients, f: FlatModel, device: str = "auto") -> ActorArgs:
    """Pack clients and model for Ray."""
    model = f.to_module(f.w, f.b, f.int_buffers)
    frozen = {name: pack_tensor(p) for name, p in model.named_parameters() if not p.requires_grad}
    for p in model.parameters():
        p.data = p.data.clone() if p.requires_grad else p.data.new_empty(0)  # a view is sent with its complete tensor
    for t in model.buffers():
        t.data = t.data.clone()
    without_examples = replace(clients, train=NO_EXAMPLES, test=NO_EXAMPLES)
    train, test = pack_examples(clients.train), pack_examples(clients.test)
    return ActorArgs(without_examples, train, test, model, frozen, device, f.private_names)


class Actor:
    """Worker on one core or GPU."""

    def __init__(self, args: ActorArgs) -> None:
        """Take the arguments from Ray: examples and frozen weights stay in shared memory, the others are a copy."""
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is not written to
        self._clients = replace(args.clients, train=view_examples(args.train), test=view_examples(args.test))
        for name, p in args.model.named_parameters():
            if name in args.frozen:
                p.data = view_tensor(args.frozen[name])
        device = worker_device(0, args.device)  # Ray shows an actor its own GPU only
        make_deterministic(device)
        self._f = FlatModel(args.model, args.private).to(device)

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that results depend on."""
        return VERSIONS

    def run_job(self, message: Message, down: PackedPayload, client_payloads: dict[str, PackedPayload]) -> ActorResult:
        """Run a job. Ray fetches the broadcast payload; it is copied, because a client may write to it."""
        payloads = {name: copy_payload(arrays) for name, arrays in ({"down": down} | client_payloads).items()}
        result = run_job(self._clients, self._f, message, payloads)
        return ActorResult(result.message, {name: pack_payload(payload) for name, payload in result.payloads.items()})
