"""`python -m benchmarks [NAME...] [--out FILE]`: run them, print tables, write JSON."""

import argparse
import json
import platform
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

NAMES = ("start", "engine", "teacher", "scale")


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """One table; a ratio above its bound is marked."""
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
    """Run the named benchmarks, or all but the peers, which need environments of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], default=list(NAMES))
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks.json"))
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    for name in arguments.names:
        results[name] = import_module(f"benchmarks.{name}").measure()
        show(name, results[name])
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"figures in {arguments.out}")


if __name__ == "__main__":
    main()
