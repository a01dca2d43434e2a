"""The plain loop, as the public code of this field has it: one process, one client after another.

A `DataLoader` over samples that are a PIL image each and go through their transforms one by one; state dicts copied
deeply on their way up and down; for FedNTD a deep copy of the received model, asked at every batch. The transforms are
torchvision's `ToTensor` and `Normalize` in their own order of operations, without the package.
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
    """One client's samples."""

    def __init__(self, images: NDArray[Any], labels: NDArray[Any]) -> None:
        self._images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))  # as CIFAR's files are kept in memory
        self._labels = labels.tolist()
        self._mean, self._std = (torch.full((3, 1, 1), value) for value in (MEAN, STD))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        picture = np.array(Image.fromarray(self._images[i]))
        x = torch.from_numpy(picture).permute(2, 0, 1).contiguous().float().div_(255)
        return x.sub_(self._mean).div_(self._std), self._labels[i]


def average(states: list[State], sizes: list[int]) -> State:
    """The mean of the clients' models, weighted by their sizes."""
    mean = copy.deepcopy(states[0])
    for name, value in mean.items():
        value.mul_(sizes[0] / sum(sizes))
        for state, size in zip(states[1:], sizes[1:], strict=True):
            value.add_(state[name] * (size / sum(sizes)))
    return mean


def client(net: nn.Module, received: State, loader: DataLoader[Any], job: Job) -> tuple[State, int]:
    """One client's round: its model, and the number of its steps."""
    net.load_state_dict(received)
    teacher = copy.deepcopy(net) if job.method == "fedntd" else None
    steps = train(net, teacher, job, lambda: loader)
    return copy.deepcopy(net.state_dict()), steps


def main(job: Job) -> None:
    """All rounds."""
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
        states = []
        for loader in loaders:
            state, steps = client(net, server, loader, job)
            states.append(state)
        server = average(states, [len(pictures) for pictures in data])
        watch.lap()
    net.load_state_dict(server)
    save(net, job)
    watch.report("plain", "pillow", steps=steps)


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
