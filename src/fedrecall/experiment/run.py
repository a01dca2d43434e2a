"""One run, from a configuration to a result."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedrecall.core.rounds import rounds
from fedrecall.core.types import Server
from fedrecall.engines import Faults, Memories, Pool, Serial
from fedrecall.errors import UserError
from fedrecall.experiment.config import Experiment
from fedrecall.experiment.probes import Line, View, features, look
from fedrecall.experiment.record import Record, RunDirectory, record, require_free, summarise
from fedrecall.experiment.setup import MODEL, Setup, setup


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    experiment: Experiment  # complete
    rounds: list[Record]  # one per round, as in rounds.jsonl
    summary: dict[str, Any]  # final, best, last10, ... as in summary.json
    directory: Path | None
    server: Server
    probes: dict[str, list[Line]] = field(default_factory=dict)  # what run.probes saw, as in probes/<name>.jsonl

    def model(self) -> nn.Module:
        """The global model after the last round; its forward gives (features, logits)."""
        if self.experiment.method.personal:
            raise UserError("this method trains personal models, which stay with their clients: there is no global one")
        return self.server.f.module(self.server.w, self.server.b, self.server.counters)


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path | None = None,
    *,
    data: object = None,
    model: nn.Module | None = None,
    partition: object = None,
    out: str | Path | None = None,
    watch: Callable[[Record], None] | None = None,
) -> Result:
    """Run an experiment: an `Experiment`, its tables, or the path of a TOML file; none is the quickstart on digits.

    `data`, `model` and `partition` take your own: arrays, a Dataset, a module, a flwr-datasets partitioner. With
    `out` the run directory is written there; `watch` sees every round as it ends.
    """
    if isinstance(experiment, Mapping):
        experiment = Experiment(**experiment)
    elif not isinstance(experiment, Experiment):
        experiment = Experiment.load(experiment)
    if out is not None:
        require_free(Path(out))
    return execute(setup(experiment, data=data, model=model, partition=partition), out, watch)


def execute(ready: Setup, out: str | Path | None = None, watch: Callable[[Record], None] | None = None) -> Result:
    """Run what is set up."""
    directory = None if out is None else RunDirectory.create(Path(out), ready)
    with one_thread(), engine_for(ready, directory) as engine:
        return _run(ready, engine, directory, watch)


def engine_for(ready: Setup, directory: RunDirectory | None) -> Pool | Serial:
    """The engine that the experiment names; what clients leave behind goes to the run directory."""
    choice = ready.experiment.engine
    faults = Faults(choice.min_replies, directory.keep if directory else None)
    memories = Memories(directory.path if directory else None)
    if choice.name == "serial":
        return Serial(ready.world, ready.server.f, faults, memories)
    return Pool(ready.world, ready.server.f, faults, memories, workers=choice.workers)


def _run(
    ready: Setup, engine: Pool | Serial, directory: RunDirectory | None, watch: Callable[[Record], None] | None
) -> Result:
    server, records = ready.server, list[Record]()
    names, seen = ready.experiment.run.probes, dict[str, list[Line]]()
    view = View(ready.dealt.clients, ready.dealt.test, ready.dealt.partition, ready.world.classes)
    initial = engine.evaluate(server.state).accuracy
    failed: UserError | None = None
    try:
        for done in rounds(ready.world.method, server, engine, ready.plan):
            server = done.server
            records.append(record(done, ready.dealt.dataset))
            if done.train_loss is None:
                raise UserError(
                    "no client made a step: its batches are all left out (see local.batch, local.drop_last)"
                )
            lines = look(names, view, done)
            for name, line in lines.items():
                seen.setdefault(name, []).append(line)
            if directory is not None:
                directory.append(records[-1])
                for name, line in lines.items():
                    directory.append(line, f"probes/{name}.jsonl")
            if watch is not None:
                watch(records[-1])
    except UserError as error:
        failed = error
    summary = summarise(records, initial, ready.experiment.run.targets)
    if failed is not None:
        summary["failed"] = str(failed)
    result = Result(ready.experiment, records, summary, directory.path if directory else None, server, seen)
    if directory is not None:
        if not ready.world.method.personal:
            directory.write_tensors(MODEL, {name: t.clone() for name, t in result.model().state_dict().items()})
        if "features" in names and failed is None:
            directory.write_tensors("probes/features.safetensors", features(view, done))
        directory.write_json("summary.json", summary)  # last: it says that the run is complete
    if failed is not None:
        raise failed
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread inside: what every engine computes with, so that all give the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
