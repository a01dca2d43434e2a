"""Reference for lossy federations: `serial` without the same replies."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedrecall.config.experiment import Experiment
from fedrecall.core.types import Payload, Reply
from fedrecall.runs.result import Result
from fedrecall.runs.run import Run
from fedrecall.runs.setup import prepare_run
from fedrecall.simulation import SerialEngine

Missing = Collection[tuple[int, int, str]]  # (round from 1, client, task)


@dataclass(frozen=True)
class Lossy(SerialEngine):
    missing: Missing = ()

    def run_task(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        return super().run_task(t, [c for c in clients if (t + 1, c, task) not in self.missing], task, down)


def serial_without(config: Path | None, changes: str, missing: Missing) -> Result:
    setup = prepare_run(Experiment.load(config, ["engine.name=serial", *changes.split()]))
    with Run(setup, engine=lambda setup, *_: Lossy(setup.clients, setup.server.f, missing=missing)) as run:
        for _ in run:
            pass
    return run.result
