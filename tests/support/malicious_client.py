"""A small federation, one of whose clients lies."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fedrecall.core.dry_run import Rehearsal
from fedrecall.core.exchange import Guard
from fedrecall.core.method import Method
from fedrecall.core.optim import Average
from fedrecall.core.reply_validation import Screen
from fedrecall.core.rounds import Plan, Round, rounds
from fedrecall.core.types import Engine, Payload, Reply, Sample, Score, Server
from fedrecall.simulation import Serial
from fedrecall.testing.federation import SKEWED, examples, model, world

Lie = Callable[[Reply], Reply]


@dataclass(frozen=True)
class Lying:
    """An engine, one of whose clients lies."""

    engine: Engine
    lie: Lie
    liar: int = 3

    def cohort(self, t: int, clients: Sequence[int]) -> "LyingCohort":
        return LyingCohort(self.engine.cohort(t, clients), self)

    def evaluate(self, state: torch.Tensor) -> Score:
        return self.engine.evaluate(state)


@dataclass(frozen=True)
class LyingCohort:
    cohort: Sample
    of: Lying

    @property
    def size(self) -> int:
        return self.cohort.size

    @property
    def population(self) -> int:
        return self.cohort.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        for reply in self.cohort.run(task, down):
            yield self.of.lie(reply) if reply.client == self.of.liar else reply

    def refuse(self, client: int) -> None:
        self.cohort.refuse(client)


def go(method: Method, lie: Lie, *, least: int | None = 4, form: bool = True) -> list[Round]:
    f, w = model(batch_norm=True), world(method)
    start = Server(f, f.w, f.b, f.counters, Average(), extra=method.init(f.w), aux=examples([0, 1, 2] * 4, seed=2))
    rehearsal = Rehearsal(w, f)
    looks = (rehearsal.look, method.doubt)
    screen = Screen(least, max_examples=9, form=rehearsal.form, looks=looks) if form else Screen(least, max_examples=9)
    with Serial(w, f) as engine:
        plan = Plan(2, len(SKEWED), len(SKEWED), seed=0)
        return list(rounds(method, start, Lying(engine, lie), plan, Guard(screen)))
