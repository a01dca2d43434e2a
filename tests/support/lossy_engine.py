"""Reference for lossy federations: `serial` without the same replies."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_code
from fedrecall.core.evaluation import EVALUATE
from fedrecall.core.types import Payload, Reply
from fedrecall.runs.result import Result
from fedrecall.runs.run import Run
from fedrecall.runs.setup import prepare_run
from fedrecall.simulation import SerialEngine

Missing = Collection[tuple[int, int, str]]  # (round from 1, client, task)


@dataclass(frozen=True)
class Lossy(SerialEngine):
    missing: Missing = ()
    weights: list[Tensor] = field(default_factory=list)  # that clients evaluated, of every round

    def run_task(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        number = t if task == EVALUATE else t + 1  # the model is evaluated after the round
        if task == EVALUATE:
            self.weights.append(down["w"])
        return super().run_task(t, [c for c in clients if (number, c, task) not in self.missing], task, down)


def serial_without(config: Path | None, changes: str, missing: Missing, weights: list[Tensor] | None = None) -> Result:
    """Run without some replies; `weights` receives the weights after every round, if clients evaluate them."""
    experiment = import_own_code(Experiment.load(config, ["engine.name=serial", *changes.split()]))
    setup = prepare_run(experiment)
    found = [] if weights is None else weights
    engine = Lossy(setup.clients, setup.server.f, missing=missing, weights=found)
    with Run(setup, engine=lambda *_: engine) as run:
        for _ in run:
            pass
    return run.result
