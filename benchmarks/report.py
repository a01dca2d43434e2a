"""Writer of docs/performance.md: `python -m benchmarks.report FILE...` reads the results of the benchmarks."""

import json
import sys
from pathlib import Path
from typing import Any

TEXT = {
    "engine": "Seconds per round of the pool engine, compared with a lower bound without a federation: the same SGD "
    "steps in the same number of independent single-threaded processes, with `nn.Module` and `torch.optim.SGD` on "
    "float tensors in memory. A ratio below 1 means that the training loop saves more time than the federation costs.",
    "small": "The same comparison for many small clients, in the sizes of pfl-research's CIFAR-10 benchmark.",
    "teacher": "Seconds per round of each method, compared with FedAvg: 10 clients x 500 images x 5 epochs, 6/16 CNN. "
    "Without augmentation the teacher is evaluated once per round, with augmentation on every batch. On a shared "
    "machine such a ratio varies by 0.03 to 0.05 between runs.",
    "precision": 'Seconds per round of FedAvg with `local.precision = "bf16"`, compared with fp32. A processor without '
    "bf16 instructions emulates them, and runs refuse that. AVX512-BF16 saves a third of the time on an AMD EPYC of "
    "the fifth generation; on an Intel Xeon whose AMX did not work, oneDNN was limited to AVX512-BF16 and bf16 was "
    "slower. The ratio has a bound where the processor has bf16 instructions and all of them work. Rows with different "
    "instructions or bounds are of different machines.",
    "adapters": "LoRA of rank 8 on query and value of a transformer of the size of MiniLM (22.7 million weights, 32 "
    "texts of 32 tokens a step). Seconds are those of the processor, of one thread. Memory is the proportional set "
    "size of all processes, in which shared pages count once: workers and teachers share the base.",
    "scale": "Time and peak memory of a round. Memory is the sum over all processes; shared pages count in each "
    "process.",
    "start": "Start-up times.",
    "profile": "Distribution of the time of a client's FedAvg round, measured by torch's profiler, in per cent of one "
    "thread's time. Convolutions, pooling and matrix products are the arithmetic of the model.",
    "peers": "The same task in the plain loop of public repositories, in Flower's simulation and in pfl-research, each "
    "in a separate environment (`make bench-peers`). `fedavg` and `fedntd`: 6/16 CNN, 10 clients x 500 images x 5 "
    "epochs. `small`: pfl-research's published CIFAR-10 setting but for its network, 1,000 clients x 50 images, 50 per "
    "round, batches of 10, one epoch, learning rate 0.1, 6/16 CNN; `pfl-cnn`: the same with its network of 1,626,442 "
    "weights, 50 rounds. `others` is the number of cores that other programs used during the best round.",
    "ratios": "Seconds per round of fedrecall (the best, and the mean over all timed rounds) divided by those of a "
    "framework, by default of the faster one, and peak memory divided by that of the smaller one. With batches of 10 "
    "most of a client's time is spent in convolutions, pooling and matrix products (profile above), which pfl-research "
    "computes by the same kernels: `small` and `pfl-cnn` differ by the rest only. On an AMD EPYC of the fifth "
    "generation (0.153 s, pfl-research 0.162 s, Flower 0.629 s: ratios 0.95 and 0.24) the forward and backward passes "
    "of `small` alone, timed in one process and divided by two cores, take 0.123 s, 0.76 of pfl-research's round. "
    "Written out operation by operation, without autograd, they take 13 % less, 0.66 of it: the bound of 0.75 would "
    "leave 0.09 for rows, optimiser, messages and the average, which take 0.19. A later run on the same kind of "
    "processor has 0.71 for `fedavg` and 0.98 for `small`, and with the AVX2 kernels of torch, oneDNN and MKL on it "
    "0.81 and 0.89.",
}


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(c)) for c in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    machine, versions = (", ".join(f"{k} {v}" for k, v in results[part].items()) for part in ("machine", "versions"))
    parts = [
        "# Performance",
        "`make bench` and `make bench-peers` measure, and `python -m benchmarks.report` writes this page. Compared "
        "programs ran alternately in one session, and the best of several repetitions counts, because the machine is "
        "shared and noisy: rely on ratios, not on seconds.",
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
    """Return the versions of the compared frameworks, without their dependencies."""
    known = {name: v for run in found.get("runs", []) for name, v in run["versions"].items()}
    return {name: v for name, v in known.items() if name in ("flwr", "ray", "pfl")}


if __name__ == "__main__":
    merged: dict[str, Any] = {}
    for name in sys.argv[1:]:
        found = json.loads(Path(name).read_text())
        found["versions"] |= merged.get("versions", {}) | _peer_versions(found)
        for part, rows in found.items():  # peers may be measured task by task
            merged[part] = merged[part] + rows if isinstance(merged.get(part), list) else rows
    Path("docs/performance.md").write_text(page(merged))
