"""Client of any peer in plain torch: the network, the loss, the local epochs."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.job import CLASSES, MEAN, STD, Job


class Net(nn.Module):
    """6/16 CNN with ReLU before pooling, as in its papers; 62,006 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class PflNet(nn.Module):
    """Network of pfl-research's CIFAR-10 benchmark (`simple_cnn`); 1,626,442 parameters."""

    def __init__(self, *, dropout: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.drop1, self.drop2 = nn.Dropout(0.25 if dropout else 0.0), nn.Dropout(0.5 if dropout else 0.0)
        self.fc1, self.fc2 = nn.Linear(12544, 128), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(self.drop2(F.relu(self.fc1(self.drop1(x).flatten(1)))))


def network(job: Job) -> nn.Module:
    """Return the network of a job, with random weights."""
    return PflNet(dropout=job.dropout) if job.network == "pfl" else Net()


def initial(job: Job) -> nn.Module:
    """Return the network with the common initial weights."""
    net = network(job)
    nn.utils.vector_to_parameters(torch.from_numpy(np.array(job.array("init"))), net.parameters())
    return net


def save(net: nn.Module, job: Job) -> None:
    """Write the final weights to the job's file."""
    if job.out:
        np.save(job.out, nn.utils.parameters_to_vector(net.parameters()).detach().numpy())


def pictures(job: Job, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's normalised pictures and its labels."""
    x = torch.from_numpy(np.array(job.array("images")[job.rows(client)])).float()
    return x.div_(255).sub_(MEAN).div_(STD), torch.from_numpy(np.array(job.array("labels")[job.rows(client)]))


def not_true(z: Tensor, y: Tensor) -> Tensor:
    """Return the logits of the classes other than the label."""
    others = torch.ones_like(z, dtype=torch.bool).scatter_(1, y.unsqueeze(1), False)
    return z[others].view(len(z), -1)


def ntd_loss(z: Tensor, z_g: Tensor, y: Tensor, job: Job) -> Tensor:
    """Return the cross-entropy plus beta times the divergence from the teacher on the not-true classes."""
    student, teacher = (not_true(logits, y) / job.tau for logits in (z, z_g))
    divergence = F.kl_div(F.log_softmax(student, 1), F.softmax(teacher, 1), reduction="batchmean")
    return F.cross_entropy(z, y) + job.beta * job.tau**2 * divergence


def batch_loss(net: nn.Module, teacher: nn.Module | None, x: Tensor, y: Tensor, job: Job) -> Tensor:
    """Return FedAvg's loss of a batch, or with a teacher FedNTD's; the teacher is evaluated on this batch."""
    z = net(x)
    if teacher is None:
        return F.cross_entropy(z, y)
    with torch.no_grad():
        z_g = teacher(x)
    return ntd_loss(z, z_g, y, job)


def shuffled(x: Tensor, y: Tensor, batch: int) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    """Yield the batches of an epoch, taken from tensors without a loader."""

    def epoch() -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(y)).split(batch):
            yield x.index_select(0, rows), y.index_select(0, rows)

    return epoch


def train(net: nn.Module, teacher: nn.Module | None, job: Job, epoch: Callable[[], Iterable[Sequence[Tensor]]]) -> int:
    """Train a client's local epochs; return the number of steps."""
    optimiser = torch.optim.SGD(net.parameters(), lr=job.lr, momentum=job.momentum)
    steps = 0
    for _ in range(job.epochs):
        for x, y in epoch():
            optimiser.zero_grad()
            batch_loss(net, teacher, x, y, job).backward()
            optimiser.step()
            steps += 1
    return steps
