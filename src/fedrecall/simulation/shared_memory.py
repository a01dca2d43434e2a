"""Tensors between processes without copies or pickles: written once into shared memory, read in place.

A message is a line of JSON over a socket pair; its tensors are in blocks of anonymous memory. Such a block has no name,
so nothing remains in /dev/shm when a process is killed.
"""

import errno
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

ALIGNMENT = 64  # bytes, as torch aligns: results may depend on it in the last bit

PAGE_SIZE = 4096

DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}

Message = dict[str, Any]  # JSON values

TensorEntry = tuple[str, str, list[int], int]  # name, type, shape, offset


class SharedBlock:
    """Memory that several processes have mapped."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        """Take over the file descriptor, which is closed with the block."""
        self.fd = fd
        self.size = size
        memory = mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        with warnings.catch_warnings():
            # torch has no read-only tensors. A write to this one kills the process: a client must not change the
            # broadcast of another client.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8)

    @classmethod
    def new(cls, size: int) -> "SharedBlock":
        """Make a writable block."""
        size = max(size + -size % PAGE_SIZE, PAGE_SIZE)
        fd = _anonymous()
        os.ftruncate(fd, size)
        return cls(fd, size, writable=True)

    def __del__(self) -> None:
        os.close(self.fd)

    def view(self, dtype: torch.dtype, shape: Iterable[int], start: int) -> Tensor:
        """Return a tensor in the memory of the block."""
        shape = torch.Size(shape)
        return self.bytes[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


class BlockRef(NamedTuple):
    """Payloads by name, and the block that holds them."""

    slot: str
    block: SharedBlock
    content: dict[str, list[TensorEntry]]


class SharedBuffer:
    """Buffer for payloads. Its block is replaced by a larger one when needed."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._block = SharedBlock.new(0)

    def write(self, payloads: dict[str, Payload]) -> BlockRef:
        """Write payloads, in place of the previous ones."""
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
        return BlockRef(self._slot, self._block, content)


class Channel:
    """One end of the connection between the engine and a worker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._blocks_sent: dict[str, SharedBlock] = {}  # by slot: mapped by the other end
        self._blocks_received: dict[str, SharedBlock] = {}

    def send(self, message: Message, *refs: BlockRef) -> None:
        """Send a message and references to its payloads, with the descriptors of blocks new to the other end."""
        new = [p for p in refs if self._blocks_sent.get(p.slot) is not p.block]
        listed = [(p.slot, p in new, p.content) for p in refs]
        self.connection.send_bytes(json.dumps([message, listed]).encode())
        for ref in new:
            reduction.send_handle(self.connection, ref.block.fd, None)
            self._blocks_sent[ref.slot] = ref.block

    def receive(self) -> tuple[Message, dict[str, Payload]]:
        """Receive the next message and its payloads: views, valid until the other end writes to the slot again."""
        message, refs = json.loads(self.connection.recv_bytes())
        payloads: dict[str, Payload] = {}
        for slot, new, content in refs:
            if new:
                fd = self._receive_descriptor()
                self._blocks_received[slot] = SharedBlock(fd, os.fstat(fd).st_size, writable=False)
            for group, entries in content.items():
                view = self._blocks_received[slot].view
                payloads[group] = {name: view(DTYPES[dtype], shape, start) for name, dtype, shape, start in entries}
        return message, payloads

    def _receive_descriptor(self) -> int:
        try:
            return reduction.recv_handle(self.connection)
        except RuntimeError as error:  # the system drops a descriptor that the limit of open files does not admit
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def _anonymous() -> int:
    """Open a file without a name, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedrecall")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
