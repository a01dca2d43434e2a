"""`fedrecall doctor`: the state of the installation, and the explanation of error codes."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrecall._version import __version__
from fedrecall.cli import completion, output
from fedrecall.cli.options import JsonOption
from fedrecall.errors import UserError, explanations, first_line, unknown_name

if TYPE_CHECKING:
    from fedrecall.data.catalog import DatasetSpec

PACKAGE_FOLDER = Path(__file__).parents[1]

BYTES_PER_GB = 1e9

EXTRAS = {  # extra -> the distribution that it installs, and its purpose
    "flower": ("flwr", "real federations: fedrecall flower"),
    "ray": ("ray", 'clusters: engine.name = "ray"'),
    "flower-datasets": ("flwr-datasets", "Flower's partitioners"),
    "tensorboard": ("tensorboard", 'run.track = "tensorboard"'),
    "mlflow": ("mlflow-skinny", 'run.track = "mlflow"'),
    "wandb": ("wandb", 'run.track = "wandb"'),
    "privacy": ("dp-accounting", "epsilon of server.privacy"),
    "tune": ("optuna", "fedrecall tune"),
    "text": ("transformers", "texts and pretrained transformers"),
    "onnx": ("onnx", 'Result.export("onnx")'),
}

Report = dict[str, Any]

Rows = list[tuple[str, str]]  # a name, and its description


def doctor(
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Explain an error code instead, e.g. config.conflict.",
            autocompletion=completion.complete_error_codes,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check what is installed, what works, and what is missing.

    Packages, engines, workers, devices, memory, disk and data sets, each with how to get it.
    """
    if explain is not None:
        _explain(explain, as_json)
        return
    report = diagnose()
    if as_json:
        output.print_json(report)
    else:
        _print_report(report)
    if not report["ok"]:
        raise typer.Exit(1)


def diagnose() -> Report:
    """Return the state of the installation; "ok" is true if the library can run."""
    import torch

    from fedrecall.core.precision import amx_traps, bf16_instructions
    from fedrecall.simulation.devices import available_cores

    engines = {name: _try_engine(name) for name in ("serial", "pool")}
    engines |= {name: _check_package(name) for name in ("flower", "ray")}
    return {
        "ok": engines["serial"]["works"],
        "installed": {
            "fedrecall": __version__,
            "from": str(PACKAGE_FOLDER),
            "commit": _commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": platform.platform(),
        },
        "machine": {
            "workers": available_cores(),
            "threads": torch.get_num_threads(),
            "devices": _devices(),
            "bf16": list(bf16_instructions()),
            "amx_traps": amx_traps(),
            "shared_memory_free": _free_bytes(Path("/dev/shm")),
            "disk_free": _free_bytes(Path.cwd()),
        },
        "engines": engines,
        "extras": {extra: _check_extra(extra) for extra in EXTRAS},
        "data": _check_data(),
    }


def _explain(code: str, as_json: bool) -> None:
    known = explanations()
    if code not in known:
        area = code.partition(".")[0]
        near = [other for other in known if other.startswith(f"{area}.")] or known
        raise unknown_name("error code", code, near, "cli.unknown_error_code", "--explain")
    if as_json:
        output.print_json({"code": code, "explanation": known[code]})
    else:
        output.make_console().print(f"{code}: {known[code]}", markup=False, highlight=False)


def _try_engine(name: str) -> Report:
    """Run one round of two clients on an engine."""
    import torch

    from fedrecall import api
    from fedrecall.data.dataset import Dataset

    x, y = torch.arange(160.0).remainder(7).view(40, 4), torch.arange(40) % 2
    tables = {
        "data": {"aux_per_class": 0},
        "federation": {"clients": 2, "partition": {"name": "iid"}},
        "local": {"epochs": 1},
        "run": {"rounds": 1},
        "engine": {"name": name},
    }
    start = perf_counter()
    try:
        api.run(tables, data=Dataset("doctor", x, y, x[:4], y[:4], ("0", "1")), progress=False)
    except Exception as error:  # any failure is the finding
        return {"works": False, "why": first_line(error)}
    return {"works": True, "seconds": round(perf_counter() - start, 2)}


def _check_package(engine: str) -> Report:
    """Check that an engine's package is installed; without a federation or a cluster the engine cannot be tried."""
    found = _check_extra(engine)
    return {"works": found["version"] is not None} | found


def _check_extra(name: str) -> Report:
    package, purpose = EXTRAS[name]
    try:
        return {"version": version(package), "gives": purpose}
    except PackageNotFoundError:
        return {"version": None, "gives": purpose, "get": f"pip install '.[{name}]'"}


def _commit() -> str | None:
    """Return the commit of an installed checkout; None if the package is not one."""
    if not (PACKAGE_FOLDER.parents[1] / ".git").exists():
        return None
    command = ["git", "-C", str(PACKAGE_FOLDER), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _devices() -> list[str]:
    import torch

    cuda = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def _free_bytes(path: Path) -> int | None:
    """Return the free bytes of a file system; None if the path does not exist."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _check_data() -> Report:
    from fedrecall.data import cache
    from fedrecall.data.catalog import DATASETS

    folder = os.environ.get("FEDRECALL_DATA")
    root = Path(folder).expanduser() if folder else None
    return {
        "folder": folder,
        "folder_exists": root is not None and root.is_dir(),
        "cache": str(cache.cache_directory()),
        "sets": {name: _locate_dataset(name, spec, root) for name, spec in DATASETS.items()},
    }


def _locate_dataset(name: str, spec: "DatasetSpec", root: Path | None) -> dict[str, str | None]:
    """Return the location of a data set, or the way to get it."""
    from fedrecall.data import cache
    from fedrecall.data.catalog import locate_splits

    if not spec.folders:
        return {"found": "part of scikit-learn", "get": None}
    missing = f"missing: put it into $FEDRECALL_DATA/{spec.folders[0]}"
    if root is not None:
        try:
            locate_splits(name, spec, root)
        except UserError:
            return {"found": None, "get": missing}
        return {"found": "FEDRECALL_DATA", "get": None}
    if cache.cache_path(name, {"size": spec.size, "source": spec.repo}).exists():
        return {"found": "cache", "get": None}
    return {"found": None, "get": f"at first use, from the hub: {spec.repo}" if spec.repo else missing}


def _print_report(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    console = output.make_console()
    for title, rows in _sections(report):
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=19)
        table.add_column(overflow="fold")
        for name, description in rows:
            table.add_row(Text(f"  {name}"), Text(description))
        console.print(Text(title, style="bold"))
        console.print(table)
    output.print_line(console, "fedrecall can run here" if report["ok"] else "fedrecall cannot run here: see engines")


def _sections(report: Report) -> Iterator[tuple[str, Rows]]:
    yield "installed", _installed_rows(report["installed"], report["machine"])
    yield "machine", _machine_rows(report["machine"])
    yield "engines", [(name, _describe_engine(found)) for name, found in report["engines"].items()]
    yield "optional parts", [(name, _describe_extra(found)) for name, found in report["extras"].items()]
    yield "data", _data_rows(report["data"])


def _installed_rows(installed: Report, machine: Report) -> Rows:
    commit = f", commit {installed['commit']}" if installed["commit"] else ""
    return [
        ("fedrecall", f"{installed['fedrecall']}{commit}\n{installed['from']}"),
        ("Python", f"{installed['python']}, {installed['system']}"),
        ("torch", f"{installed['torch']}, {machine['threads']} threads; devices: {', '.join(machine['devices'])}"),
    ]


def _machine_rows(machine: Report) -> Rows:
    free = {"shared memory": machine["shared_memory_free"], "disk": machine["disk_free"]}
    slow = 'no instructions: local.precision = "bf16" would be up to 18 times slower on the CPU, and is refused'
    traps = "; AMX ends the process (SIGILL): set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" if machine["amx_traps"] else ""
    return [
        ("workers", f"{machine['workers']}, one per core; engine.workers sets another number"),
        ("bf16", f"instructions: {', '.join(machine['bf16'])}{traps}" if machine["bf16"] else slow),
        *((name, f"{size / BYTES_PER_GB:.1f} GB free") for name, size in free.items() if size is not None),
    ]


def _describe_engine(found: Report) -> str:
    if "seconds" in found:
        return f"works: a round of two clients took {found['seconds']} s"
    if "why" in found:
        return f"does not work: {found['why']}"
    return f"{found['version']} is installed, not tried" if found["version"] else f"missing: {found['get']}"


def _describe_extra(found: Report) -> str:
    state = f" ({found['version']})" if found["version"] else f"\nmissing: {found['get']}"
    return f"{found['gives']}{state}"


def _data_rows(data: Report) -> Rows:
    folder = f"{data['folder']}{'' if data['folder_exists'] else ' (no such folder)'}"
    return [
        ("FEDRECALL_DATA", folder if data["folder"] else "not set: a folder of data sets, for work offline"),
        ("cache", data["cache"]),
        *((name, found["found"] or found["get"]) for name, found in data["sets"].items()),
    ]
