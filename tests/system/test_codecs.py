"""Payloads in every encoding: a file of client states, shared memory between processes, a message."""

import multiprocessing
from contextlib import suppress

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from fedrecall.core.types import Payload
from fedrecall.files import tensors_from_bytes, tensors_to_bytes
from fedrecall.flower.codec import TENSOR_NAME, WIRE_DTYPES, EncodedTensor, InvalidMessage, decode, encode
from fedrecall.simulation.shared_memory import Channel, SharedBuffer


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Draw tensors of any type, shape and bits, also NaN and infinity, also not contiguous."""
    dtype = draw(st.sampled_from(list(WIRE_DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    n = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.tensor(list(draw(st.binary(min_size=n, max_size=n))), dtype=torch.uint8)
    t = (raw % 2).bool()[:n] if dtype == torch.bool else raw.view(dtype)
    t = t.view(shape)
    return t.T if t.ndim == 2 and draw(st.booleans()) else t


payloads = st.dictionaries(st.text(max_size=12), tensors(), max_size=4)


def same(a: Payload, b: Payload) -> None:
    """True if names, order, types, shapes and bits are equal."""
    assert list(a) == list(b)
    for name, t in a.items():
        assert (t.dtype, t.shape) == (b[name].dtype, b[name].shape)
        assert (
            t.contiguous().view(-1).view(torch.uint8).tolist()
            == b[name].contiguous().view(-1).view(torch.uint8).tolist()
        )


@settings(deadline=None, max_examples=150)
@given(payloads)
def test_a_file(payload: Payload) -> None:
    same(tensors_from_bytes(tensors_to_bytes(payload)), payload)


@settings(deadline=None, max_examples=100)
@given(st.lists(payloads, min_size=1, max_size=3))
def test_shared_memory(several: list[Payload]) -> None:
    a, b = (Channel(connection) for connection in multiprocessing.Pipe())
    shelf = SharedBuffer("place")
    for number, payload in enumerate(several):
        a.send({"number": number}, shelf.write({"down": payload}))
        message, got = b.receive()
        assert message == {"number": number}
        same(got["down"], payload)
    a.close()
    b.close()


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.from_regex(TENSOR_NAME, fullmatch=True), tensors(), max_size=4))
def test_a_message(payload: Payload) -> None:
    same(decode(encode(payload)), payload)


parts = st.builds(
    EncodedTensor,
    st.sampled_from([*WIRE_DTYPES, "complex64", "object", ""]),
    st.lists(st.integers(-2, 3) | st.sampled_from([2**31, 2**63, -(2**63)]), max_size=9).map(tuple),
    st.binary(max_size=40),
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(["w", "", "../w", "w\n", "x" * 65]) | st.text(max_size=5), parts, max_size=3))
def test_any_bytes_are_a_payload_or_malformed(message: dict[str, EncodedTensor]) -> None:
    with suppress(InvalidMessage):
        for name, t in decode(message).items():
            assert t.nbytes == len(message[name].data)


@settings(deadline=None, max_examples=200)
@given(payloads, st.data())
def test_a_damaged_file_is_a_payload_or_an_expected_error(payload: Payload, data: st.DataObject) -> None:
    content = bytearray(tensors_to_bytes(payload))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (content, content[:cut]):
        with suppress(SafetensorError):
            tensors_from_bytes(bytes(damaged))
