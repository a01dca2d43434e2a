"""Compute the accuracy of rules under attack, and write the tables of `robustness.md`.

    python docs/make_robustness.py            # compute what robustness.json does not have, then write the tables
    python docs/make_robustness.py --tables   # write the tables only

Every run is stored in `robustness.json` when it ends: an interrupted computation continues.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import fedrecall as fr
from fedrecall.files import write_atomic
from fedrecall.runs.setup import prepare_run
from fedrecall.simulation.attacks import Backdoor

DOCS = Path(__file__).parent
PAGE, RECORDS = DOCS / "robustness.md", DOCS / "robustness.json"
CLIENTS, SHARE, SEEDS = 20, 0.2, (0, 1, 2)
ATTACKERS = round(SHARE * CLIENTS)

LOCAL = {"epochs": 2, "batch": 20, "lr": 0.1}
ROUNDS = 12
NEAR = 0.05  # an accuracy is bold within this distance of the plain mean without an attack

PARTITIONS: dict[str, dict[str, Any]] = {
    "Dirichlet 0.3": {"name": "dirichlet", "alpha": 0.3},
    "IID": {"name": "iid"},
}
ATTACKS: dict[str, dict[str, Any] | None] = {
    "no attack": None,
    "sign flip": {"name": "sign-flip", "scale": 4.0},
    "scaling": {"name": "scaling", "scale": 50.0},
    "label flip": {"name": "label-flip"},
    "ALIE": {"name": "alie", "z": 1.5},
    "IPM 0.5": {"name": "ipm", "epsilon": 0.5},
    "IPM 10": {"name": "ipm", "epsilon": 10.0},
    "Min-Max": {"name": "min-max"},
    "Mimic": {"name": "mimic"},
    "backdoor": {"name": "backdoor", "scale": 5.0},
}
COLUMNS = {"Dirichlet 0.3": tuple(ATTACKS), "IID": ("no attack", "sign flip", "ALIE", "IPM 0.5", "backdoor")}
TRIMMED_MEAN = {"name": "trimmed-mean", "share": SHARE}
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "median": {"robust": {"name": "median"}},
    "trimmed mean": {"robust": TRIMMED_MEAN},
    "geometric median": {"robust": {"name": "geometric-median"}},
    "clip": {"robust": {"name": "clip"}},
    "multi-krum": {"robust": {"name": "krum", "attackers": ATTACKERS, "keep": 10}},
    "mixing, trimmed mean": {
        "robust": TRIMMED_MEAN,
        "preaggregation": {"name": "nearest-neighbours", "attackers": ATTACKERS},
    },
    "bucketing, geometric median": {
        "robust": {"name": "geometric-median"},
        "preaggregation": {"name": "bucketing", "size": 2},
    },
}

Records = dict[str, dict[str, float]]


def experiment(rule: str, attack: str, partition: str, seed: int) -> dict[str, Any]:
    """Return the configuration of one cell and seed."""
    federation: dict[str, Any] = {"clients": CLIENTS, "partition": PARTITIONS[partition]}
    if (chosen := ATTACKS[attack]) is not None:
        federation["attack"] = {"share": SHARE, **chosen}
    return {
        "federation": federation,
        "server": {"weights": "uniform", **RULES[rule]},
        "local": LOCAL,
        "engine": {"name": "serial"},
        "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "seed": seed},
    }


def measure(config: dict[str, Any]) -> dict[str, float]:
    """Run a cell; return its accuracy, and for a backdoor the share of other classes predicted as the target."""
    result = fr.run(config)
    measured = {"accuracy": float(result.summary["final"])}
    attack = result.experiment.federation.attack
    if isinstance(attack, Backdoor):
        test = prepare_run(fr.Experiment(**config)).data.test
        others = test.subset((test.y != attack.target).nonzero().flatten())
        predicted = result.server.f.score(result.server.state, attack.with_trigger(others)).predicted
        measured["success"] = float((predicted == attack.target).double().mean())
    return measured


def cells() -> Iterator[tuple[str, str, str, int]]:
    """Yield every cell and seed."""
    for partition in PARTITIONS:
        for seed in SEEDS:
            for attack in COLUMNS[partition]:
                for rule in RULES:
                    yield rule, attack, partition, seed


def compute(records: Records) -> None:
    """Run what is missing, and store each run."""
    for rule, attack, partition, seed in cells():
        key = f"{partition} / {attack} / {rule} / {seed}"
        if key not in records:
            records[key] = measure(experiment(rule, attack, partition, seed))
            write_atomic(RECORDS, (json.dumps(records, indent=0) + "\n").encode())
            print(key, records[key], flush=True)  # noqa: T201


def averages(records: Records, partition: str, attack: str, rule: str, what: str = "accuracy") -> float:
    """Return the mean over the seeds."""
    return mean(records[f"{partition} / {attack} / {rule} / {seed}"][what] for seed in SEEDS)


def table(records: Records, partition: str) -> str:
    """Return the table of one partition, in per cent."""
    plain = averages(records, partition, "no attack", "none")
    head = ["rule", *COLUMNS[partition], "backdoor success"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for rule in RULES:
        accuracies = [averages(records, partition, attack, rule) for attack in COLUMNS[partition]]
        shown = [f"**{100 * a:.1f}**" if a > plain - NEAR else f"{100 * a:.1f}" for a in accuracies]
        success = 100 * averages(records, partition, "backdoor", rule, "success")
        lines.append(f"| {' | '.join([rule, *shown, f'{success:.0f}'])} |")
    return "\n".join(lines)


def main() -> None:
    """Compute, and write the tables between their marks in the page."""
    torch.set_num_threads(1)
    records: Records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    if "--tables" not in sys.argv:
        compute(records)
    page = PAGE.read_text()
    for partition in PARTITIONS:
        start, end = f"<!-- table {partition} -->\n", "\n<!-- end -->"
        before, _, rest = page.partition(start)
        page = before + start + "\n" + table(records, partition) + "\n" + rest[rest.index(end) :]
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
