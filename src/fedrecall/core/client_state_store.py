"""Client states, in memory that does not grow with the number of clients."""

import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from pathlib import Path

from safetensors import SafetensorError

from fedrecall.core.types import Payload, payload_bytes
from fedrecall.errors import UserError
from fedrecall.files import fsync_files, tensors_from_bytes, tensors_to_bytes, write_atomic

CACHE_BYTES = 256 * 2**20  # size limit of the states held in memory


class ClientStateStore(MutableMapping[int, Payload]):
    """Mapping from client to payload: the most recently used ones in memory, the others in safetensors files.

    A client without state has no entry, so a method without client state costs nothing. No file is written twice: a
    changed payload gets a new file, so that a checkpoint can name the files of its round. Files that no checkpoint has
    pinned belong to this object and are removed when it is closed.
    """

    def __init__(
        self, folder: Path | None = None, cache_bytes: int = CACHE_BYTES, files: Mapping[int, str] | None = None
    ) -> None:
        """Write files to `folder` (None: a temporary one, made when needed); `files` are those of a checkpoint."""
        self._folder = folder
        self._limit = cache_bytes
        self._recent: OrderedDict[int, Payload] = OrderedDict()  # least recently used first
        self._size = 0  # size of _recent in bytes
        self._files = dict(files or {})  # client -> name of its file
        self._dirty: set[int] = set()  # clients whose file is missing or out of date
        self._unsynced: set[str] = set()  # files that a power failure may lose
        self._pinned: frozenset[str] = frozenset(self._files.values())
        self._next_id = max((int(Path(name).stem.partition("-")[2]) for name in self._pinned), default=0)
        self._owner = os.getpid()
        self._remove: Callable[[], object] = lambda: None

    def __getitem__(self, client: int) -> Payload:
        if client not in self._recent:
            if client not in self._files:
                raise KeyError(client)
            self._insert(client, self._read(client))
        self._recent.move_to_end(client)
        return self._recent[client]

    def __setitem__(self, client: int, payload: Payload) -> None:
        if not payload:
            self.pop(client, None)
            return
        self._evict(client)
        self._dirty.add(client)
        # A view would keep the complete tensor in memory.
        copied = {k: t if t.untyped_storage().nbytes() == t.nbytes else t.clone() for k, t in payload.items()}
        self._insert(client, copied)

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self._evict(client)
        self._dirty.discard(client)
        self._delete_file(self._files.pop(client, None))

    def __contains__(self, client: object) -> bool:
        return client in self._recent or client in self._files

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._recent.keys() | self._files))

    def __len__(self) -> int:
        return len(self._recent.keys() | self._files)

    def flush(self) -> dict[int, str]:
        """Write all changed states to files that survive a power failure; return the file name of every client."""
        for client in sorted(self._dirty):
            self._spill(client)
        fsync_files([self._path(name) for name in self._unsynced & set(self._files.values())])
        self._unsynced.clear()
        return dict(self._files)

    def pin(self, names: Collection[str]) -> None:
        """Keep these files, which checkpoints refer to, even if states change; release the files pinned before."""
        released, self._pinned = self._pinned - frozenset(names), frozenset(names)
        for name in released - set(self._files.values()):
            self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the files that no checkpoint refers to."""
        if os.getpid() != self._owner:  # a forked process has a copy of the object and must not remove the files
            return
        for name in self._files.values():
            self._delete_file(name)
        self._remove()
        self._files.clear()

    def _read(self, client: int) -> Payload:
        path = self._path(self._files[client])
        try:
            return tensors_from_bytes(path.read_bytes())
        except (OSError, SafetensorError) as error:
            raise UserError(
                "run.unreadable_client_state",
                f"{path}: the state of client {client} cannot be read ({error})",
                str(path),
                "resume the run from its last checkpoint, or start a new run",
            ) from None

    def _insert(self, client: int, payload: Payload) -> None:
        self._recent[client] = payload
        self._size += payload_bytes(payload)
        while self._size > self._limit and len(self._recent) > 1:  # the state in use stays, of any size
            oldest = next(iter(self._recent))
            if oldest in self._dirty:
                self._spill(oldest)
            self._evict(oldest)

    def _evict(self, client: int) -> None:
        self._size -= payload_bytes(self._recent.pop(client, {}))

    def _spill(self, client: int) -> None:
        self._next_id += 1
        name = f"{client}-{self._next_id}.safetensors"
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, tensors_to_bytes(self._recent[client]), sync=False)
        self._unsynced.add(name)
        self._delete_file(self._files.get(client))
        self._files[client] = name
        self._dirty.remove(client)

    def _delete_file(self, name: str | None) -> None:
        if name is not None and name not in self._pinned:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedrecall-memory-"))
            self._remove = weakref.finalize(self, _remove_folder, self._folder, self._owner)
        return self._folder / name


def _remove_folder(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
