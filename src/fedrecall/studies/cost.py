"""Cost of a study: sample passes of the clients, and an estimate of the hours on this machine.

Neither needs the data: the catalog states the sizes of named data sets.
"""

import os
from functools import cache
from itertools import pairwise
from time import process_time
from typing import NamedTuple

import torch
from torch import Generator

from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.core.method import Method
from fedrecall.core.rounds import run_rounds
from fedrecall.core.seeds import single_threaded
from fedrecall.data.catalog import DATASETS
from fedrecall.data.dataset import Dataset
from fedrecall.data.transforms import Transform, resolve_transform
from fedrecall.runs.probes import report_request
from fedrecall.runs.setup import prepare_run
from fedrecall.simulation import SerialEngine
from fedrecall.studies.study import Study

FORWARD_COST = 1 / 3  # of a training pass: evaluation without gradients

IMAGE_SIDES = {  # pixels, as stored
    "digits": 8,
    "mnist": 28,
    "fashion-mnist": 28,
    "cifar10": 32,
    "cifar100": 32,
    "cinic10": 32,
    "femnist": 28,
    "tiny-imagenet": 64,
    "office-caltech-10": 256,
}

FEMNIST_SUBSET_SIZES = {10: 382_705, 26: 431_572}  # digits only, letters only

FEMNIST_WRITERS = 3_597

TIMING_EXAMPLES = {"resnet50": 4, "alexnet": 8, "mobilenet": 16}  # examples to time a large model with

TIMING_BATCH = 64

# Timed in a tenth of a second; the costs of the papers' other networks are known relative to it.
REFERENCE_NETWORK = ("cnn", (3, 32, 32))

RELATIVE_COST: dict[tuple[str, tuple[int, ...]], float] = {  # measured in batches of 64
    REFERENCE_NETWORK: 1.0,
    ("cnn", (1, 28, 28)): 0.6,
    ("cnn-32-64", (3, 32, 32)): 7.0,
    ("cnn-32-64", (1, 28, 28)): 5.0,
    ("resnet8", (3, 32, 32)): 7.5,
    ("mobilenet", (3, 32, 32)): 42.0,
    ("resnet50", (1, 28, 28)): 510.0,
    ("resnet50", (3, 32, 32)): 970.0,
    ("resnet50", (3, 64, 64)): 4500.0,
    ("alexnet", (3, 256, 256)): 480.0,
}


# ResNet-50 on 32 x 32 pixels needs 7.8 GFLOP for a training pass, 970 times the reference network's cost.
GPU_SECONDS = 7.8e9 / 10e12 / 970  # per training pass of the reference network, at 10 TFLOP/s

GPU_OVERHEAD = 2e-5  # seconds per example: launches of kernels, data loading


class Cost(NamedTuple):
    """Total cost of all runs of a study."""

    runs: int
    passes: float
    """Examples that clients train on, with repetition."""


class _DataFacts(NamedTuple):
    """Sizes and shapes of a run's data."""

    train: int
    test: int
    shape: tuple[int, ...]
    plain: Transform


def cost(study: Study) -> Cost:
    """Compute rounds x clients per round x local epochs x examples per client, summed over all runs."""
    return Cost(len(study.experiments), sum(map(sample_passes, study.experiments.values())))


def sample_passes(experiment: Experiment) -> float:
    """Compute the sample passes of one run."""
    federation = experiment.federation
    rounds_per_client = experiment.run.rounds * federation.clients_per_round / federation.clients
    return rounds_per_client * experiment.local.epochs * _data_facts(experiment).train


def estimated_hours(study: Study) -> float:
    """Estimate the hours on this machine's processors from a few timed steps of a network.

    With augmentation a teacher is evaluated on every batch, which adds a third of a training pass; without it, once a
    round. All cores are used, as far as a round has clients for them.
    """
    return sum(map(_seconds, study.experiments.values())) / 3600


def estimated_gpu_hours(study: Study) -> float:
    """Estimate the hours on one GPU that sustains 10 TFLOP/s; small networks are limited by their overhead."""
    seconds = 0.0
    for experiment in study.experiments.values():
        facts = _data_facts(experiment)
        relative = RELATIVE_COST.get(_network(experiment, facts), 1.0)
        seconds += _work(experiment, facts) * max(GPU_SECONDS * relative, GPU_OVERHEAD)
    return seconds / 3600


def describe_cost(study: Study) -> str:
    """Return the cost of a study as a sentence."""
    hours = estimated_hours(study)
    duration = f"{max(1, round(60 * hours))} min" if hours < 1 else f"{format_estimate(hours)} h"
    passes = format_estimate(cost(study).passes / 1e6)
    return (
        f"{passes} million examples to train on, counted in every epoch; about {duration} on this machine for all runs"
    )


def format_estimate(number: float) -> str:
    """Return a number with few digits, as an estimate has."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}" if number >= 0.1 else "< 0.1"


def _work(experiment: Experiment, facts: _DataFacts) -> float:
    """Return the passes of a run, evaluations counted as parts of a training pass."""
    federation, local, run = experiment.federation, experiment.local, experiment.run
    augmented = resolve_transform(experiment.data.augment, experiment.data.name, facts.plain).is_random
    method = type(experiment.method) if isinstance(experiment.method, Method) else Method
    teacher = FORWARD_COST if augmented and method.frozen is not Method.frozen else 0.0
    gradients = 1 if method.perturbation is Method.perturbation else 2  # per step
    report = report_request(run)
    client_evaluations = federation.clients_per_round * (report.predictions + report.shift * local.epochs)
    evaluations = run.rounds * (1 / run.evaluate_every + client_evaluations / run.probe_every)
    return sample_passes(experiment) * (gradients + teacher) + evaluations * facts.test * FORWARD_COST


def _network(experiment: Experiment, facts: _DataFacts) -> tuple[str, tuple[int, ...]]:
    """Return the name of the model and the shape of its inputs."""
    if experiment.model is None:
        name = "cnn" if len(facts.shape) == 3 and min(facts.shape[1:]) >= 16 else "mlp"
    else:
        name = CHOICES["model"].dump(experiment.model)["name"]
    return name, facts.shape


def _seconds(experiment: Experiment) -> float:
    facts = _data_facts(experiment)
    network = _network(experiment, facts)
    if network in RELATIVE_COST:
        per_example = RELATIVE_COST[network] * _seconds_per_example(*REFERENCE_NETWORK, False)
    else:
        augmented = resolve_transform(experiment.data.augment, experiment.data.name, facts.plain).is_random
        per_example = _seconds_per_example(*network, augmented)
    cores = min(os.cpu_count() or 1, experiment.federation.clients_per_round)
    return _work(experiment, facts) * per_example / cores


def _data_facts(experiment: Experiment) -> _DataFacts:
    data = experiment.data
    if data.name not in DATASETS:
        dataset = data.load(experiment.model)
        shape = dataset.shape if isinstance(dataset.shape, tuple) else next(iter(dataset.shape.values()))
        return _DataFacts(len(dataset.train_y), len(dataset.test_y), shape, dataset.test_transform)
    source = DATASETS[data.name]
    side = data.size or IMAGE_SIDES[data.name]
    shape = (source.channels, side, side)
    if len(source.sizes) == 2:
        return _DataFacts(*source.sizes, shape, source.test_transform)
    total = FEMNIST_SUBSET_SIZES.get(data.classes or 0, source.sizes[0])
    if data.writers is not None:
        total = round(total * data.writers / FEMNIST_WRITERS)
    test = round(source.holdout * total)
    # data.limit is per group, and every definition with a limit has groups as clients
    train = total - test if data.limit is None else data.limit * experiment.federation.clients
    return _DataFacts(train, test, shape, source.test_transform)


@cache
def _seconds_per_example(model: str, shape: tuple[int, ...], augmented: bool) -> float:
    """Measure the seconds that one core needs to train on one example, on random data in a round of one client.

    Processor time is measured, which other programs do not affect.
    """
    n, rng = TIMING_EXAMPLES.get(model, 4 * TIMING_BATCH), Generator().manual_seed(0)
    x = torch.rand(n, *shape, generator=rng)
    if len(shape) == 3:
        x = x.mul_(255).to(torch.uint8)
    y = torch.arange(n) % 10
    experiment = Experiment(
        data={"aux_per_class": 0, "augment": {"pad": 4, "flip": True} if augmented else "none"},
        federation={"clients": 1, "partition": {"name": "iid"}},
        model={"name": model},
        local={"epochs": 1, "batch": min(n, TIMING_BATCH), "lr": 1e-4},
        run={"rounds": 1 if model in TIMING_EXAMPLES else 2},  # of a small model the first is slower
    )
    setup = prepare_run(experiment, data=Dataset("random", x, y, x[:1], y[:1], tuple("0123456789")))
    marks = [process_time()]
    with single_threaded(), SerialEngine(setup.clients, setup.server.f) as engine:
        marks += [process_time() for _ in run_rounds(setup.clients.method, setup.server, engine, setup.schedule)]
    return min(after - before for before, after in pairwise(marks)) / n
