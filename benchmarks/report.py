"""`python -m benchmarks.report FILE...` makes docs/performance.md from the figures that benchmarks wrote."""

import json
import sys
from pathlib import Path
from typing import Any

TEXT = {
    "engine": "Seconds a round of the pool engine against the bare limit: the same SGD steps by as many independent "
    "single-thread processes with `nn.Module` and `torch.optim.SGD` over float tensors in memory, and no federation. "
    "Below 1 the training loop saves more than the federation costs.",
    "teacher": "Seconds a round of each method against FedAvg, 10 clients x 500 images x 5 epochs, 6/16 CNN. Without "
    "augmentation a teacher is heard once a round; with it, on every batch. On a shared machine such a ratio moves by "
    "0.03 to 0.05 from one run to the next.",
    "scale": "Time and peak memory of a round. Memory is summed over processes, shared pages counted in each.",
    "start": "What one waits for.",
    "profile": "Where the time of a client's FedAvg round goes, by torch's profiler, in percent of one thread's time. "
    "Convolutions, pooling and matrix products are the model's own arithmetic.",
    "peers": "The same work (6/16 CNN, 10 clients x 500 images x 5 epochs) in the plain loop of public repositories, "
    "in Flower's simulation and in pfl-research, each in an environment of its own (`make bench-peers`). `others` is "
    "how many cores were busy with something else during the best round.",
    "ratios": "fedrecall over the faster framework in seconds a round, and over the smaller one in peak memory.",
}


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(c)) for c in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    machine, versions = (", ".join(f"{k} {v}" for k, v in results[part].items()) for part in ("machine", "versions"))
    parts = [
        "# Performance",
        "Made by `make bench`, `make bench-peers` and `python -m benchmarks.report`. Things that are compared took "
        "turns in one run, the best of several turns each, because machines are shared and noisy: trust "
        "ratios, not seconds.",
        f"Machine: {machine}. Versions: {versions}.",
    ]
    for name, text in TEXT.items():
        if name in results:
            parts += [f"## {name.capitalize()}", text, table(results[name])]
    bounded = [row for name in TEXT for row in results.get(name, []) if "bound" in row]
    missed = sum(row["ratio"] > row["bound"] for row in bounded)
    parts.append(f"Of {len(bounded)} ratios with a bound, {len(bounded) - missed} are within it.")
    return "\n\n".join(parts) + "\n"


def _peer_versions(found: dict[str, Any]) -> dict[str, str]:
    """The frameworks that were run, and nothing that they are built on."""
    known = {name: v for run in found.get("runs", []) for name, v in run["versions"].items()}
    return {name: v for name, v in known.items() if name in ("flwr", "ray", "pfl")}


if __name__ == "__main__":
    merged: dict[str, Any] = {}
    for name in sys.argv[1:]:
        found = json.loads(Path(name).read_text())
        found["versions"] |= merged.get("versions", {}) | _peer_versions(found)
        merged |= found
    Path("docs/performance.md").write_text(page(merged))
