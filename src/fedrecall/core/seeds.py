"""Seeds of all random numbers, computed from (seed, purpose, keys). No global generator is used or left changed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch

Purpose = Literal[
    "partition", "imbalance", "auxiliary", "client_test", "validation", "init", "sample", "batches", "augment",
    "module", "method", "server", "absence", "attack", "noise", "tune", "bucketing", "bootstrap",
]  # fmt: skip


def derive_seed(seed: int, purpose: Purpose, *keys: int) -> int:
    """Return the seed of one independent stream, such as `derive_seed(seed, "batches", round, client)`."""
    text = "/".join(map(str, (seed, purpose, *keys)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1  # torch needs an int64


def generator(seed: int, purpose: Purpose, *keys: int) -> torch.Generator:
    """Return a torch generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *keys))


def numpy_generator(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """Return a numpy generator for one purpose."""
    return np.random.default_rng(derive_seed(seed, purpose, *keys))


def system_normal(n: int) -> torch.Tensor:
    """Draw standard normal numbers [n] from the system's entropy, which no seed reproduces: for private noise."""
    bits = np.frombuffer(os.urandom(16 * n), dtype=np.uint64).reshape(2, n) >> 11
    u, v = (bits + 0.5) * 2.0**-53  # uniform, and never 0
    return torch.from_numpy(np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v))  # Box and Muller


@contextmanager
def seeded_rng(seed: int, purpose: Purpose, *keys: int) -> Iterator[None]:
    """Seed torch's global generator in a block, and restore it afterwards.

    For code that uses no other generator: initialisation of modules, dropout. The CPU generator is set directly,
    because `torch.manual_seed` also stores a stack trace for every device that is not initialised.
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
    """Use one intra-op thread in a block, as every engine does, so that all give the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
