"""Small federation with one malicious client."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fedrecall.core.client_report import ReportRequest
from fedrecall.core.dry_run import NO_REPORT, DryRun
from fedrecall.core.exchange import ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.optim import ServerSGD
from fedrecall.core.reply_validation import ReplyValidator
from fedrecall.core.rounds import RoundResult, RoundSchedule, run_rounds
from fedrecall.core.types import Engine, EngineCohort, Payload, Reply, Score, Server
from fedrecall.simulation import SerialEngine
from fedrecall.testing.federation import SKEWED_LABELS, examples, model, simulated_clients

Poison = Callable[[Reply], Reply]


@dataclass(frozen=True)
class MaliciousEngine:
    """Engine with one malicious client, whose replies are poisoned."""

    engine: Engine
    poison: Poison
    attacker: int = 3

    def cohort(self, t: int, clients: Sequence[int]) -> "MaliciousCohort":
        return MaliciousCohort(self.engine.cohort(t, clients), self)

    def evaluate(self, state: torch.Tensor, *, logits: bool = False) -> Score:
        return self.engine.evaluate(state, logits=logits)


@dataclass(frozen=True)
class MaliciousCohort:
    cohort: EngineCohort
    malicious: MaliciousEngine

    @property
    def size(self) -> int:
        return self.cohort.size

    @property
    def population(self) -> int:
        return self.cohort.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        for reply in self.cohort.run(task, down):
            yield self.malicious.poison(reply) if reply.client == self.malicious.attacker else reply

    def accept(self, reply: Reply) -> None:
        self.cohort.accept(reply)


def run_with_attacker(
    method: Method, poison: Poison, *, least: int | None = 4, form: bool = True, report: ReportRequest = NO_REPORT
) -> list[RoundResult]:
    f, w = model(batch_norm=True), simulated_clients(method, report=report)
    start = Server(
        f, f.w, f.b, f.int_buffers, ServerSGD(), extra=method.init(f.w), auxiliary=examples([0, 1, 2] * 4, seed=2)
    )
    dry_run = DryRun(w, f)
    checks = (dry_run.find_report_error, method.validate_reply)
    validator = (
        ReplyValidator(least, max_examples=9, expected_spec=dry_run.expected_spec, extra_checks=checks)
        if form
        else ReplyValidator(least, max_examples=9)
    )
    with SerialEngine(w, f) as engine:
        plan = RoundSchedule(2, len(SKEWED_LABELS), len(SKEWED_LABELS), seed=0)
        return list(run_rounds(method, start, MaliciousEngine(engine, poison), plan, ReplyPolicy(validator)))
