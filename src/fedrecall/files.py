"""Atomic file writes, and tensors as safetensors bytes."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

MAX_SINGLE_SYNCS = 16  # files that are synced one by one

TEMPORARY_NAME = re.compile(r"\..+\.[a-z0-9_]{8}")  # as `write_atomic` names its temporary files


def write_atomic(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write to a temporary file, sync it and rename it: readers of the path see the old or the new content, no part.

    Without `sync` the content may be lost in a power failure until the caller calls `fsync_path`.
    """
    with naming_file(path), NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add the path to an error of the system that names no file, such as that of a failed write or sync."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def remove_temporary_files(folder: Path, name: str | None = None) -> None:
    """Remove what `write_atomic` left behind in processes that were killed: of one file, or of all in the folder.

    No other process may write these files.
    """
    for path in folder.rglob(".*") if name is None else folder.glob(f".{name}.*"):
        if TEMPORARY_NAME.fullmatch(path.name):
            path.unlink(missing_ok=True)


def fsync_files(paths: Sequence[Path]) -> None:
    """Flush files to the disk. Many files are flushed by one call for all of the system, which Linux waits for.

    A call for each file waits for the disk each time: for a thousand client states that took longer than the round.
    """
    if len(paths) > MAX_SINGLE_SYNCS and sys.platform == "linux":
        os.sync()
        return
    for path in paths:
        fsync_path(path)


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk, so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming_file(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def tensors_to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """Serialise named tensors as a safetensors file. The names get numbers, because safetensors sorts them.

    The tensors are copied: safetensors supports neither shared memory nor strides.
    """
    plain = (t.clone(memory_format=torch.contiguous_format) for t in tensors.values())
    return dump_tensors({f"{i:03} {name}": t for i, (name, t) in enumerate(zip(tensors, plain, strict=True))})


def tensors_from_bytes(content: bytes) -> dict[str, Tensor]:
    """Read tensors that `tensors_to_bytes` wrote, in their original order. The copies have torch's memory alignment.

    Raises a SafetensorError for other content.
    """
    try:
        return {name[4:]: t.clone() for name, t in sorted(load_tensors(content).items())}
    except RuntimeError as error:  # of torch, about a shape whose strides overflow
        raise SafetensorError(str(error)) from None


def parse_json(text: str) -> Any:
    """Parse JSON that another process wrote. Raises a ValueError for anything else, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
