"""Numerical precision of local training: autocast to bfloat16, and the processors that have instructions for it."""

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from fedrecall.errors import UserError

Precision = Literal["fp32", "bf16"]

AUTOCAST_TYPES: dict[Precision, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}

ALLOW_SLOW = "FEDRECALL_ALLOW_SLOW"  # environment variable: "1" allows bf16 on processors without instructions for it

CPU_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of /proc/cpuinfo: Intel and AMD, Intel, ARM

AMX = "amx_bf16"

ONEDNN_LIMIT = "ONEDNN_MAX_CPU_ISA"  # environment variable of oneDNN, which reads it once, at its first operation
WITHOUT_AMX = "AVX512_CORE_FP16"  # value of ONEDNN_LIMIT: everything up to AMX

_AMX_PROBE = "import torch; m = torch.ones(64, 64, dtype=torch.bfloat16); m @ m"


@cache
def bf16_instructions() -> tuple[str, ...]:
    """Return the bf16 instruction sets of this processor that oneDNN may use. Known on Linux only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    limit = os.environ.get(ONEDNN_LIMIT, "").upper()
    excluded = {AMX} if limit.startswith(("SSE", "AVX")) and not limit.endswith(("AMX", "AMX_FP16")) else set()
    return tuple(flag for flag in CPU_FLAGS if flag in flags and flag not in excluded)


@cache
def amx_traps() -> bool:
    """Test whether the processor announces AMX, and a product of bf16 matrices ends its process (SIGILL).

    Some virtual machines announce AMX without the description of its tiles, by which oneDNN configures them. A process
    of its own computes the product.
    """
    if AMX not in bf16_instructions():
        return False
    probe = subprocess.run([sys.executable, "-c", _AMX_PROBE], capture_output=True, check=False)
    return probe.returncode == -signal.SIGILL


def require_working(precision: Precision, device: torch.device) -> None:
    """Raise a UserError for bf16 on a device that emulates it, or on a processor whose AMX instructions fail."""
    require_fast(precision, device)
    if precision == "bf16" and device.type == "cpu" and amx_traps():
        raise UserError(
            "engine.failing_precision",
            'local.precision = "bf16": this processor announces AMX, and its instructions end the process (SIGILL)',
            "local.precision",
            f"run with {ONEDNN_LIMIT}={WITHOUT_AMX} in the environment",
        )


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
