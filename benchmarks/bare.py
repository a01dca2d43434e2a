"""Lower bound: the same SGD steps in independent single-threaded processes, without a federation.

It uses `nn.Module` as in the papers, `torch.optim.SGD` and float tensors in memory. As a process, it trains its share
of a round for every line on standard input, and then prints a line.
"""

import json
import subprocess
import sys
from dataclasses import asdict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.federation import CLASSES, Work, pictures
from benchmarks.peers.task import Net


class Cnn3264(nn.Module):
    """CNN of FedNTD and FedLMD, with ReLU before pooling, as in their code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(4096, 512), nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


MODELS = {"cnn": Net, "cnn-32-64": Cnn3264}


def share(work: Work, clients: int, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Train some clients, one after another."""
    for _ in range(clients):
        optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for _ in range(work.epochs):
            for rows in torch.randperm(len(y)).split(work.batch):
                optimiser.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()


class Bare:
    """One process per worker, each with its share of the clients."""

    def __init__(self, work: Work, workers: int) -> None:
        sizes = [len(work.cohort[w::workers]) for w in range(workers)]
        command = [sys.executable, "-m", "benchmarks.bare", json.dumps(asdict(work))]
        self._all = [
            subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for n in sizes
        ]

    def round(self) -> None:
        """Train all shares at the same time."""
        for process in self._all:
            print("go", file=process.stdin, flush=True)
        for process in self._all:
            process.stdout.readline()  # type: ignore[union-attr]

    def close(self) -> None:
        """Stop the processes."""
        for process in self._all:
            process.communicate()


if __name__ == "__main__":
    torch.set_num_threads(1)
    work, clients = Work(**json.loads(sys.argv[1])), int(sys.argv[2])
    x, y = pictures(work.images)
    x = (x.float() / 255 - 0.5) / 0.25
    model = MODELS[work.model]()
    for _ in sys.stdin:
        share(work, clients, model, x, y)
        print("done", flush=True)
