"""Placement of workers on devices."""

import os
import sys

import torch

from fedrecall.errors import UserError


def worker_device(number: int, device: str = "auto") -> torch.device:
    """Return the device of a worker by its number.

    "cuda" takes the CUDA devices in turn, "cuda:1" is the second one for all workers, and "auto" is "cuda" if there is
    one, else the CPU. Raises a UserError if there is no such device.
    """
    count = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and not count):
        return torch.device("cpu")
    index = int(device.partition(":")[2] or number % max(1, count))
    if index >= count:
        found = f"{count} CUDA devices" if count else "no CUDA device"
        raise UserError(
            "engine.no_device",
            f'engine.device = "{device}": this machine has {found}',
            "engine.device",
            'set engine.device = "auto"',
        )
    return torch.device("cuda", index)


def default_workers(device: str = "auto") -> int:
    """Return the number of workers on this machine: one per core, or one per CUDA device."""
    if worker_device(0, device).type == "cpu":
        return available_cores()
    return 1 if ":" in device else torch.cuda.device_count()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def make_deterministic(device: torch.device) -> None:
    """Select deterministic kernels on a CUDA device; a kernel that has no such variant is named in a warning."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the device is first used
        torch.use_deterministic_algorithms(True, warn_only=True)
