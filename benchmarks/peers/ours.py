"""Peer fedrecall, through its public Python interface."""

import sys
from dataclasses import replace

import numpy as np
import torch
from torch import nn

import fedrecall as fr
from benchmarks.peers.job import CLASSES, MEAN, STD, Job
from benchmarks.peers.meter import Stopwatch
from benchmarks.peers.task import initial, network
from fedrecall.data.custom import from_arrays
from fedrecall.data.dataset import Dataset
from fedrecall.data.transforms import Transform
from fedrecall.runs.setup import build_model
from fedrecall.simulation import ENGINES

ENGINE = "pool" if "pool" in ENGINES else "serial"


def experiment(job: Job) -> fr.Experiment:
    """Return the job as a configuration. Only the last round, which is not timed, is evaluated."""
    ntd = {"beta": job.beta, "tau": job.tau} if job.method == "fedntd" else {}
    return fr.Experiment(
        federation={"clients": job.clients, "sample": job.sample, "partition": "groups"},
        model={"name": "cnn"},  # another network is passed as a module
        local={"epochs": job.epochs, "batch": job.batch, "lr": job.lr, "momentum": job.momentum},
        method={"name": job.method, **ntd},
        engine={"name": ENGINE, **({"workers": job.workers} if ENGINE == "pool" else {})},
        run={"rounds": job.rounds, "evaluate_every": job.rounds},
    )


def data(job: Job) -> Dataset:
    """Return the job's pictures with the smallest possible test set."""
    x, y = job.array("images"), np.array(job.array("labels"))
    clients = np.arange(job.clients).repeat(job.images)
    found = from_arrays(x, y, test=(x[:1], y[:1]), clients=clients, classes=[str(c) for c in range(CLASSES)])
    return replace(found, test_transform=Transform(mean=(MEAN,) * 3, std=(STD,) * 3))


def initial_weights(job: Job) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return the initial weights [d] that all peers use: fedrecall's, if it has the network."""
    torch.manual_seed(0)
    module = build_model(experiment(job), data(job), None) if job.network == "cnn" else network(job)
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def main(job: Job) -> None:
    """Run all rounds."""
    watch = Stopwatch(job)
    model = None if job.network == "cnn" else initial(job)
    result = fr.run(experiment(job), data=data(job), model=model, watch=lambda _: watch.lap())
    if job.out:
        np.save(job.out, result.server.w.numpy())
    watch.report("fedrecall", "fedrecall")


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
