"""Atomic writes, fsync, and tensors as safetensors bytes."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor


def write_atomic(path: Path, content: bytes) -> None:
    """Write to a temporary file, sync and rename: the path has the old content or the new, never a part."""
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
    """Wait until a file, or the entries of a folder, are on the disk: a power cut does not lose them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def tensors_to_bytes(payload: dict[str, Tensor]) -> bytes:
    """Serialise named tensors as a safetensors file.

    The file sorts its names: numbers before them keep the order. The tensors are copied, because the format has
    neither shared memory nor strides.
    """
    plain = (t.clone(memory_format=torch.contiguous_format) for t in payload.values())
    return dump_tensors({f"{i:03} {name}": t for i, (name, t) in enumerate(zip(payload, plain, strict=True))})


def tensors_from_bytes(content: bytes) -> dict[str, Tensor]:
    """Read the tensors of `tensors_to_bytes`, copied into memory that torch has aligned."""
    return {name[4:]: t.clone() for name, t in sorted(load_tensors(content).items())}
