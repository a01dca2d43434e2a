"""Flower app in the form that `flwr new` writes for PyTorch: a ClientApp and a ServerApp with messages.

It is a separate module because a worker caches modules that it imports by name: the tensors of its clients stay in the
module, as the data set of Flower's examples stays in a global.
"""

import copy
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from benchmarks.peers.job import Job
from benchmarks.peers.meter import Stopwatch
from benchmarks.peers.task import initial, network, pictures, save, shuffled, train

client_app = ClientApp()


@cache
def job_at(path: str) -> Job:
    """Read the job, once in every worker."""
    torch.set_num_threads(1)
    return Job.read(path)


@cache
def partition(path: str, number: int) -> tuple[Tensor, Tensor]:
    """Return a client's tensors, created once in every worker that runs the client."""
    return pictures(job_at(path), number)


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    """Run one client's round."""
    path = str(message.content["config"]["job"])
    job = job_at(path)
    net = network(job)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    teacher = copy.deepcopy(net) if job.method == "fedntd" else None
    x, y = partition(path, int(context.node_config["partition-id"]))
    steps = train(net, teacher, job, shuffled(x, y, job.batch))
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """Flower's FedAvg, which reports the end of each round."""

    def __init__(self, watch: Stopwatch, clients: int, cohort: int) -> None:
        super().__init__(
            fraction_train=cohort / clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=clients,
        )
        self._watch = watch

    def aggregate_train(self, server_round: int, replies: list[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Return the mean of the replies."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None or metrics is None:
            raise RuntimeError(f"round {server_round}: no client has answered")
        self._watch.lap()
        return arrays, metrics


def server_app(path: str) -> ServerApp:
    """Run the server of a job."""
    job, app = Job.read(path), ServerApp()
    watch = Stopwatch(job)

    @app.main()
    def serve(grid: Grid, _: Context) -> None:
        torch.manual_seed(0)
        net = initial(job)
        found = Timed(watch, job.clients, job.cohort).start(
            grid=grid,
            initial_arrays=ArrayRecord(net.state_dict()),
            num_rounds=job.rounds,
            train_config=ConfigRecord({"job": path}),
        )
        net.load_state_dict(found.arrays.to_torch_state_dict())
        save(net, job)
        watch.report("flower", "flwr", "ray", steps=round(found.train_metrics_clientapp[job.rounds]["steps"], 6))

    return app
