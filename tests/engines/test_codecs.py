"""Payloads through every form they take: a file of memories, the shared memory between processes."""

import multiprocessing

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall.core.types import Payload
from fedrecall.engines.memory import packed, unpacked
from fedrecall.engines.shared import DTYPES, Channel, Shelf


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any type and shape, with any bits in it: NaN and infinity too; now and then not contiguous."""
    dtype = DTYPES[
        draw(st.sampled_from(["torch.float32", "torch.float64", "torch.int64", "torch.bool", "torch.uint8"]))
    ]
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    n = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.tensor(list(draw(st.binary(min_size=n, max_size=n))), dtype=torch.uint8)
    t = (raw % 2).bool()[:n] if dtype == torch.bool else raw.view(dtype)
    t = t.view(shape)
    return t.T if t.ndim == 2 and draw(st.booleans()) else t


payloads = st.dictionaries(st.text(max_size=12), tensors(), max_size=4)


def same(a: Payload, b: Payload) -> None:
    """The same names in the same order, types, shapes and bits."""
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
    same(unpacked(packed(payload)), payload)


@settings(deadline=None, max_examples=100)
@given(st.lists(payloads, min_size=1, max_size=3))
def test_shared_memory(several: list[Payload]) -> None:
    a, b = (Channel(connection) for connection in multiprocessing.Pipe())
    shelf = Shelf("place")
    for number, payload in enumerate(several):
        a.send({"number": number}, shelf.put({"down": payload}))
        message, got = b.receive()
        assert message == {"number": number}
        same(got["down"], payload)
    a.close()
    b.close()
