"""Accuracy of a federation compared with a plain loop on the pooled data: `python -m benchmarks.learning`.

IID clients train one epoch per round with adamw. The plain loop trains the same module with `torch.optim.AdamW` for as
many epochs. Ten clients train a GRU on the words of Debian package descriptions, or a small vision transformer on some
CIFAR-10 images. Clients have smaller batches, so that they make more steps on their part of the data; the
transformer's was chosen on another seed. It is trained until the plain loop gains nothing more: a federation learns
more slowly before that.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import load_dataset
from torch import Tensor

import fedrecall as fr
from fedrecall.core import seeds
from fedrecall.data.catalog import load_named
from fedrecall.models import MODELS

EVAL_BATCH = 500  # examples per batch of the evaluation


@dataclass(frozen=True)
class Case:
    """Data, model and settings of both trainings."""

    data: fr.Dataset
    model: dict[str, Any]
    clients: int
    epochs: int
    federated: dict[str, Any]  # batch and learning rate
    pooled: dict[str, Any]


def text_case(root: Path, words: int = 3000, length: int = 24) -> Case:
    """Return a GRU on the words of package descriptions."""
    files = {part: str(next((root / "debian_packages").glob(f"{part}-*.parquet"))) for part in ("train", "test")}
    parts = load_dataset("parquet", data_files=files)
    texts = {part: [re.findall(r"[a-z0-9+]+", text.lower()) for text in parts[part]["text"]] for part in files}
    counts = Counter(word for text in texts["train"] for word in text)
    ids = {word: i for i, (word, _) in enumerate(counts.most_common(words), 1)}  # 0 is padding

    def encode(text: Sequence[str]) -> list[int]:
        known = [ids[word] for word in text if word in ids][:length]
        return known + [0] * (length - len(known))

    x = {part: torch.tensor([encode(text) for text in texts[part]]) for part in files}
    y = {part: torch.tensor(parts[part]["label"]) for part in files}
    names = tuple(str(label) for label in range(int(y["train"].max()) + 1))
    data = fr.Dataset("debian-packages", x["train"], y["train"], x["test"], y["test"], names)
    model = {"name": "rnn", "vocabulary": words + 1, "embedding": 32, "width": 48}
    return Case(data, model, 10, 12, {"batch": 20, "lr": 1e-2}, {"batch": 50, "lr": 1e-2})


def image_case(root: Path, images: int = 5000) -> Case:
    """Return a small vision transformer on some images of CIFAR-10."""
    whole = load_named("cifar10", root=root)
    part = {"train_x": whole.train_x[:images], "train_y": whole.train_y[:images]}
    data = fr.Dataset(**{**{name: getattr(whole, name) for name in whole.__dataclass_fields__}, **part})
    model = {"name": "vit", "patch": 8, "width": 64, "depth": 3}
    return Case(data, model, 10, 24, {"batch": 10, "lr": 1e-3}, {"batch": 50, "lr": 1e-3})


def train_federated(case: Case, seed: int) -> float:
    """Return the final accuracy of FedAvg."""
    tables = {
        "federation": {"clients": case.clients, "partition": {"name": "iid"}},
        "data": {"aux_per_class": 0},
        "model": case.model,
        "local": {"optimiser": "adamw", "epochs": 1, "weight_decay": 0.01, **case.federated},
        "run": {"rounds": case.epochs, "seed": seed, "evaluate_every": case.epochs},
    }
    return float(fr.run(tables, data=case.data, progress=False).summary["final"])


def train_pooled(case: Case, seed: int) -> float:
    """Return the final accuracy of a plain loop, from the same initial weights."""
    data, settings = case.data, dict(case.model)
    with seeds.seeded_rng(seed, "init"):
        net = MODELS[settings.pop("name")](**settings).build(data.shape, data.num_classes)
    optimiser = torch.optim.AdamW(net.parameters(), case.pooled["lr"], weight_decay=0.01)
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(case.epochs):
        for rows in torch.randperm(len(data.train_y), generator=shuffle).split(case.pooled["batch"]):
            optimiser.zero_grad()
            F.cross_entropy(net(prepare(data, data.train_x[rows]))[1], data.train_y[rows]).backward()
            optimiser.step()
    return accuracy(net.eval(), data)


def prepare(data: fr.Dataset, x: Tensor) -> Tensor:
    """Return model inputs: normalised images, or token ids as they are."""
    return data.test_transform.apply(x, None)


@torch.no_grad()
def accuracy(net: torch.nn.Module, data: fr.Dataset) -> float:
    """Return the accuracy on the test set."""
    correct = sum(
        int((net(prepare(data, x))[1].argmax(-1) == y).sum())
        for x, y in zip(data.test_x.split(EVAL_BATCH), data.test_y.split(EVAL_BATCH), strict=True)
    )
    return correct / len(data.test_y)


def measure(cases: dict[str, Case], number: int) -> list[dict[str, Any]]:
    """Return one row per case: mean accuracies over seeds, in per cent, and their differences."""
    rows = []
    for name, case in cases.items():
        pairs = [(train_federated(case, seed), train_pooled(case, seed)) for seed in range(number)]
        federated, pooled = (100 * sum(values) / number for values in zip(*pairs, strict=True))
        differences = [round(100 * (a - b), 2) for a, b in pairs]
        row = {"case": name, "federated": federated, "pooled": pooled, "difference": federated - pooled}
        rows.append(row | {"by seed": differences})
        print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = {"text": text_case, "image": image_case}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=list(cases), default=list(cases))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    arguments = parser.parse_args()
    measure({name: cases[name](arguments.data) for name in arguments.cases}, arguments.seeds)
