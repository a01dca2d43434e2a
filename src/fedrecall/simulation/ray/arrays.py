"""Tensors on their way through Ray: plain arrays, which Ray holds once a node and every process there reads in place.

Ray would send a tensor too, but as a pickle that each process copies for itself.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrecall.core.types import Payload
from fedrecall.data.examples import Examples
from fedrecall.data.transforms import Transform
from fedrecall.simulation.shared_memory import ALIGNMENT, DTYPES


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
