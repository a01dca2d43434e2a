"""Decoded data on disk: decode once, afterwards map the file into memory.

One safetensors file per data set, options and source. It is written under another name and renamed when it is complete,
carries a checksum that is verified whenever it is read, and is made under a file lock, so that two processes that start
at once decode once. A cache that cannot be used costs time, never the run.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

log = logging.getLogger(__name__)

CachedTensors = tuple[dict[str, Tensor], dict[str, str]]

"""Tensors, and what is known about them."""

_VERSION = 1  # raise it when the same source is decoded to something else


def cache_directory() -> Path:
    """$FEDRECALL_CACHE, else fedrecall in $XDG_CACHE_HOME, else ~/.cache/fedrecall."""
    if own := os.environ.get("FEDRECALL_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedrecall"


def checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes, bytes and what is known about them: a change of anything changes it."""
    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name].contiguous().numpy()
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()


def cache_path(name: str, key: Mapping[str, object]) -> Path:
    """Where the decoded data is, once it has been decoded."""
    text = json.dumps([_VERSION, name, dict(key)], sort_keys=True)
    return cache_directory() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"


def cached(name: str, key: Mapping[str, object], build: Callable[[], CachedTensors]) -> CachedTensors:
    """What `build` gives, from the disk if it is there. `key` is all that the result depends on."""
    path = cache_path(name, key)
    if (stored := _read(path)) is not None:  # needs no lock: a file with this name is complete
        return stored
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError as error:
        log.warning("cannot write to the cache %s (%s): decoding %s into memory", path.parent, error, name)
        return build()
    try:
        if (stored := _read(path)) is not None:  # made by another process while we waited
            return stored
        if path.exists():
            log.warning("the cache file %s is damaged: decoding %s again", path, name)
        return _save_and_map(path, build())
    finally:
        lock.release()


def _save_and_map(path: Path, stored: CachedTensors) -> CachedTensors:
    """Save, and hand back the mapped file, so that the copy in memory can go."""
    tensors, about = stored
    part = path.with_suffix(".part")
    try:
        save_file(tensors, part, metadata={"about": json.dumps(about), "checksum": checksum(tensors, about)})
        with part.open("rb") as f:
            os.fsync(f.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        log.warning("cannot write the cache file %s (%s): keeping the data in memory", path, error)
        return stored
    return _read(path) or stored


def _read(path: Path) -> CachedTensors | None:
    """The file's content, mapped and not copied; None if it is not there or not what was written."""
    try:
        with safe_open(path, framework="pt") as f:
            head = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118  (it is no dict)
        about: dict[str, str] = json.loads(head["about"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return (tensors, about) if checksum(tensors, about) == head.get("checksum") else None
