"""What is installed, what works here, where data is, and how to get what is missing."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fedrecall._version import __version__
from fedrecall.api import run
from fedrecall.data import cache
from fedrecall.data.catalog import DATASETS, DatasetSpec, locate_splits
from fedrecall.data.dataset import Dataset
from fedrecall.errors import UserError, first_line
from fedrecall.simulation.processes import available_cores

EXTRAS = {  # extra -> the distribution that makes it work, and what it gives
    "flower": ("flwr", "real federations: fedrecall flower"),
    "ray": ("ray", 'clusters: engine.name = "ray"'),
    "flower-datasets": ("flwr-datasets", "Flower's partitioners"),
    "tensorboard": ("tensorboard", 'run.track = "tensorboard"'),
    "mlflow": ("mlflow-skinny", 'run.track = "mlflow"'),
    "wandb": ("wandb", 'run.track = "wandb"'),
    "privacy": ("dp-accounting", "epsilon of server.privacy"),
    "tune": ("optuna", "fedrecall tune"),
}

Report = dict[str, Any]


def diagnose() -> Report:
    """All of it, as plain data; "ok" says whether the library can run."""
    engines = {name: _try_engine(name) for name in ("serial", "pool")}
    engines |= {name: _check_package(name) for name in ("flower", "ray")}
    return {
        "ok": engines["serial"]["works"],
        "installed": {
            "fedrecall": __version__,
            "from": str(Path(__file__).parents[1]),
            "commit": _commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": platform.platform(),
        },
        "machine": {
            "workers": available_cores(),
            "threads": torch.get_num_threads(),
            "devices": _devices(),
            "shared_memory_free": _free(Path("/dev/shm")),
            "disk_free": _free(Path.cwd()),
        },
        "engines": engines,
        "extras": {extra: _extra(extra) for extra in EXTRAS},
        "data": _data(),
    }


def _try_engine(name: str) -> Report:
    """Whether an engine runs a round of two clients, really."""
    x, y = torch.arange(160.0).remainder(7).view(40, 4), torch.arange(40) % 2
    tables = {
        "data": {"aux_per_class": 0},
        "federation": {"clients": 2, "partition": {"name": "iid"}},
        "local": {"epochs": 1},
        "run": {"rounds": 1},
        "engine": {"name": name},
    }
    began = perf_counter()
    try:
        run(tables, data=Dataset("doctor", x, y, x[:4], y[:4], ("0", "1")), progress=False)
    except Exception as error:  # whatever is broken here, that is the answer
        return {"works": False, "why": first_line(error)}
    return {"works": True, "seconds": round(perf_counter() - began, 2)}


def _check_package(name: str) -> Report:
    """Whether what an engine needs is installed; it is tried where there is a federation or a cluster."""
    found = _extra(name)
    return {"works": found["version"] is not None} | found


def _extra(name: str) -> Report:
    package, gives = EXTRAS[name]
    found = _version(package)
    return {"version": found, "gives": gives} | ({} if found else {"get": f"pip install 'fedrecall[{name}]'"})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the checkout that is installed, if it is one."""
    folder = Path(__file__).parents[1]
    if not (folder.parents[1] / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _devices() -> list[str]:
    cuda = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def _free(path: Path) -> int | None:
    """Bytes; None where there is no such place."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _data() -> Report:
    folder = os.environ.get("FEDRECALL_DATA")
    root = Path(folder).expanduser() if folder else None
    return {
        "folder": folder,
        "folder_exists": root is not None and root.is_dir(),
        "cache": str(cache.cache_directory()),
        "sets": {name: _locate_dataset(name, source, root) for name, source in DATASETS.items()},
    }


def _locate_dataset(name: str, source: DatasetSpec, root: Path | None) -> dict[str, str | None]:
    """Where a data set is, or how to get it."""
    if not source.folders:
        return {"found": "part of scikit-learn", "get": None}
    missing = f"missing: put it into $FEDRECALL_DATA/{source.folders[0]}"
    if root is not None:
        try:
            locate_splits(name, source, root)
        except UserError:
            return {"found": None, "get": missing}
        return {"found": "FEDRECALL_DATA", "get": None}
    if cache.cache_path(name, {"size": source.size, "source": source.repo}).exists():
        return {"found": "cache", "get": None}
    return {"found": None, "get": f"at first use, from the hub: {source.repo}" if source.repo else missing}
