"""What a study costs: passes of clients over their examples, and an estimate of the hours that they take here.

Neither needs the data: named data sets say how large they are.
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

FORWARD_COST = 1 / 3  # of a training pass: what a model costs that is only heard

IMAGE_SIDES = {  # of the images as they are stored
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

FEMNIST_SUBSET_SIZES = {10: 382_705, 26: 431_572}  # FEMNIST's digits, and its letters

TIMING_EXAMPLES = {"resnet50": 4, "alexnet": 8, "mobilenet": 16}  # examples that a large model is timed with

TIMING_BATCH = 64

REFERENCE_NETWORK = (
    "cnn",
    (3, 32, 32),
)  # timed here in a tenth of a second; the papers' other networks by what they take of it

RELATIVE_COST = {  # than the usual one, measured in batches of 64
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


class Cost(NamedTuple):
    """What all runs of a study cost together."""

    runs: int
    passes: float  # examples that clients train on, counted every time


class _DataFacts(NamedTuple):
    """A run's data, without the data."""

    train: int
    test: int
    shape: tuple[int, ...]
    plain: Transform


def cost(study: Study) -> Cost:
    """Rounds x clients a round x local epochs x examples a client, over all runs."""
    cells = study.cells()
    return Cost(len(cells), sum(sample_passes(study.experiment(cell)) for cell in cells))


def sample_passes(experiment: Experiment) -> float:
    """The same of one run."""
    federation = experiment.federation
    taking_part = experiment.run.rounds * federation.clients_per_round / federation.clients
    return taking_part * experiment.local.epochs * _facts(experiment).train


def estimated_hours(study: Study) -> float:
    """An estimate for this machine's processors, from a few timed steps of a network: a guide, not a promise.

    A teacher adds a third of a pass where images are augmented, because it then hears every batch; without
    augmentation it is heard once a round. All cores work, as far as a round has clients for them.
    """
    return sum(_seconds(study.experiment(cell)) for cell in study.cells()) / 3600


def _seconds(experiment: Experiment) -> float:
    facts, federation, local, schedule = _facts(experiment), experiment.federation, experiment.local, experiment.run
    augmented = resolve_transform(experiment.data.augment, experiment.data.name, facts.plain).is_random
    has_teacher = isinstance(experiment.method, Method) and type(experiment.method).frozen is not Method.frozen
    teacher = FORWARD_COST if augmented and has_teacher else 0.0
    seen = report_request(schedule.probes, local_accuracy=schedule.local_accuracy, last=0)
    looks = 1 / schedule.evaluate_every + federation.clients_per_round * (seen.predictions + seen.shift * local.epochs)
    work = sample_passes(experiment) * (1 + teacher) + schedule.rounds * looks * facts.test * FORWARD_COST
    cores = min(os.cpu_count() or 1, federation.clients_per_round)
    if experiment.model is None:
        name = "cnn" if len(facts.shape) == 3 and min(facts.shape[1:]) >= 16 else "mlp"
    else:
        name = CHOICES["model"].dump(experiment.model)["name"]
    network = (name, facts.shape)
    each = (
        RELATIVE_COST[network] * _seconds_per_example(*REFERENCE_NETWORK, False)
        if network in RELATIVE_COST
        else _seconds_per_example(*network, augmented)
    )
    return work * each / cores


def _facts(experiment: Experiment) -> _DataFacts:
    data = experiment.data
    if data.name not in DATASETS:
        own = data.load()
        return _DataFacts(len(own.train_y), len(own.test_y), own.shape, own.test_transform)
    source = DATASETS[data.name]
    side = data.size or IMAGE_SIDES[data.name]
    shape = (source.channels, side, side)
    if len(source.sizes) == 2:
        return _DataFacts(*source.sizes, shape, source.test_transform)
    whole = FEMNIST_SUBSET_SIZES.get(data.classes or 0, source.sizes[0])
    test = round(source.holdout * whole)
    # A limit is of a group, and groups are clients wherever there is one.
    train = whole - test if data.limit is None else data.limit * experiment.federation.clients
    return _DataFacts(train, test, shape, source.test_transform)


@cache
def _seconds_per_example(model: str, shape: tuple[int, ...], augmented: bool) -> float:
    """Seconds that one core takes to train on one example, measured on random data in a round of one client.

    The processor's seconds are counted, so that other programs do not make it look slower.
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
        run={"rounds": 1 if model in TIMING_EXAMPLES else 2},  # the first round of a small model is mostly beginnings
    )
    ready = prepare_run(experiment, data=Dataset("random", x, y, x[:1], y[:1], tuple("0123456789")))
    marks = [process_time()]
    with single_threaded(), SerialEngine(ready.clients, ready.server.f) as engine:
        marks += [process_time() for _ in run_rounds(ready.clients.method, ready.server, engine, ready.schedule)]
    return min(after - before for before, after in pairwise(marks)) / n
