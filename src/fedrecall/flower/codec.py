"""Encoding of payloads as bytes, and decoding with validation of untrusted input.

A tensor is sent as its name, dtype, shape and little-endian bytes. Nothing is unpickled.
"""

import re
import sys
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch

from fedrecall.core.types import Payload
from fedrecall.errors import printable

WIRE_DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    )
}

TENSOR_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

MAX_TENSORS = 256  # in a payload

MAX_DIMS = 8  # of a tensor

MAX_BYTES = 2**31 - 2**20  # of a payload: gRPC messages are below 2 GiB


class InvalidMessage(Exception):
    """Error of a message whose tensors or fields are not the expected ones.

    `code` is a stable dotted name, `key` the configuration key concerned, as in `UserError`. The text may quote the
    message: it becomes one printable line.
    """

    def __init__(self, code: str, message: str, key: str | None = None) -> None:
        super().__init__(code, message, key)
        self.code, self.message, self.key = code, printable(message), key

    def __str__(self) -> str:
        return self.message


class EncodedTensor(NamedTuple):
    """A tensor as it is sent."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def encode(payload: Payload) -> dict[str, EncodedTensor]:
    """Encode a payload. Raises InvalidMessage for a payload that `decode` would reject."""
    if sys.byteorder != "little":
        raise InvalidMessage(
            "flower.unsupported_platform", "federations need little-endian machines, this one is big-endian"
        )
    parts = {}
    for name, t in payload.items():
        data = t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        parts[name] = EncodedTensor(str(t.dtype).removeprefix("torch."), tuple(t.shape), data)
    validate(parts)
    return parts


def decode(parts: Mapping[str, EncodedTensor]) -> Payload:
    """Validate and decode a payload. The tensors are copies with torch's memory alignment."""
    validate(parts)
    payload = {}
    for name, part in parts.items():
        kind, t = WIRE_DTYPES[part.dtype], torch.empty(part.shape, dtype=WIRE_DTYPES[part.dtype])
        if part.data:
            t.view(-1).copy_(torch.frombuffer(bytearray(part.data), dtype=kind))
        payload[name] = t
    return payload


def validate(parts: Mapping[str, EncodedTensor]) -> None:
    """Raise InvalidMessage for names, dtypes, shapes and sizes that no payload has."""
    if len(parts) > MAX_TENSORS:
        raise InvalidMessage("reply.too_large", f"{len(parts)} tensors in one message, the maximum is {MAX_TENSORS}")
    total = 0
    for name, part in parts.items():
        if not TENSOR_NAME.fullmatch(name):
            raise InvalidMessage("reply.invalid_name", f"{name[:80]!r} is not a valid name of a tensor")
        if part.dtype not in WIRE_DTYPES:
            raise InvalidMessage("reply.unsupported_dtype", f"{name} has the unsupported dtype {part.dtype[:20]!r}")
        itemsize = WIRE_DTYPES[part.dtype].itemsize
        # An empty axis counts as 1: torch multiplies the others into strides, also where there are no numbers.
        if (
            len(part.shape) > MAX_DIMS
            or not all(0 <= n <= MAX_BYTES for n in part.shape)
            or prod(max(n, 1) for n in part.shape) * itemsize > MAX_BYTES
        ):
            raise InvalidMessage(
                "reply.invalid_shape", f"{name} has the invalid shape {list(part.shape)[: MAX_DIMS + 1]}"
            )
        size = prod(part.shape) * itemsize
        if len(part.data) != size:
            text = f"{name} has {len(part.data)} bytes, its shape needs {size}"
            raise InvalidMessage("reply.wrong_byte_count", text)
        if part.dtype == "bool" and part.data.translate(None, b"\x00\x01"):
            raise InvalidMessage("reply.invalid_value", f"{name} has boolean values other than 0 and 1")
        total += size
    if total > MAX_BYTES:
        raise InvalidMessage("reply.too_large", f"{total} bytes in one message, the maximum is {MAX_BYTES}")


def require_same_spec(payload: Payload, model: Payload) -> None:
    """Raise InvalidMessage if a tensor's dtype or shape differs from the tensor of the same name in `model`."""
    for name in payload.keys() & model.keys():
        t, expected = payload[name], model[name]
        if (t.dtype, t.shape) != (expected.dtype, expected.shape):
            raise InvalidMessage("reply.wrong_shape", f"{name} is {_spec_text(t)}, expected {_spec_text(expected)}")


def _spec_text(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
