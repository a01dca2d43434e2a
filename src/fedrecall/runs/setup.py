"""From an experiment to the setup of a run: data, partition, model, server and schedule, all of it validated."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedrecall.config.choices import PythonObject, require
from fedrecall.config.data_section import DataSection
from fedrecall.config.experiment import Experiment, FederationSection
from fedrecall.config.validation import check_number_of_clients
from fedrecall.core import seeds
from fedrecall.core.evaluation import HeldOutPart
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.private_part import private_names
from fedrecall.core.rounds import RoundSchedule
from fedrecall.core.types import Server, require_payload
from fedrecall.data.custom import as_dataset
from fedrecall.data.dataset import Dataset
from fedrecall.data.examples import Examples
from fedrecall.data.imbalance import with_imbalance
from fedrecall.data.partition import MAX_LISTED_CLIENTS, Partition, from_flower_partitioner, make_partition
from fedrecall.data.partitioners import Groups, Ints, Partitioner
from fedrecall.data.splits import hold_out_of_clients, split_auxiliary
from fedrecall.data.token_labels import label_per_example
from fedrecall.data.transforms import resolve_transform
from fedrecall.errors import UserError
from fedrecall.models import MODELS, Model
from fedrecall.models.adapt import adapt, call_by_name
from fedrecall.models.huggingface import HuggingFace
from fedrecall.runs.evaluation import evaluation_request, requested_metrics
from fedrecall.runs.probes import report_request
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.tensor_dict import Inputs, TensorDict, named_tensors

log = logging.getLogger(__name__)

UserModel = nn.Module | Callable[[], nn.Module]
"""A module with its weights, or a function that makes one, whose weights depend on the seed."""

MODEL_FILE = "model.safetensors"  # the global model in a run directory

BEST_MODEL_FILE = "best.safetensors"  # the global model of the best round by validation


class FederatedData(NamedTuple):
    """The data of a federation: examples of the clients and of the server."""

    dataset: Dataset
    client_examples: Examples  # of all clients; the partition assigns its rows to them
    auxiliary: Examples  # on the server
    test: Examples  # on the server; empty if it has none
    partition: Partition  # rows that the clients train on
    held_out: dict[HeldOutPart, Partition]  # rows held out from the clients, by part; without parts of share 0

    @property
    def client_names(self) -> tuple[str, ...] | None:
        """Names of the clients, if each of them is a group of the data; None if they have no names."""
        dataset = self.dataset
        if dataset.train_groups is None or self.partition.partitioner.get("name") != "groups":
            return None
        present = np.unique(dataset.train_groups.numpy())
        is_same = len(present) == len(self.partition) <= MAX_LISTED_CLIENTS
        return tuple(dataset.group_names[group] for group in present) if is_same else None

    @property
    def sample(self) -> Examples:
        """Some examples, for their form: of the test set, or of the clients if the server has none."""
        return self.test if len(self.test) else self.client_examples


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs."""

    experiment: Experiment  # with resolved choices: it names the model
    data: FederatedData
    clients: SimulatedClients
    server: Server
    schedule: RoundSchedule


def prepare_run(
    experiment: Experiment, *, data: object = None, model: UserModel | None = None, partition: object = None
) -> Setup:
    """Load and partition the data, build the model.

    `data`, `model` and `partition` are Python objects that replace those of the experiment.
    """
    federated = load_and_partition(experiment, data=data, partition=partition)
    return build_setup(with_resolved_choices(experiment, federated, data, model, partition), federated, model)


def build_setup(experiment: Experiment, federated: FederatedData, model: UserModel | None = None) -> Setup:
    """Build the model, the server and the schedule for partitioned data."""
    method = require(experiment.method)
    if method.traits.needs_auxiliary_data and not len(federated.auxiliary):
        raise UserError(
            "config.conflict",
            f"data.aux_per_class = {experiment.data.aux_per_class}: {type(method).__name__} needs auxiliary examples",
            "data.aux_per_class",
            "set data.aux_per_class, such as 32",
        )
    if method.traits.needs_one_label and federated.dataset.train_y.ndim > 1:
        message = f"method = {type(method).__name__}: it needs one label for each example, and tokens have labels here"
        raise UserError("method.needs_one_label", message, "method.name", "use another method, such as fedlmd")
    weights, classes = experiment.local.class_weights, federated.dataset.num_classes
    if isinstance(weights, tuple) and len(weights) != classes:
        message = f"local.class_weights: {len(weights)} weights, but the data has {classes} classes"
        raise UserError("config.conflict", message, "local.class_weights", f"set {classes} weights")
    if not len(federated.test):
        check_without_test(experiment)
    module, run = build_model(experiment, federated.dataset, model), experiment.run
    if run.start is not None:
        load_weights(module, run.start, "run.start")
    f = make_flat_model(experiment, module)
    if method.traits.needs_linear_head:
        _require_linear_head(f, _sample(federated.dataset))
    server = Server(
        f=f,
        w=f.w,
        b=f.b,
        int_buffers=f.int_buffers,
        optimiser=experiment.server.to_optimiser(),
        extra=require_payload(method.init(f.w), f"method = {type(method).__name__}: the result of init"),
        weights=experiment.server.reply_weighting,
        auxiliary=federated.auxiliary,
        seed=run.seed,
    )
    plan = RoundSchedule(
        rounds=run.rounds,
        population=len(federated.partition),
        sample=experiment.federation.clients_sampled,
        seed=run.seed_for("sample"),
        evaluate_every=run.evaluate_every,
        has_test=len(federated.test) > 0,
        logits=bool(requested_metrics(run)),
    )
    return Setup(experiment, federated, make_simulated_clients(experiment, federated), server, plan)


def make_flat_model(experiment: Experiment, module: nn.Module) -> FlatModel:
    """Return the model as a function of the vector that is shared, without the part that stays at the clients."""
    own, chosen = require(experiment.method).traits.private, experiment.federation.private
    if own is not None and chosen is not None:
        message = f"federation.private = {chosen}: {type(experiment.method).__name__} decides itself what is private"
        raise UserError("config.conflict", message, "federation.private", "remove federation.private")
    return FlatModel(module, private_names(module, chosen or own))


def check_without_test(experiment: Experiment) -> None:
    """Reject measurements on the server's test set, if it has none; warn if nothing at all is measured."""
    run, data = experiment.run, experiment.data
    request = report_request(run)
    confusion = [name for name in run.probes if name == "confusion"]
    if request.predictions or request.shift or request.features or confusion:
        key, value = ("run.local_accuracy", "true") if run.local_accuracy else ("run.probes", ", ".join(run.probes))
        message = f"{key} = {value}: it is measured on the server's test set, and there is none"
        raise UserError("config.conflict", message, key, f"remove {key}, or set data.test to more than 0")
    if not data.client_test and not data.validation:
        log.warning("there is no test set, and data.client_test and data.validation are 0: accuracy is not measured")


def make_simulated_clients(experiment: Experiment, federated: FederatedData) -> SimulatedClients:
    """Return the simulated clients of an experiment."""
    run = experiment.run
    return SimulatedClients(
        method=require(experiment.method),
        training=experiment.local.to_training(run.rounds),
        train=federated.client_examples,
        test=federated.test,
        partition=federated.partition,
        held_out=federated.held_out,
        classes=federated.dataset.num_classes,
        seed=run.seed,
        report=report_request(run),
        evaluation=evaluation_request(run, federated.dataset.num_classes),
        attack=experiment.federation.attack,
    )


def load_and_partition(experiment: Experiment, *, data: object = None, partition: object = None) -> FederatedData:
    """Load the data, draw the server's auxiliary examples, partition the others among the clients."""
    section, run = experiment.data, experiment.run
    dataset = (
        section.load(experiment.model, run.seed) if data is None else section.split_again(as_dataset(data), run.seed)
    )
    experiment = with_clients_of_data(experiment, dataset, data, partition)
    seed = run.seed_for("partition")
    federated = unassigned_data(section, dataset, experiment.federation.clients, seed)
    dataset, clients = federated.dataset, federated.client_examples
    groups = None if dataset.train_groups is None else dataset.train_groups[clients.rows].numpy()
    named_by_user = data is not None or section.may_name_clients
    labels = clients.example_labels.numpy()
    assigned = make_partition_for(experiment, labels, groups, seed, partition, shuffled=not named_by_user)
    if assigned.samples != len(clients):
        raise UserError(
            "partition.other_data",
            f"partition: it assigns {assigned.samples} examples, but the clients have {len(clients)} together",
            "partition",
            "make the partition for this data, data.aux and data.aux_per_class",
        )
    if len(assigned) != experiment.federation.clients:
        raise UserError(
            "config.conflict",
            f"federation.clients = {experiment.federation.clients}: the partition has {len(assigned)} clients",
            "federation.clients",
            f"set federation.clients = {len(assigned)}",
        )
    return hold_out_parts(section, federated._replace(partition=assigned), seed)


def unassigned_data(section: DataSection, dataset: Dataset, clients: int, seed: int) -> FederatedData:
    """Draw the server's auxiliary examples from the training part. No example is assigned to a client yet."""
    dataset = with_imbalance(dataset, section.imbalance, seeds.numpy_generator(seed, "imbalance"))
    aux, left = split_auxiliary(
        label_per_example(dataset.train_y), section.aux_per_class, section.aux, seeds.numpy_generator(seed, "auxiliary")
    )
    transform = resolve_transform(section.augment, dataset.name, dataset.test_transform)
    train = Examples(dataset.train_x, dataset.train_y, transform)
    test = Examples(dataset.test_x, dataset.test_y, transform)
    offsets = np.zeros(clients + 1, dtype=np.int64)
    unassigned = Partition(offsets[:0], offsets, len(left), {"name": "nodes"}, 0)
    return FederatedData(dataset, train.subset(left), train.subset(aux), test, unassigned, {})


def hold_out_parts(section: DataSection, federated: FederatedData, seed: int) -> FederatedData:
    """Hold out the examples for testing and validation from every client: first data.client_test, then validation."""
    shares: dict[HeldOutPart, float] = {"client_test": section.client_test, "validation": section.validation}
    if not any(shares.values()):
        return federated
    clients, units = federated.client_examples, federated.dataset.train_units
    rows = torch.arange(len(clients)) if clients.rows is None else clients.rows
    auxiliary = federated.auxiliary.rows if federated.auxiliary.rows is not None else rows
    in_units = None if units is None else units[rows].numpy()
    shared = np.isin(rows, auxiliary)
    if units is not None:  # the server knows other examples of these units
        shared = np.isin(units[rows], units[auxiliary])
    partition, held_out = federated.partition, dict[HeldOutPart, Partition]()
    for part, share in shares.items():
        if share:
            client_rng = partial(seeds.numpy_generator, seed, part)
            partition, held_out[part] = hold_out_of_clients(
                partition, share, client_rng, excluded=np.flatnonzero(shared), units=in_units, key=f"data.{part}"
            )
    return federated._replace(partition=partition, held_out=held_out)


def without_test(federated: FederatedData) -> FederatedData:
    """Return the data of a federation whose server has no test set."""
    dataset, none = federated.dataset, slice(0)
    test_groups = None if dataset.test_groups is None else dataset.test_groups[none]
    dataset = replace(dataset, test_x=dataset.test_x[none], test_y=dataset.test_y[none], test_groups=test_groups)
    return federated._replace(dataset=dataset, test=Examples(dataset.test_x, dataset.test_y, federated.test.transform))


def with_clients_of_data(experiment: Experiment, dataset: Dataset, data: object, partition: object) -> Experiment:
    """Return the experiment with the clients that the user's own data names, unless another partition is set.

    Data sets of the catalogue have groups too (writers, domains), which are divided among any number of clients.
    """
    federation, groups = experiment.federation, dataset.train_groups
    chosen = federation.partition if "partition" in federation.model_fields_set else Groups()
    own_data = data is not None or experiment.data.may_name_clients
    if partition is not None or groups is None or not own_data or not isinstance(chosen, Groups):
        check_number_of_clients(experiment)
        return experiment
    clients = len(np.unique(groups.numpy()))
    if "clients" in federation.model_fields_set and federation.clients != clients:
        raise UserError(
            "config.conflict",
            f"federation.clients = {federation.clients}: the data has {clients} clients "
            f"({', '.join(dataset.group_names[:5])}{', ...' if clients > 5 else ''})",
            "federation.clients",
            f"set {clients} or remove it, or set federation.partition.name to divide the data otherwise",
        )
    named = FederationSection(**dict(federation) | {"clients": clients, "partition": chosen})
    experiment = experiment.model_copy(update={"federation": named})
    check_number_of_clients(experiment)
    return experiment


def make_partition_for(
    experiment: Experiment, labels: Ints, groups: Ints | None, seed: int, partition: object, *, shuffled: bool = True
) -> Partition:
    """Return the partition of the clients' examples, by the configured partitioner or by a Python object.

    Clients that the user's data names have their rows in the order of the data, unless `shuffled`, as on a real node.
    """
    partition = require(experiment.federation.partition) if partition is None else partition
    if isinstance(partition, Partition):
        return partition
    if not hasattr(partition, "assign"):
        return from_flower_partitioner(partition, labels, groups, seed=seed)
    partitioner = cast(Partitioner, partition)
    rng = seeds.numpy_generator(seed, "partition")
    shuffled = shuffled or not isinstance(partitioner, Groups)
    clients = experiment.federation.clients
    return make_partition(partitioner, labels, groups, clients, rng=rng, seed=seed, shuffled=shuffled)


def with_resolved_choices(
    experiment: Experiment, federated: FederatedData, data: object, model: object, partition: object
) -> Experiment:
    """Return the experiment with Python objects named, and with defaults that depend on other settings.

    The default model is a small CNN for images of at least 16 x 16 pixels, otherwise an MLP, with embeddings for tables
    whose categories are integers.
    """
    experiment = with_clients_of_data(experiment, federated.dataset, data, partition)
    server = experiment.server.model_copy(update={"weights": experiment.server.reply_weighting})
    changes: dict[str, object] = {"server": server}
    if data is not None:
        changes["data"] = experiment.data.model_copy(update={"name": "own"})
    if partition is not None:
        named = PythonObject("partition", str(federated.partition.partitioner["name"]))
        changes["federation"] = experiment.federation.model_copy(update={"partition": named})
    if model is not None:
        changes["model"] = PythonObject("model", getattr(model, "__name__", type(model).__name__))
    else:
        changes["model"] = _resolved_model(experiment.model, federated.dataset)
    return experiment.model_copy(update=changes)


def _resolved_model(model: Model | PythonObject | None, dataset: Dataset) -> Model | PythonObject:
    shape = dataset.shape
    if model is None and any(column.integers for column in dataset.columns):
        model = MODELS["tabular"]()
    if isinstance(shape, dict) and not getattr(model, "takes_names", isinstance(model, PythonObject)):
        raise UserError(
            "model.unsupported_input",
            f"model: the data has several inputs ({', '.join(shape)}), which "
            + ("no default model takes" if model is None else f"{type(model).__name__} does not take"),
            "model",
            "pass a module whose forward has arguments of these names",
        )
    if model is None:
        is_image = isinstance(shape, tuple) and len(shape) == 3 and min(shape[1:]) >= 16
        return MODELS["cnn" if is_image else "mlp"]()
    return model.sized_for(dataset.num_values) if hasattr(model, "sized_for") else model


def build_model(experiment: Experiment, dataset: Dataset, model: UserModel | None) -> nn.Module:
    """Build the model. Its initial weights depend on the seed alone, so that all methods start from the same."""
    with seeds.seeded_rng(experiment.run.seed_for("init"), "init"):
        sample = _sample(dataset)
        chosen: object = model if model is not None else require(cast(Model | PythonObject, experiment.model))
        if not isinstance(chosen, Model):  # passed in Python, or own code that the configuration names
            module = instantiate(cast(UserModel, chosen))
            return adapt(module, sample, dataset.num_classes, copy=isinstance(chosen, nn.Module))
        module = chosen.build(dataset.shape, dataset.num_classes)
        if isinstance(sample, TensorDict):
            call_by_name(module, sample)
        return module


def _sample(dataset: Dataset) -> Inputs:
    """Return a small batch with the largest integer of each input, which an embedding must have a row for."""
    integers = [t for t in named_tensors(dataset.train_x, "").values() if t.dtype == torch.int64]
    largest = [int(t.view(len(t), -1).amax(1).argmax()) for t in integers]
    rows = torch.tensor([0, *largest]) if largest else slice(0, 2)
    return Examples(dataset.train_x, dataset.train_y, dataset.test_transform).batch(rows)


def _require_linear_head(f: FlatModel, x: Inputs) -> None:
    """Raise an error unless the logits are those of the last registered linear layer, applied to the features."""
    h, z = f(f.join(f.w, f.b), x)
    weights, classes = f.w[f.head], z.shape[1]
    if len(weights) in (classes * h.shape[1], classes * (h.shape[1] + 1)):
        matrix, bias = weights.tensor_split((classes * h.shape[1],))
        expected = h @ matrix.view(classes, -1).T + (bias if len(bias) else 0)
        if torch.allclose(expected, z, rtol=1e-3, atol=1e-4):
            return
    raise UserError(
        "model.no_head",
        "the linear layer that is registered last does not make the logits from the features, as this method needs",
        "model",
        "make the layer that returns the logits the last one in the module's __init__",
    )


def instantiate(model: UserModel) -> nn.Module:
    """Return a user's module, or the module that a user's class or function makes."""
    module: object = model() if callable(model) and not isinstance(model, nn.Module) else model
    if not isinstance(module, nn.Module):
        raise UserError(
            "model.not_a_module",
            f"model = {model!r}: not a torch module",
            "model",
            "pass a torch module, or a class or function without arguments that makes one",
        )
    return module


def weights_to_save(module: nn.Module, model: object) -> dict[str, Tensor]:
    """Return the tensors of a model file: the state of the module, without the base that a pretrained model has."""
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    left_out = frozen if isinstance(model, HuggingFace) else set[str]()
    return {name: t.clone() for name, t in module.state_dict().items() if name not in left_out}


def load_weights(module: nn.Module, path: Path, key: str | None = None) -> None:
    """Load the weights of a global model: a file, or the run directory that contains it, which `key` may name."""
    file = path / MODEL_FILE if path.is_dir() else path
    where = str(file) if key is None else f"{key} = {file}"
    try:
        tensors = safetensors.torch.load_file(file)
        frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}  # the file may lack a base
        module.load_state_dict(frozen | tensors)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError("model.unreadable_file", f"{where}: cannot read it: {reason}", key or str(file)) from None
    except RuntimeError as error:  # torch lists every mismatch on a line of its own
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise UserError(
            "model.wrong_weights",
            f"{where}: the weights are of another model: {first}",
            key or "model",
            "set the model that the file was made with",
        ) from None
