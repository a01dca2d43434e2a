"""Command line: `python -m benchmarks [NAME...] [--out FILE]` runs benchmarks, prints tables and writes JSON."""

import argparse
import json
import os
import platform
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

NAMES = ("start", "engine", "small", "teacher", "precision", "adapters", "scale", "profile")


def surroundings() -> dict[str, Any]:
    """Return the machine and the versions, on which the figures depend."""
    cpu = next((v for k, v in _cpu_lines() if k == "model name"), platform.machine())
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "machine": {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "vector instructions": capability},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _cpu_lines() -> list[tuple[str, str]]:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """Print one table; a ratio above its bound is marked."""
    grid = Table(title=name, box=None, header_style="bold", title_justify="left")
    for column in rows[0]:
        grid.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        over = "bound" in row and row["ratio"] > row["bound"]
        cells = [
            f"{v:.3g}" if isinstance(v, float) and abs(v) < 1000 else f"{v:,.0f}" if isinstance(v, float) else str(v)
            for v in row.values()
        ]
        grid.add_row(*cells, style="bold red" if over else None)
    Console().print(grid)


def main() -> None:
    """Run the named benchmarks; by default all except the peers, which need separate environments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; without any, all")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks.json"))
    arguments = parser.parse_args()
    for name in set(arguments.names) - set(NAMES):
        parser.error(f"there is no benchmark {name!r}: choose from {', '.join(NAMES)}")
    results = surroundings()
    for name in arguments.names or NAMES:
        results[name] = import_module(f"benchmarks.{name}").measure()
        show(name, results[name])
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"figures in {arguments.out}")


if __name__ == "__main__":
    main()
