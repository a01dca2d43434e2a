"""Disk cache of decoded data: images are decoded once, later loads map the file into memory.

There is one safetensors file per data set, options and source. It is written under a temporary name and renamed when
complete, and its checksum is verified at every read. A file lock ensures that concurrent processes decode only once. If
the cache cannot be used, data is decoded into memory and the run continues.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

log = logging.getLogger(__name__)

CachedTensors = tuple[dict[str, Tensor], dict[str, str]]
"""Tensors and metadata."""

CACHE_VERSION = 1  # part of the key: increase it when decoding changes


_node_cache: ContextVar[Path | None] = ContextVar("node cache", default=None)


@contextmanager
def node_cache(folder: Path) -> Iterator[None]:
    """Use this folder as the cache, and cache data of the user's own too; only its owner can read it."""
    token = _node_cache.set(folder)
    try:
        with suppress(OSError):  # `cached` warns of a folder that cannot be written
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    finally:
        _node_cache.reset(token)


def has_node_cache() -> bool:
    """Return True inside `node_cache`."""
    return _node_cache.get() is not None


def file_states(files: Iterable[Path]) -> list[list[str | int]]:
    """Return path, size and modification time of every file: the cache is invalid when any of these changes."""
    return [[str(file.resolve()), (state := file.stat()).st_size, state.st_mtime_ns] for file in files]


def cache_directory() -> Path:
    """Return the node's cache, else $FEDRECALL_CACHE, else fedrecall in $XDG_CACHE_HOME, else ~/.cache/fedrecall."""
    if (own := _node_cache.get()) is not None:
        return own
    if directory := os.environ.get("FEDRECALL_CACHE"):
        return Path(directory).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedrecall"


def checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Return the SHA-256 of the tensors' names, types, shapes and bytes, and of the metadata."""
    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name].contiguous().numpy()
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()


def cache_path(name: str, key: Mapping[str, object]) -> Path:
    """Return the path of the cache file for this data set and key."""
    text = json.dumps([CACHE_VERSION, name, dict(key)], sort_keys=True)
    return cache_directory() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"


def cached(name: str, key: Mapping[str, object], build: Callable[[], CachedTensors]) -> CachedTensors:
    """Return the result of `build`, from disk if it is cached. `key` holds everything that the result depends on."""
    path = cache_path(name, key)
    if (found := _read(path)) is not None:  # needs no lock: a file with this name is complete
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError as error:
        log.warning("cannot write to the cache %s (%s): decoding %s into memory", path.parent, error, name)
        return build()
    try:
        if (found := _read(path)) is not None:  # written by another process while this one waited for the lock
            return found
        if path.exists():
            log.warning("the cache file %s is damaged: decoding %s again", path, name)
        return _save_and_map(path, build())
    finally:
        lock.release()


def _save_and_map(path: Path, decoded: CachedTensors) -> CachedTensors:
    """Write the file and return it mapped into memory, so that the decoded copy can be freed."""
    tensors, about = decoded
    part = path.with_suffix(".part")
    try:
        save_file(tensors, part, metadata={"about": json.dumps(about), "checksum": checksum(tensors, about)})
        with part.open("rb") as f:
            os.fsync(f.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        log.warning("cannot write the cache file %s (%s): keeping the data in memory", path, error)
        return decoded
    return _read(path) or decoded


def _read(path: Path) -> CachedTensors | None:
    """Map the file into memory without a copy. Returns None if it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as f:
            head = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118  (not a dict)
        about: dict[str, str] = json.loads(head["about"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return (tensors, about) if checksum(tensors, about) == head.get("checksum") else None
