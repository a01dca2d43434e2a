"""A refactor changes no bit: three rounds of every method, kept as small files.

`pytest tests/methods/test_golden.py --update-golden` writes the files anew, after a change that is meant to change
numbers. On another processor or torch version the last bits may differ, so there the curves are compared, not the bits.
"""

import hashlib
import json
import platform
import re
from pathlib import Path

import pytest
import torch

import fedrecall as fr

FOLDER = Path(__file__).parent / "golden"


def processor() -> str:
    """Its name, as far as the system tells: kernels are chosen by it."""
    file = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", file.read_text(), re.M) if file.exists() else []
    return names[0] if names else platform.processor()


def outcome(name: str) -> dict[str, object]:
    experiment = fr.Experiment(
        method={"name": name},
        federation={"clients": 12, "sample": 4, "partition": {"name": "dirichlet", "alpha": 0.1}},
        model={"name": "mlp", "hidden": [16]},
        local={"epochs": 2, "batch": 16},
        run={"rounds": 3},
    )
    result = fr.run(experiment)
    w = result.server.w
    return {
        "machine": f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()} {processor()}",
        "bits": hashlib.sha256(w.numpy().tobytes()).hexdigest(),
        "norm": float(w.norm()),
        "loss": [line["loss"] for line in result.rounds],
        "bytes": [[line["bytes_up"], line["bytes_down"]] for line in result.rounds],
        "clients": [line["clients"] for line in result.rounds],
    }


@pytest.mark.parametrize("name", fr.METHODS)
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
    if now["machine"] == golden["machine"]:
        assert now["bits"] == golden["bits"]
