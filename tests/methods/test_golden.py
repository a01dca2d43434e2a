"""Golden runs: three rounds of every method, recorded in small files, so that a refactoring changes no bit.

Kernels differ by processor and torch version in the last bits, so each file has the bits by kind of processor. On a
kind without bits the curves are compared, and `pytest tests/methods/test_golden.py --add-golden-bits` records its bits.
`--update-golden` rewrites the files: only for a change that is meant to change numbers.
"""

import hashlib
import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrecall as fr

FOLDER = Path(__file__).parent / "golden"
METHODS = {name: {"name": name} for name in fr.METHODS} | {
    # At the default of 0.1 the gradient of an almost constant unit amplifies the last bits to a tenth of the norm.
    "feddecorr": {"name": "feddecorr", "beta": 0.01},
    "fedssd-squared": {"name": "fedssd", "weighting": "squared"},
}


def processor() -> str:
    """Return the kind of processor: torch chooses its kernels by it."""
    file = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", file.read_text(), re.M) if file.exists() else []
    name = names[0] if names else platform.processor()
    return f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()} {name}"


def outcome(name: str) -> dict[str, Any]:
    experiment = fr.Experiment(
        method=METHODS[name],
        federation={"clients": 12, "sample": 4, "partition": {"name": "dirichlet", "alpha": 0.1}},
        model={"name": "mlp", "hidden": [16]},
        local={"epochs": 2, "batch": 16},
        run={"rounds": 3},
    )
    result = fr.run(experiment)
    w = result.server.w
    return {
        "bits": {processor(): hashlib.sha256(w.numpy().tobytes()).hexdigest()},
        "norm": float(w.norm()),
        "loss": [line["train_loss"] if line["loss"] is None else line["loss"] for line in result.rounds],
        "bytes": [[line["bytes_up"], line["bytes_down"]] for line in result.rounds],
        "clients": [line["clients"] for line in result.rounds],
    }


@pytest.mark.parametrize("name", METHODS)
def test_golden_run(name: str, request: pytest.FixtureRequest) -> None:
    path, now = FOLDER / f"{name}.json", outcome(name)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(now, indent=1) + "\n")
    golden = json.loads(path.read_text())
    assert now["clients"] == golden["clients"]
    assert now["bytes"] == golden["bytes"]
    assert now["loss"] == pytest.approx(golden["loss"], rel=1e-3)
    assert now["norm"] == pytest.approx(golden["norm"], rel=1e-4)
    if request.config.getoption("--add-golden-bits"):
        path.write_text(json.dumps(golden | {"bits": now["bits"] | golden["bits"]}, indent=1) + "\n")
    elif processor() in golden["bits"]:
        assert now["bits"][processor()] == golden["bits"][processor()]
