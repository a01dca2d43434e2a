"""Files that are whole or not there."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors

from fedrecall.core.types import Payload


def write_atomic(path: Path, content: bytes) -> None:
    """Write aside, sync, rename: whoever opens the path finds the old content or the new, never a part."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def fsync_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def tensors_to_bytes(payload: Payload) -> bytes:
    """A payload as a safetensors file, which sorts its names: so they are numbered.

    The tensors are copied, because such a file has no two names for the same memory, and no strides.
    """
    plain = (t.clone(memory_format=torch.contiguous_format) for t in payload.values())
    return dump_tensors({f"{i:03} {name}": t for i, (name, t) in enumerate(zip(payload, plain, strict=True))})


def tensors_from_bytes(content: bytes) -> Payload:
    """The same, in memory that is aligned as torch aligns."""
    return {name[4:]: t.clone() for name, t in sorted(load_tensors(content).items())}
