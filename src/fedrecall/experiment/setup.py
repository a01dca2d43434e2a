"""From a configuration to everything a run needs, all of it checked before the first round."""

from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from fedrecall.core import seeds
from fedrecall.core.flat import Flat
from fedrecall.core.local import Training
from fedrecall.core.optim import SGD, Adaptive, Average, ServerOptimiser
from fedrecall.core.rounds import Plan
from fedrecall.core.types import Server
from fedrecall.data import own
from fedrecall.data.augment import transform_for
from fedrecall.data.auxiliary import auxiliary
from fedrecall.data.datasets import Dataset, load
from fedrecall.data.examples import Examples
from fedrecall.data.laws import Law
from fedrecall.data.partition import Partition, from_flower, make_partition
from fedrecall.engines.world import World
from fedrecall.errors import UserError
from fedrecall.experiment.config import Data, Experiment, ServerStep
from fedrecall.models import MODELS, Architecture
from fedrecall.models.own import adapt

T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """A federation that is ready to run."""

    experiment: Experiment  # complete: the model is named
    dataset: Dataset
    partition: Partition
    world: World
    server: Server
    plan: Plan


def setup(
    experiment: Experiment, *, data: object = None, model: nn.Module | None = None, partition: object = None
) -> Setup:
    """Load the data, deal it out, build the model; `data`, `model` and `partition` are a Python user's own."""
    dataset = read(experiment.data) if data is None else own.as_dataset(data)
    seed, federation = experiment.run.seed, experiment.federation
    chosen = seeds.numpy_generator(_or(experiment.run.partition_seed, seed), "auxiliary")
    aux_rows, client_rows = auxiliary(
        dataset.train_y.numpy(), experiment.data.aux_per_class, experiment.data.aux, chosen
    )
    transform = transform_for(experiment.data.augment, dataset.name, dataset.plain)
    everything = Examples(dataset.train_x, dataset.train_y, transform)
    pool = everything.take(torch.from_numpy(client_rows))
    dealt = deal(experiment, pool.y, None if dataset.train_groups is None else dataset.train_groups[pool.rows], partition)
    if len(dealt) != federation.clients:
        raise UserError(f"the partition has {len(dealt)} clients, but federation.clients = {federation.clients}")
    if model is None:
        experiment = complete(experiment, dataset)
    f = Flat(build(experiment, dataset, model))
    method = experiment.method
    world = World(
        method=method,
        training=training(experiment),
        train=pool,
        test=Examples(dataset.test_x, dataset.test_y, transform),
        partition=dealt,
        classes=dataset.num_classes,
        seed=seed,
        local_accuracy=experiment.run.local_accuracy,
    )
    server = Server(
        f=f,
        w=f.w,
        b=f.b,
        counters=f.counters,
        optimiser=server_optimiser(experiment.server),
        extra=method.init(f.w),
        weights=experiment.server.weights,
        aux=everything.take(torch.from_numpy(aux_rows)),
    )
    plan = Plan(
        rounds=experiment.run.rounds,
        population=federation.clients,
        sample=federation.cohort,
        seed=_or(experiment.run.sample_seed, seed),
        evaluate_every=experiment.run.evaluate_every,
    )
    return Setup(experiment, dataset, dealt, world, server, plan)


def read(data: Data) -> Dataset:
    """The examples that a configuration names."""
    if data.name == "folder":
        return own.from_folder(_required(data.path, "path", data), size=data.size, client=data.client is not None, test=data.test)
    if data.name == "table":
        return own.from_table(
            _required(data.path, "path", data), _required(data.label, "label", data), client=data.client, test=data.test
        )
    return load(data.name, root=data.root, classes=data.classes, size=data.size, limit=data.limit)


def deal(experiment: Experiment, labels: Tensor, groups: Tensor | None, partition: object) -> Partition:
    """Who has which of the clients' examples."""
    seed = _or(experiment.run.partition_seed, experiment.run.seed)
    ids = None if groups is None else groups.numpy()
    if isinstance(partition, Partition):
        return partition
    if partition is not None and not hasattr(partition, "assign"):
        return from_flower(partition, labels.numpy(), ids)
    law = experiment.federation.partition if partition is None else cast(Law, partition)
    rng = seeds.numpy_generator(seed, "partition")
    return make_partition(law, labels.numpy(), ids, experiment.federation.clients, rng, seed)


def complete(experiment: Experiment, dataset: Dataset) -> Experiment:
    """The experiment with its model named: where none is, a small CNN for images that allow it, else an MLP."""
    if experiment.model is not None:
        return experiment
    image = len(dataset.shape) == 3 and min(dataset.shape[1:]) >= 16
    return experiment.model_copy(update={"model": MODELS["cnn" if image else "mlp"]()})


def build(experiment: Experiment, dataset: Dataset, model: nn.Module | None) -> nn.Module:
    """A module whose initial weights depend on the seed alone, not on the method or on what ran before."""
    if model is not None:
        return adapt(model, Examples(dataset.train_x, dataset.train_y, dataset.plain).batch(slice(0, 2)))
    architecture = cast(Architecture, experiment.model)
    with seeds.fork(_or(experiment.run.init_seed, experiment.run.seed), "init"):
        return architecture.build(dataset.shape, dataset.num_classes)


def training(experiment: Experiment) -> Training:
    """How every client trains."""
    local = experiment.local
    sgd = SGD(local.lr, local.momentum, local.weight_decay, local.prox, local.lr_decay)
    return Training(local.epochs, local.batch, sgd, local.drop_last)


def server_optimiser(server: ServerStep) -> ServerOptimiser:
    """How the server moves towards the clients' mean."""
    if server.optimiser == "average":
        return Average(_or(server.lr, 1.0), server.momentum, server.damped, server.nesterov)
    return Adaptive(server.optimiser, _or(server.lr, 0.01), server.beta1, server.beta2, server.tau)


def _required(value: T | None, key: str, data: Data) -> T:
    if value is None:
        raise UserError(f'data.name = "{data.name}" needs data.{key}')
    return value


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
