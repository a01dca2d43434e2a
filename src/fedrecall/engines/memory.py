"""What clients remember, in memory that does not grow with their number."""

import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors

from fedrecall.core.types import Payload

RECENT = 256 * 2**20  # bytes


class Memories(MutableMapping[int, Payload]):
    """A payload per client: the ones used last in memory, the others in safetensors files.

    A client that remembers nothing has no entry, so a method without memory costs nothing. The files are a part of
    this object, not a checkpoint: they are removed when it is closed.
    """

    def __init__(self, directory: Path | None = None, recent: int = RECENT) -> None:
        """Files go to a new folder in `directory` (None: the system's temporary one) once there are any."""
        self._parent = directory
        self._limit = recent
        self._recent: OrderedDict[int, Payload] = OrderedDict()  # the latest last
        self._size = 0  # bytes in _recent
        self._filed: set[int] = set()  # have a file
        self._changed: set[int] = set()  # whose file, if any, is out of date
        self._folder: Path | None = None
        self._remove: Callable[[], object] = lambda: None

    def __getitem__(self, client: int) -> Payload:
        if client not in self._recent:
            if client not in self._filed:
                raise KeyError(client)
            self._insert(client, _unpacked(self._path(client).read_bytes()))
        self._recent.move_to_end(client)
        return self._recent[client]

    def __setitem__(self, client: int, payload: Payload) -> None:
        if not payload:
            self.pop(client, None)
            return
        self._drop(client)
        self._changed.add(client)
        # A view would keep all that it is a view of.
        whole = {k: t if t.untyped_storage().nbytes() == t.nbytes else t.clone() for k, t in payload.items()}
        self._insert(client, whole)

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self._drop(client)
        self._changed.discard(client)
        if client in self._filed:
            self._filed.remove(client)
            self._path(client).unlink()

    def __contains__(self, client: object) -> bool:
        return client in self._recent or client in self._filed

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._recent.keys() | self._filed))

    def __len__(self) -> int:
        return len(self._recent.keys() | self._filed)

    def close(self) -> None:
        """Remove the files."""
        self._remove()
        self._folder = None
        self._filed.clear()

    def _insert(self, client: int, payload: Payload) -> None:
        self._recent[client] = payload
        self._size += _bytes(payload)
        while self._size > self._limit and len(self._recent) > 1:  # the one in use stays, however large
            oldest = next(iter(self._recent))
            if oldest in self._changed:
                self._file(oldest)
            self._drop(oldest)

    def _drop(self, client: int) -> None:
        self._size -= _bytes(self._recent.pop(client, {}))

    def _file(self, client: int) -> None:
        path = self._path(client)
        part = path.with_suffix(".part")
        part.write_bytes(_packed(self._recent[client]))
        part.replace(path)
        self._filed.add(client)
        self._changed.remove(client)

    def _path(self, client: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=".memory-", dir=self._parent))
            self._remove = weakref.finalize(self, _remove, self._folder, os.getpid())
        return self._folder / f"{client}.safetensors"


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has a copy of the object, and no business with the files
        shutil.rmtree(folder, ignore_errors=True)


def _packed(payload: Payload) -> bytes:
    """A payload as a safetensors file, which sorts its names: so they are numbered.

    The tensors are copied, because such a file has no two names for the same memory, and no strides.
    """
    plain = (t.clone(memory_format=torch.contiguous_format) for t in payload.values())
    return dump_tensors({f"{i:03} {name}": t for i, (name, t) in enumerate(zip(payload, plain, strict=True))})


def _unpacked(content: bytes) -> Payload:
    """The same, in memory that is aligned as torch aligns."""
    return {name[4:]: t.clone() for name, t in sorted(load_tensors(content).items())}


def _bytes(payload: Payload) -> int:
    return sum(t.nbytes for t in payload.values())
