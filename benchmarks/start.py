"""Start-up times: help, import, and the first round of the quickstart."""

import subprocess
import sys
from typing import Any

from benchmarks.timing import take_turns

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "fedrecall --help": ["-m", "fedrecall", "--help"],
    "import fedrecall": ["-c", "import fedrecall"],
    "import torch": ["-c", "import torch"],
    "quickstart, first round": ["-c", "import fedrecall as fr; fr.run(fr.Experiment(run={'rounds': 1}))"],
}


def measure() -> list[dict[str, Any]]:
    """Return one row per command."""

    def call(arguments: list[str]) -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    best = take_turns({name: lambda a=arguments: call(a) for name, arguments in COMMANDS.items()})
    return [{"command": name, "seconds": s} for name, s in best.items()]
