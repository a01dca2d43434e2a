"""Simulated clients: examples that are transformed once for a whole run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrecall.core.flat_model import FlatModel
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition
from fedrecall.data.transforms import Transform
from fedrecall.methods import METHODS
from fedrecall.models import MODELS
from fedrecall.simulation import SerialEngine, SimulatedClients
from fedrecall.simulation.attacks import LabelFlip
from fedrecall.testing.federation import simulated_clients


@pytest.fixture
def clients() -> SimulatedClients:
    """Clients with colour images."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (40, 3, 16, 16), generator=generator, dtype=torch.uint8)
    images = Examples(x, torch.arange(40) % 3, Transform(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3)))
    partition = Partition(np.arange(40), np.array([0, 25, 40]), 40, {"name": "test"}, 0)
    return replace(simulated_clients(METHODS["fedntd"]()), train=images, test=images, partition=partition)


def test_examples_that_are_transformed_once_give_the_same_bits(clients: SimulatedClients) -> None:
    torch.manual_seed(0)
    f = FlatModel(MODELS["cnn"]().build((3, 16, 16), 3))
    once = clients.precomputed()
    assert once.train.x.dtype == once.test.x.dtype == torch.float32
    expected, found = (
        [reply.up["w"] for reply in SerialEngine(kind, f).run_task(0, [0, 1], "train", {"w": f.w.clone()})]
        for kind in (clients, once)
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    scores = [SerialEngine(kind, f).evaluate(expected[0]) for kind in (clients, once)]
    assert scores[0].loss == scores[1].loss


def test_many_examples_and_those_of_attackers_stay_as_they_are(
    clients: SimulatedClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = replace(clients, attack=LabelFlip())
    assert poisoned.precomputed() is poisoned
    monkeypatch.setattr("fedrecall.simulation.clients.DATASET_PRECOMPUTE_BYTES", 1000)
    assert clients.precomputed().train is clients.train
