"""Numerical precision of local training: autocast to bfloat16, and the processors that have instructions for it."""

import os
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from fedrecall.errors import UserError

Precision = Literal["fp32", "bf16"]

AUTOCAST_TYPES: dict[Precision, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}

ALLOW_SLOW = "FEDRECALL_ALLOW_SLOW"  # environment variable: "1" allows bf16 on processors without instructions for it

CPU_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of /proc/cpuinfo: Intel and AMD, Intel, ARM


@cache
def bf16_instructions() -> tuple[str, ...]:
    """Return the bf16 instruction sets of this processor. Known on Linux only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    return tuple(flag for flag in CPU_FLAGS if flag in flags)


def require_fast(precision: Precision, device: torch.device) -> None:
    """Raise a UserError for bf16 on a device that emulates it, unless FEDRECALL_ALLOW_SLOW=1."""
    if precision == "fp32" or os.environ.get(ALLOW_SLOW) == "1":
        return
    if not (torch.cuda.is_bf16_supported() if device.type == "cuda" else bf16_instructions()):
        raise UserError(
            "engine.slow_precision",
            f'local.precision = "bf16": this {device.type} has no bf16 instructions, and is up to 18 times slower',
            "local.precision",
            'set local.precision = "fp32"',
        )
