"""Command line: `python -m benchmarks.peers [--check] [--turns N] [--out FILE]`."""

import argparse
import json
from pathlib import Path

from benchmarks.__main__ import show, surroundings
from benchmarks.peers.run import PEERS, TASKS, check, measure, ratios

COLUMNS = {
    "peer": "peer",
    "task": "task",
    "s": "seconds_per_round",
    "others": "others_meanwhile",  # cores used by other programs during the best round: the figure is valid only near 0
    "peak MB": "peak_memory_mb",
    "loss": "train_loss",
}


def main() -> None:
    """Create the environments, run the peers, print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--turns", type=int, default=2, help="runs of each; the best counts")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine before a run")
    parser.add_argument("--check", action="store_true", help="first show that all do the same arithmetic")
    parser.add_argument("--tiny", action="store_true", help="a fiftieth of the work: to see that all of it runs")
    parser.add_argument("--out", type=Path, default=Path("build/peers.json"))
    arguments = parser.parse_args()
    results = surroundings()
    if arguments.check:
        results["check"] = check(arguments.peers, arguments.tasks)
        show("peers: distance from fedrecall's weights", results["check"])
    if arguments.turns:
        results["runs"] = measure(
            arguments.peers, arguments.tasks, arguments.turns, arguments.patience, tiny=arguments.tiny
        )
        results["peers"] = [{title: row[key] for title, key in COLUMNS.items()} for row in results["runs"]]
        results["ratios"] = ratios(results["runs"])
        show("peers", results["peers"])
        if results["ratios"]:
            show("peers: fedrecall over the frameworks", results["ratios"])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"figures in {arguments.out}")


if __name__ == "__main__":
    main()
