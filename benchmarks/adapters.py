"""Adapters (LoRA) on a transformer of the size of MiniLM: bytes, memory, seconds against a plain loop of PEFT, teacher.

Seconds are those of the processor, of one thread, because transformers take long enough for other programs to disturb
the clock. Memory is the proportional set size (PSS): a page that n processes share counts 1/n in each.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F

import fedrecall as fr
from fedrecall.runs.run import Run
from fedrecall.runs.setup import Setup, prepare_run

CLASSES, VOCABULARY, TOKENS, BATCH = 19, 30522, 32, 32
LORA = {"r": 8, "alpha": 16, "targets": ["query", "value"]}
BOUND = 1.1  # of the seconds, compared with the plain loop
TURNS = 3


def write_base(folder: Path) -> None:
    """Write a transformer of the size of MiniLM (6 layers of width 384) with random weights."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    size = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
    BertModel(BertConfig(vocab_size=VOCABULARY, **size)).save_pretrained(folder)


def texts(n: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return token ids and labels. The time of a step does not depend on their values."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (n, TOKENS), generator=rng)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, torch.arange(n) % CLASSES


def federation(folder: Path, method: str, *, clients: int, engine: dict[str, object], full: bool = False) -> Setup:
    """Return a run of clients with two batches each."""
    x, y = texts(2 * BATCH * clients)
    few = {name: t[:2] for name, t in x.items()}
    model: dict[str, object] = {"name": "huggingface", "path": str(folder)}
    tables = {
        "model": model if full else model | {"lora": LORA},
        "federation": {"clients": clients, "partition": {"name": "iid"}},
        "local": {"epochs": 1, "batch": BATCH, "optimiser": "adamw", "lr": 0.002},
        "method": {"name": method},
        "engine": engine,
        "run": {"rounds": 100, "evaluate_every": 100},
    }
    return prepare_run(fr.Experiment(**tables), data=fr.from_arrays(x, y, test=(few, y[:2])))


def plain_loop(folder: Path, steps: int) -> Callable[[], None]:
    """Return a round of the same steps with PEFT and torch's AdamW."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=CLASSES)
    targets = {"r": LORA["r"], "lora_alpha": LORA["alpha"], "target_modules": LORA["targets"]}
    module = get_peft_model(base, LoraConfig(task_type=TaskType.SEQ_CLS, **targets)).train()  # type: ignore[arg-type]
    x, y = texts(BATCH * steps)

    def action() -> None:
        optimiser = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 0.002)
        for rows in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(**{name: t[rows] for name, t in x.items()}).logits, y[rows]).backward()
            optimiser.step()

    return action


def seconds_of(folder: Path) -> dict[str, float]:
    """Return the processor's seconds of a round: plain loop, FedAvg, FedLMD; they take turns, and the best counts."""
    torch.set_num_threads(1)
    serial = {"name": "serial"}
    with (
        Run(federation(folder, "fedavg", clients=2, engine=serial)) as fedavg,
        Run(federation(folder, "fedlmd", clients=2, engine=serial)) as fedlmd,
    ):
        rounds = iter(fedavg), iter(fedlmd)
        plain = plain_loop(folder, steps=4)
        actions = {"plain": plain, "fedavg": lambda: next(rounds[0]), "fedlmd": lambda: next(rounds[1])}
        best = dict.fromkeys(actions, float("inf"))
        for turn in range(TURNS + 1):
            for name, action in actions.items():
                began = time.process_time()
                action()
                if turn:  # the first is a warm-up
                    best[name] = min(best[name], time.process_time() - began)
    return best


def pss_megabytes() -> float:
    """Return the proportional set size of this process and its workers."""
    children = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    files = [Path("/proc/self/smaps_rollup"), *(Path(f"/proc/{pid}/smaps_rollup") for pid in children)]
    lines = (line for file in files for line in file.read_text().splitlines() if line.startswith("Pss:"))
    return sum(int(line.split()[1]) for line in lines) / 1024


def memory_of(folder: Path, method: str, workers: int) -> float:
    """Return the memory of a run after a round, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.adapters", str(folder), method, str(workers)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def row(case: str, value: float, compared: str, other: float, bound: float | None = None) -> dict[str, Any]:
    """Return a measurement and what it is compared with."""
    found = {"case": case, "value": value, "compared with": compared, "other": other, "ratio": value / other}
    return found | ({} if bound is None else {"bound": bound})


def measure() -> list[dict[str, Any]]:
    """Return one row per measurement."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_base(folder)
        base = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**20
        engine = {"name": "serial"}
        adapter, full = (
            4.0 * len(federation(folder, "fedavg", clients=1, engine=engine, full=whole).server.w)
            for whole in (False, True)
        )
        best = seconds_of(folder)
        one, three = (memory_of(folder, "fedavg", workers) for workers in (1, 3))
        taught = memory_of(folder, "fedlmd", 1)
    return [
        row("seconds of a round (4 steps), FedAvg", best["fedavg"], "plain loop of PEFT", best["plain"], BOUND),
        row("seconds of a round, FedLMD: a teacher", best["fedlmd"], "FedAvg", best["fedavg"]),
        row("bytes that a client sends, LoRA", adapter, "full model", full),
        row("MB of a run with one worker, FedAvg", one, "the base", base),
        row("MB of each further worker", (three - one) / 2, "the base", base),
        row("MB of a run with one worker, FedLMD", taught, "FedAvg", one),
    ]


if __name__ == "__main__":
    folder, method, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    pool = {"name": "pool", "workers": workers}
    with Run(federation(folder, method, clients=workers, engine=pool)) as run:
        next(iter(run))
        print(json.dumps(pss_megabytes()))
