"""Tensors between processes, neither copied on the way nor pickled: written once into shared memory, read in place.

A message is a line of JSON over a socket pair; the tensors it speaks of lie in blocks of anonymous memory. Such a block
has no name, so nothing can be left behind in /dev/shm, however its processes end.
"""

import json
import mmap
import os
import tempfile
import warnings
from collections.abc import Iterable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedrecall.core.types import Payload

ALIGNMENT = 64  # bytes, as torch aligns: arithmetic may depend on it in the last bit

PAGE_SIZE = 4096

DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}

Message = dict[str, Any]  # what JSON can say

TensorEntry = tuple[str, str, list[int], int]  # name, type, shape, and where it begins


class SharedBlock:
    """A piece of memory that several processes have mapped."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        """Take over the file descriptor; it is open as long as the block is."""
        self.fd = fd
        self.size = size
        memory = mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        with warnings.catch_warnings():
            # torch has no read-only tensors. Writing to this one ends the process, which is better than a broadcast
            # that a client changes under another one's feet.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8)

    @classmethod
    def new(cls, size: int) -> "SharedBlock":
        """A block to write to."""
        size = max(size + -size % PAGE_SIZE, PAGE_SIZE)
        fd = _anonymous()
        os.ftruncate(fd, size)
        return cls(fd, size, writable=True)

    def __del__(self) -> None:
        os.close(self.fd)

    def view(self, dtype: torch.dtype, shape: Iterable[int], start: int) -> Tensor:
        """A tensor that lies in the block."""
        shape = torch.Size(shape)
        return self.bytes[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


class BlockRef(NamedTuple):
    """Payloads by name, and the block that they lie in."""

    slot: str
    block: SharedBlock
    content: dict[str, list[TensorEntry]]


class SharedBuffer:
    """A place to put payloads, one parcel at a time; its block is replaced by a larger one when they outgrow it."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._block = SharedBlock.new(0)

    def write(self, payloads: dict[str, Payload]) -> BlockRef:
        """Write payloads down; what was put before is gone."""
        content, size = dict[str, list[TensorEntry]](), 0
        for group, payload in payloads.items():
            content[group] = []
            for name, t in payload.items():
                content[group].append((name, str(t.dtype), list(t.shape), size))
                size += t.nbytes + -t.nbytes % ALIGNMENT
        if size > self._block.size:
            self._block = SharedBlock.new(size)
        for group, payload in payloads.items():
            for t, (_, _, _, start) in zip(payload.values(), content[group], strict=True):
                self._block.view(t.dtype, t.shape, start).copy_(t.detach())
        return BlockRef(self._place, self._block, content)


class Channel:
    """One end of the line between the engine and a worker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._blocks_sent: dict[str, SharedBlock] = {}  # by place: what the other end has mapped
        self._blocks_received: dict[str, SharedBlock] = {}

    def send(self, message: Message, *parcels: BlockRef) -> None:
        """Send a message and say where its payloads lie; a block that the other end does not know is handed over."""
        new = [p for p in parcels if self._blocks_sent.get(p.slot) is not p.block]
        listed = [(p.slot, p in new, p.content) for p in parcels]
        self.connection.send_bytes(json.dumps([message, listed]).encode())
        for parcel in new:
            reduction.send_handle(self.connection, parcel.block.fd, None)
            self._blocks_sent[parcel.slot] = parcel.block

    def receive(self) -> tuple[Message, dict[str, Payload]]:
        """The next message and its payloads: views, good until the other end puts something else there."""
        message, parcels = json.loads(self.connection.recv_bytes())
        payloads: dict[str, Payload] = {}
        for place, new, content in parcels:
            if new:
                fd = reduction.recv_handle(self.connection)
                self._blocks_received[place] = SharedBlock(fd, os.fstat(fd).st_size, writable=False)
            for group, entries in content.items():
                view = self._blocks_received[place].view
                payloads[group] = {name: view(DTYPES[dtype], shape, start) for name, dtype, shape, start in entries}
        return message, payloads

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


def _anonymous() -> int:
    """A file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedrecall")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
