"""From a configuration to everything a run needs, all of it checked before the first round."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from fedrecall.config.choices import PythonObject, require
from fedrecall.config.experiment import Experiment
from fedrecall.core import seeds
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.rounds import RoundSchedule
from fedrecall.core.types import Server
from fedrecall.data.custom import as_dataset
from fedrecall.data.dataset import Dataset
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition, from_flower_partitioner, make_partition
from fedrecall.data.partitioners import Ints, Partitioner
from fedrecall.data.splits import split_auxiliary
from fedrecall.data.transforms import resolve_transform
from fedrecall.errors import UserError
from fedrecall.models import MODELS, Model
from fedrecall.models.adapt import adapt
from fedrecall.runs.probes import report_request
from fedrecall.simulation.clients import SimulatedClients

T = TypeVar("T")

UserModel = (
    nn.Module | Callable[[], nn.Module]
)  # a module with its weights, or what makes one, whose weights are seeded

MODEL_FILE = "model.safetensors"  # the global model in a run directory


class FederatedData(NamedTuple):
    """Examples in their places."""

    dataset: Dataset
    client_examples: Examples  # all that the clients hold together, of which the partition gives rows
    auxiliary: Examples  # the server's
    test: Examples
    partition: Partition


@dataclass(frozen=True)
class Setup:
    """A federation that is ready to run."""

    experiment: Experiment  # complete: the model is named
    data: FederatedData
    clients: SimulatedClients
    server: Server
    schedule: RoundSchedule


def prepare_run(
    experiment: Experiment, *, data: object = None, model: UserModel | None = None, partition: object = None
) -> Setup:
    """Load the data, deal it out, build the model; `data`, `model` and `partition` are a Python user's own."""
    dealt = load_and_partition(experiment, data=data, partition=partition)
    return build_setup(with_resolved_choices(experiment, dealt, data, model, partition), dealt, model)


def build_setup(experiment: Experiment, dealt: FederatedData, model: UserModel | None = None) -> Setup:
    """Build the model and the server for examples that have been dealt out."""
    method = require(experiment.method)
    if method.traits.needs_auxiliary_data and not len(dealt.auxiliary):
        raise UserError(
            "config.conflict",
            f"data.aux_per_class = {experiment.data.aux_per_class}: {type(method).__name__} needs auxiliary "
            "examples",
            "data.aux_per_class",
            "set data.aux_per_class, such as 32",
        )
    module, run = build_model(experiment, dealt.dataset, model), experiment.run
    if run.start is not None:
        load_weights(module, run.start)
    f = FlatModel(module)
    server = Server(
        f=f,
        w=f.w,
        b=f.b,
        int_buffers=f.int_buffers,
        optimiser=experiment.server.to_optimiser(),
        extra=method.init(f.w),
        weights=experiment.server.weights,
        auxiliary=dealt.auxiliary,
    )
    plan = RoundSchedule(
        rounds=run.rounds,
        population=len(dealt.partition),
        sample=experiment.federation.clients_sampled,
        seed=run.seed_for("sample"),
        evaluate_every=run.evaluate_every,
    )
    return Setup(experiment, dealt, make_simulated_clients(experiment, dealt), server, plan)


def make_simulated_clients(experiment: Experiment, dealt: FederatedData) -> SimulatedClients:
    """What every client's task may look at."""
    run = experiment.run
    return SimulatedClients(
        method=require(experiment.method),
        training=experiment.local.to_training(),
        train=dealt.client_examples,
        test=dealt.test,
        partition=dealt.partition,
        classes=dealt.dataset.num_classes,
        seed=run.seed,
        report=report_request(run.probes, local_accuracy=run.local_accuracy, last=run.rounds - 1),
        attack=experiment.federation.attack,
    )


def load_and_partition(experiment: Experiment, *, data: object = None, partition: object = None) -> FederatedData:
    """Load the data, set the server's auxiliary examples aside or not, deal the rest out to the clients."""
    dataset = experiment.data.load() if data is None else as_dataset(data)
    seed = experiment.run.seed_for("partition")
    aux, left = split_auxiliary(
        dataset.train_y, experiment.data.aux_per_class, experiment.data.aux, seeds.numpy_generator(seed, "auxiliary")
    )
    transform = resolve_transform(experiment.data.augment, dataset.name, dataset.test_transform)
    train = Examples(dataset.train_x, dataset.train_y, transform)
    clients = train.subset(left)
    groups = None if dataset.train_groups is None else dataset.train_groups[left].numpy()
    dealt = make_partition_for(experiment, clients.y.numpy(), groups, seed, partition)
    if dealt.samples != len(clients):
        raise UserError(
            "partition.other_data",
            f"partition: it assigns {dealt.samples} examples, but the clients have {len(clients)} together",
            "partition",
            "make the partition for this data, data.aux and data.aux_per_class",
        )
    if len(dealt) != experiment.federation.clients:
        raise UserError(
            "config.conflict",
            f"federation.clients = {experiment.federation.clients}: the partition has {len(dealt)} clients",
            "federation.clients",
            f"set federation.clients = {len(dealt)}",
        )
    return FederatedData(
        dataset, clients, train.subset(aux), Examples(dataset.test_x, dataset.test_y, transform), dealt
    )


def make_partition_for(
    experiment: Experiment, labels: Ints, groups: Ints | None, seed: int, partition: object
) -> Partition:
    """Who has which of the clients' examples: by the configured law, or by a Python user's own object."""
    if isinstance(partition, Partition):
        return partition
    if partition is not None and not hasattr(partition, "assign"):
        return from_flower_partitioner(partition, labels, groups, seed=seed)
    law = require(experiment.federation.partition) if partition is None else cast(Partitioner, partition)
    rng = seeds.numpy_generator(seed, "partition")
    return make_partition(law, labels, groups, experiment.federation.clients, rng=rng, seed=seed)


def with_resolved_choices(
    experiment: Experiment, dealt: FederatedData, data: object, model: object, partition: object
) -> Experiment:
    """The experiment as it is really run: what was given in Python is named, and where no model is, one is chosen.

    A small CNN for images that allow it, else an MLP.
    """
    changes: dict[str, object] = {}
    if data is not None:
        changes["data"] = experiment.data.model_copy(update={"name": "own"})
    if partition is not None:
        own = PythonObject("partition", str(dealt.partition.partitioner["name"]))
        changes["federation"] = experiment.federation.model_copy(update={"partition": own})
    if model is not None:
        changes["model"] = PythonObject("model", getattr(model, "__name__", type(model).__name__))
    elif experiment.model is None:
        image = len(dealt.dataset.shape) == 3 and min(dealt.dataset.shape[1:]) >= 16
        changes["model"] = MODELS["cnn" if image else "mlp"]()
    return experiment.model_copy(update=changes)


def build_model(experiment: Experiment, dataset: Dataset, model: UserModel | None) -> nn.Module:
    """A module whose initial weights depend on the seed alone, not on the method or on what ran before."""
    with seeds.seeded_rng(experiment.run.seed_for("init"), "init"):
        if model is None:
            return require(cast(Model | PythonObject, experiment.model)).build(dataset.shape, dataset.num_classes)
        sample = Examples(dataset.train_x, dataset.train_y, dataset.test_transform).batch(slice(0, 2))
        return adapt(instantiate(model), sample, dataset.num_classes, copy=isinstance(model, nn.Module))


def instantiate(model: UserModel) -> nn.Module:
    """A Python user's own module, or what the class or function makes that was given in its place."""
    module: object = model() if callable(model) and not isinstance(model, nn.Module) else model
    if not isinstance(module, nn.Module):
        raise UserError(
            "model.not_a_module",
            f"model = {model!r}: not a torch module",
            "model",
            "pass a torch module, or a class or function without arguments that makes one",
        )
    return module


def load_weights(module: nn.Module, path: Path) -> None:
    """Take over the values of a model that a run left behind."""
    file = path / MODEL_FILE if path.is_dir() else path
    try:
        module.load_state_dict(safetensors.torch.load_file(file))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError("model.unreadable_file", f"run.start = {file}: cannot read it: {reason}", "run.start") from None
    except RuntimeError as error:  # torch lists all that does not fit, line by line
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise UserError(
            "model.wrong_weights",
            f"run.start = {file}: the weights are of another model: {first}",
            "run.start",
            "set the model that the file was made with",
        ) from None
