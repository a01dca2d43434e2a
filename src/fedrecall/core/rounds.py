"""The round loop: sample, method.round, evaluate, yield a record. Whoever iterates logs, saves or stops."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedrecall.core import seeds
from fedrecall.core.exchange import ACCEPT_ALL, Diverged, Exchange, ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.reply_validation import RejectedReply
from fedrecall.core.types import Engine, Payload, Score, Server


@dataclass(frozen=True)
class RoundSchedule:
    """How long, and with whom."""

    rounds: int
    population: int
    sample: int  # clients a round
    seed: int
    evaluate_every: int = 1


class RoundResult(NamedTuple):
    """What one round did, and the server after it."""

    number: int  # from 1: how many aggregations the server has seen
    server: Server
    score: Score | None  # None in rounds that are not evaluated
    seconds: float
    bytes_up: int  # per participating client
    bytes_down: int
    clients: list[int]  # sampled
    replies: int  # of them, how many answered
    train_loss: float | None  # mean over the participants, during their training
    local_accuracy: float | None  # mean over the participants, on the global test set, before aggregation
    personalised: bool  # there is no global model: the local accuracy is the accuracy
    client_metrics: list[Payload]  # what each participant said of its training, for the probes
    tensors_sent: Payload  # what went down to them
    rejected: list[RejectedReply]  # replies that were left out


def sample_clients(plan: RoundSchedule, t: int) -> list[int]:
    """The clients of round t: a function of the seed and the round alone, so that all methods see the same ones."""
    rng = seeds.numpy_generator(plan.seed, "sample", t)
    return sorted(rng.choice(plan.population, plan.sample, replace=False).tolist())


def run_rounds(
    method: Method, server: Server, engine: Engine, plan: RoundSchedule, guard: ReplyPolicy = ACCEPT_ALL
) -> Iterator[RoundResult]:
    """Run rounds server.t, server.t + 1, ... until there have been plan.rounds of them."""
    for t in range(server.t, plan.rounds):
        began = time.perf_counter()
        clients = sample_clients(plan, t)
        exchange = Exchange(server, engine.cohort(t, clients), guard)
        server = replace(exchange.with_averaged_buffers(method.round(server, exchange)), t=t + 1)
        if not server.state.isfinite().all():
            raise Diverged(
                "round.diverged",
                f"round {server.t}: the global model is not finite",
                "local.lr",
                "use a smaller local.lr or server.lr",
            )
        due = not method.traits.personalised and (server.t % plan.evaluate_every == 0 or server.t == plan.rounds)
        score = engine.evaluate(server.state) if due else None
        if score is not None and not math.isfinite(score.loss):
            raise Diverged(
                "round.diverged",
                f"round {server.t}: the test loss of the global model is not finite",
                "local.lr",
                "use a smaller local.lr",
            )
        yield RoundResult(
            server.t,
            server,
            score,
            time.perf_counter() - began,
            exchange.bytes_up,
            exchange.bytes_down,
            clients,
            exchange.replies,
            exchange.mean_metric("loss"),
            exchange.mean_metric("local_accuracy"),
            method.traits.personalised,
            exchange.reports,
            exchange.tensors_sent,
            exchange.rejected,
        )
