"""Every random number comes from (seed, purpose, keys): no global generator is read, and none is left changed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch

Purpose = Literal[
    "partition", "auxiliary", "validation", "init", "sample", "batches", "augment", "module", "method", "absence",
    "attack", "noise", "tune",
]  # fmt: skip


def derive_seed(seed: int, purpose: Purpose, *keys: int) -> int:
    """The number that starts one independent stream, e.g. `stream(seed, "batches", round, client)`."""
    text = "/".join(map(str, (seed, purpose, *keys)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1  # torch wants an int64


def generator(seed: int, purpose: Purpose, *keys: int) -> torch.Generator:
    """A torch generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *keys))


def numpy_generator(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(derive_seed(seed, purpose, *keys))


def system_normal(n: int) -> torch.Tensor:
    """Standard normal numbers [n] from the system's entropy, which no seed gives again: for noise that protects."""
    bits = np.frombuffer(os.urandom(16 * n), dtype=np.uint64).reshape(2, n) >> 11
    u, v = (bits + 0.5) * 2.0**-53  # uniform, and never 0
    return torch.from_numpy(np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v))  # Box and Muller


@contextmanager
def seeded_rng(seed: int, purpose: Purpose, *keys: int) -> Iterator[None]:
    """Torch's global generator on this stream inside, and as it was before outside.

    For the code that knows no other: a module's initialisation, dropout. The processor's generator is set directly,
    because `torch.manual_seed` also keeps a stack trace for every device that is not in use yet.
    """
    number = derive_seed(seed, purpose, *keys)
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(number)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(number)
        yield


@contextmanager
def single_threaded() -> Iterator[None]:
    """One intra-op thread inside: what every engine computes with, so that all give the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
