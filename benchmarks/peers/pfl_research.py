"""Peer pfl-research: `SimulatedBackend` on torch.distributed (gloo), one process per core, as its speed guide advises.

The processes share a cohort, and their sums are reduced. The guide has two ways to start them, torchrun and environment
variables. The latter need no launcher, which would use additional memory. Users are `Dataset`s of tensors in memory,
the fastest form according to the guide. pfl uses a user's batches in their order, without shuffling.
"""

import copy
import os
import socket
import subprocess
import sys
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.job import Job
from benchmarks.peers.meter import Stopwatch
from benchmarks.peers.task import batch_loss, initial, pictures, save


class Trained(nn.Module):
    """Network with a loss method, as pfl requires."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.net = initial(job)
        self._job, self.steps = job, 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.net(x)
        return logits

    def loss(self, x: Tensor, y: Tensor, teacher: nn.Module | None = None) -> Tensor:
        """Return the loss of a batch."""
        self.steps += 1
        return batch_loss(self.net, teacher, x, y, self._job)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return one metric: pfl evaluates every user in the first round, which is not timed, and requires a metric."""
        from pfl.metrics import Weighted

        return {"examples": Weighted(len(y), len(y))}


def free_ports(n: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def run(job: Job, watch: Stopwatch | None) -> None:
    """Run all rounds, as one of the processes."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class FedNTD(FederatedAveraging):
        """Federated averaging whose users also evaluate the received model."""

        def __init__(self, teacher: nn.Module) -> None:
            super().__init__()
            self._teacher = teacher

        def train_one_user(self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
            """Train one user and return the update."""
            self._teacher.load_state_dict(dict(initial_model_state.items()))
            model.do_multiple_epochs_of(
                user_dataset, central_context.model_train_params, ntd_step, teacher=self._teacher
            )
            return model.get_model_difference(initial_model_state), Metrics()

    def ntd_step(net: Any, optimiser: Any, data: Any, train_kwargs: Any, _: Any, teacher: nn.Module) -> None:
        """Make one step of local training, without pfl's clipping and mixed precision."""
        net.loss(*data, teacher=teacher, **train_kwargs).backward()
        optimiser.step()
        optimiser.zero_grad()

    class Lap(TrainingProcessCallback[Any]):
        """Callback that reports the end of each round."""

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            """Report the end of a round."""
            if watch is not None:
                watch.lap()
            return False, Metrics()

    @cache
    def user(client: int) -> Dataset:
        """Return a user's data, created once in the process that trains the user."""
        return Dataset(pictures(job, client), user_id=str(client))

    net = Trained(job)
    if job.sample is not None:  # tensors stay in memory, as those of clients that are in every round
        for client in range(job.clients):
            user(client)
    model = PyTorchModel(
        model=net,
        local_optimizer_create=partial(torch.optim.SGD, momentum=job.momentum),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(job.clients))))
    algorithm = FedNTD(copy.deepcopy(net)) if job.method == "fedntd" else FederatedAveraging()
    algorithm.run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=job.epochs, local_learning_rate=job.lr
        ),
        callbacks=[Lap()],
        send_metrics_to_platform=False,
    )
    if watch is not None:
        save(net, job)
        mine = len(range(0, job.cohort, job.workers))  # clients of this process
        watch.report("pfl", "pfl", steps=net.steps / (mine * job.rounds))


def main(path: str) -> None:
    """Start the other processes and run as the first one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job, rank = Job.read(path), os.environ.get("PFL_WORKER_RANK")
    if rank is not None:
        run(job, None)
        return
    watch = Stopwatch(job)
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port}" for port in free_ports(job.workers))
    command = [sys.executable, "-m", "benchmarks.peers.pfl_research", path]
    others = [subprocess.Popen(command, env=os.environ | {"PFL_WORKER_RANK": str(i)}) for i in range(1, job.workers)]
    os.environ["PFL_WORKER_RANK"] = "0"
    try:
        run(job, watch)
    finally:
        for other in others:
            other.wait(timeout=60)


if __name__ == "__main__":
    main(sys.argv[1])
