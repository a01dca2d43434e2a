"""Baselines of a comparison: what training on pooled data, each client alone, and the most frequent class achieve.

"central" is a run of FedAvg with one client that has all examples. The runs of "local" and "majority" are made here;
they have the files of a run directory that tables and figures read.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrecall.config.experiment import EngineSection, FederationSection
from fedrecall.core.types import Score
from fedrecall.data.partition import Partition
from fedrecall.errors import UserError
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.predictions import INTEGER_TYPES, Predictions, make_predictions, save_predictions
from fedrecall.runs.records import RoundRecord, group_accuracies, summarise
from fedrecall.runs.run import Run
from fedrecall.runs.setup import Setup, UserModel, build_setup
from fedrecall.studies.study import Baseline


def write_baseline(kind: Baseline, setup: Setup, path: Path, model: UserModel | None = None) -> None:
    """Write the run directory of a baseline that is no federated run: "local" or "majority".

    `model` is the user's own, if the experiment only names it.
    """
    if not setup.schedule.has_test:
        message = f"baselines = {kind}: it is measured on the server's test set, and there is none"
        raise UserError("config.conflict", message, "baselines", "set data.test, or compare without baselines")
    path.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(path)
    directory.initialise(setup)
    records, predictions = _majority(setup) if kind == "majority" else _train_alone(setup, model)
    if predictions is not None:
        save_predictions(path, predictions)
        is_correct, dataset = predictions.predicted == predictions.y, setup.data.dataset
        if predictions.groups is not None and (groups := group_accuracies(is_correct, dataset)) is not None:
            records[-1]["groups"] = groups
    for record in records:
        directory.append_record(record)
    directory.write_summary(summarise(records, None, setup.experiment.run.targets), resumable=False)


def _majority(setup: Setup) -> tuple[list[RoundRecord], Predictions]:
    """Return one record, and the predictions, of always naming the most frequent class of the clients' examples."""
    data = setup.data
    labels, y, groups = data.client_examples.y, data.test.y, data.dataset.test_groups
    shares = torch.bincount(labels, minlength=data.dataset.num_classes).double()
    score = Score(shares.argmax().expand(len(y)), y, 0.0, (shares / shares.sum()).log().expand(len(y), -1))
    accuracy = float((score.predicted == y).double().mean())
    return [_record(1, accuracy, 0.0, [])], make_predictions(score, [score.predicted == y], groups)


def _train_alone(setup: Setup, model: UserModel | None) -> tuple[list[RoundRecord], Predictions | None]:
    """Train a model on the data of every client alone; return the records, and the predictions if clients have some.

    A test example that has a client is classified by the model of this client. Otherwise all models classify all test
    examples, and the accuracy is the mean over clients.
    """
    data, partition = setup.data, setup.data.partition
    owner = _owners(setup)
    hits, seconds = [], []
    final: list[Score] = []
    clients = [client for client, size in enumerate(partition.sizes.tolist()) if size]
    for client in clients:
        start = time.perf_counter()
        rows = partition.rows(client)
        alone = Partition(rows, np.array([0, len(rows)]), partition.samples, partition.partitioner, partition.seed)
        changes = {"engine": EngineSection(name="serial"), "federation": FederationSection(clients=1)}
        experiment = setup.experiment.model_copy(update=changes)
        scores = _train(build_setup(experiment, data._replace(partition=alone, held_out={}), model))
        belongs = slice(None) if owner is None else owner == client
        hits.append([(score.predicted == score.y)[belongs].double() for score in scores])
        final.append(scores[-1])
        seconds.append((time.perf_counter() - start) / len(scores))
    records = []
    for number in range(len(hits[0])):
        of_clients = [found[number] for found in hits]
        accuracy = torch.cat(of_clients).mean() if owner is not None else torch.stack(of_clients).mean()
        records.append(_record(number + 1, float(accuracy), sum(seconds), clients))
    return records, None if owner is None else _joined_predictions(setup, owner, final, hits)


def _train(setup: Setup) -> list[Score]:
    """Run one client alone; return the scores of all evaluations."""
    with Run(setup) as run:
        return [score for score in (run.score for _ in run) if score is not None]


def _owners(setup: Setup) -> Tensor | None:
    """Return the client of each test example [n]; None if they have none, or a client that does not train."""
    dataset = setup.data.dataset
    if (
        setup.data.client_names is None
        or dataset.test_y.ndim == 2
        or dataset.train_groups is None
        or dataset.test_groups is None
    ):
        return None
    present = torch.unique(dataset.train_groups)
    if not torch.isin(dataset.test_groups, present).all():
        return None
    return torch.searchsorted(present, dataset.test_groups)


def _joined_predictions(
    setup: Setup, owner: Tensor, final: Sequence[Score], hits: Sequence[Sequence[Tensor]]
) -> Predictions:
    """Return the predictions of every test example by the model of its own client."""
    rows = torch.arange(len(owner))
    z = torch.stack([score.z for score in final if score.z is not None])[owner, rows]  # the last ones have logits
    predicted = torch.stack([score.predicted for score in final])[owner, rows]
    made = make_predictions(Score(predicted, final[0].y, 0.0, z), (), setup.data.dataset.test_groups)
    correct = torch.zeros(len(owner), dtype=INTEGER_TYPES[0])
    for client, found in enumerate(hits):
        correct[owner == client] = torch.stack(list(found[-10:])).sum(0).to(correct.dtype)
    return made._replace(correct=correct, evaluations=min(10, len(hits[0])))


def _record(number: int, accuracy: float, seconds: float, clients: list[int]) -> RoundRecord:
    costs = {"seconds": round(seconds, 4), "bytes_up": 0, "bytes_down": 0, "clients": clients, "replies": len(clients)}
    return {"round": number, "accuracy": accuracy, "loss": None, "train_loss": None, **costs}
