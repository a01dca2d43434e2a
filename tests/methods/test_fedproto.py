"""FedProto as published: the accuracy of personal models is that of the authors' scoring."""

import pytest
import torch

from fedrecall import Experiment
from fedrecall.runs.run import Run
from fedrecall.runs.setup import prepare_run

SETTINGS = {
    "data": {"name": "digits", "client_test": 0.3},
    "federation": {"clients": 10, "partition": {"name": "shards", "s": 3}},
    "local": {"epochs": 2, "lr": 0.05},
    "method": {"name": "fedproto", "share_weights": False},
    "run": {"rounds": 3},
}


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_client_is_scored_by_the_current_prototypes_of_its_own_classes(engine: str) -> None:
    """The official test: mean square distance to the prototypes of the client's classes, its own test examples."""
    setup = prepare_run(Experiment(**SETTINGS, engine={"name": engine}))
    with Run(setup) as run:
        record = list(run)[-1]
        states = {client: run._engine.client_state[client]["own"] for client in range(10)}
    prototypes, f = run.result.server.extra["G"], setup.server.f
    accuracies = {}
    for client, state in states.items():
        clients, held_out = setup.data.client_examples, setup.data.held_out["client_test"]
        own = clients.subset(torch.from_numpy(held_out.rows(client)))
        classes = clients.subset(torch.from_numpy(setup.data.partition.rows(client))).y.unique().tolist()
        features = f.outputs(state, own).h
        right = 0
        for h, y in zip(features, own.y.tolist(), strict=True):
            distances = {c: float((h - prototypes[c]).square().mean()) for c in classes}
            right += min(distances, key=distances.__getitem__) == y
        accuracies[client] = right / len(own)
    scores = record["client_test"]
    assert scores["model"] == "personal"
    assert dict(zip(scores["clients"], scores["accuracy"]["by_client"], strict=True)) == pytest.approx(accuracies)
    assert scores["accuracy"]["mean"] == pytest.approx(sum(accuracies.values()) / 10)
    assert scores["accuracy"]["mean"] > record["accuracy"], "a client lacks classes of the test set"
