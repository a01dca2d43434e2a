"""Plain loop, as in the public code of this field: one process trains one client after another.

A `DataLoader` reads one PIL image per sample and transforms it; state dicts are deep copies in both directions; for
FedNTD a deep copy of the received model is evaluated on every batch. The transforms repeat the operations of
torchvision's `ToTensor` and `Normalize`, in the same order, without the package.
"""

import copy
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.job import MEAN, STD, Job
from benchmarks.peers.meter import Stopwatch
from benchmarks.peers.task import initial, save, train

State = dict[str, Tensor]


class Pictures(Dataset[tuple[Tensor, int]]):
    """Samples of one client."""

    def __init__(self, images: NDArray[Any], labels: NDArray[Any]) -> None:
        self._images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))  # the layout of CIFAR in memory
        self._labels = labels.tolist()
        self._mean, self._std = (torch.full((3, 1, 1), value) for value in (MEAN, STD))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        picture = np.array(Image.fromarray(self._images[i]))
        x = torch.from_numpy(picture).permute(2, 0, 1).contiguous().float().div_(255)
        return x.sub_(self._mean).div_(self._std), self._labels[i]


def average(states: list[State], sizes: list[int]) -> State:
    """Return the mean of the client models, weighted by size."""
    mean = copy.deepcopy(states[0])
    for name, value in mean.items():
        value.mul_(sizes[0] / sum(sizes))
        for state, size in zip(states[1:], sizes[1:], strict=True):
            value.add_(state[name] * (size / sum(sizes)))
    return mean


def client(net: nn.Module, received: State, loader: DataLoader[Any], job: Job) -> tuple[State, int]:
    """Train one client; return its model and the number of steps."""
    net.load_state_dict(received)
    teacher = copy.deepcopy(net) if job.method == "fedntd" else None
    steps = train(net, teacher, job, lambda: loader)
    return copy.deepcopy(net.state_dict()), steps


def main(job: Job) -> None:
    """Run all rounds."""
    watch = Stopwatch(job)
    torch.set_num_threads(1)  # faster than two on a network this small
    torch.manual_seed(0)
    net = initial(job)
    data = [
        Pictures(job.array("images")[rows], job.array("labels")[rows]) for rows in map(job.rows, range(job.clients))
    ]
    loaders = [DataLoader(pictures, job.batch, shuffle=True) for pictures in data]
    server, steps = copy.deepcopy(net.state_dict()), 0
    for _ in range(job.rounds):
        states, sizes = [], []
        for number in torch.randperm(job.clients)[: job.cohort].tolist():
            state, steps = client(net, server, loaders[number], job)
            states.append(state)
            sizes.append(len(data[number]))
        server = average(states, sizes)
        watch.lap()
    net.load_state_dict(server)
    save(net, job)
    watch.report("plain", "pillow", steps=steps)


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
