import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from fedrecall.simulation import shared_memory
from fedrecall.simulation.shared_memory import Channel, SharedBlock, SharedBuffer

PAYLOAD = {
    "w": torch.randn(1000),
    "matrix": torch.randn(3, 5).T,  # not contiguous
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.empty(0),
    "count": torch.tensor([1, 2, 3]),
    "mask": torch.tensor([True, False, True]),
    "half": torch.randn(7).to(torch.bfloat16),
    "nothing": torch.empty(0, 4, dtype=torch.int64),
}


@pytest.fixture
def ends():
    a, b = (Channel(connection) for connection in multiprocessing.Pipe())
    yield a, b
    a.close()
    b.close()


def test_payloads_arrive_unchanged(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    a.send(
        {"n": 3, "loss": 0.1},
        SharedBuffer("one").write({"down": PAYLOAD, "empty": {}}),
        SharedBuffer("two").write({"memory": {}}),
    )
    message, payloads = b.receive()
    assert message == {"n": 3, "loss": 0.1}
    assert payloads["memory"] == payloads["empty"] == {}
    assert list(payloads["down"]) == list(PAYLOAD)
    for name, t in PAYLOAD.items():
        got = payloads["down"][name]
        assert got.dtype == t.dtype
        assert got.shape == t.shape
        assert torch.equal(got, t)
        assert got.data_ptr() % shared_memory.ALIGNMENT == 0 or not got.numel()


def test_a_block_is_sent_once_and_again_when_it_grew(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[int] = []
    original = shared_memory.reduction.send_handle
    monkeypatch.setattr(shared_memory.reduction, "send_handle", lambda *args: handed.append(args[1]) or original(*args))
    a, b = ends
    shelf = SharedBuffer("place")
    views = []
    for number, n in enumerate([10, 20, 100_000, 5]):
        a.send({}, shelf.write({"down": {"w": torch.full((n,), float(number))}}))
        views.append(b.receive()[1]["down"]["w"])
        assert torch.equal(views[-1], torch.full((n,), float(number)))
    assert len(handed) == 2
    assert (views[1] == 1).all(), "the old block lives as long as someone looks at it"
    assert (views[2][:5] == 3).all(), "the new one is used again"


def test_no_descriptor_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        a, b = (Channel(connection) for connection in multiprocessing.Pipe())
        a.send({}, SharedBuffer("x").write({"down": PAYLOAD}))
        b.receive()
        a.close()
        b.close()
    del a, b
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_systems_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    block = SharedBlock.new(10)
    block.bytes[:3] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    other = SharedBlock(os.dup(block.fd), block.size, writable=False)
    assert other.bytes[:3].tolist() == [1, 2, 3]
