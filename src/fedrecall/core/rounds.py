"""The round loop: sample, method.round, evaluate, yield a result. Logging, saving and stopping are up to the caller."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from fedrecall.core import seeds
from fedrecall.core.client_report import has_global_model
from fedrecall.core.exchange import ACCEPT_ALL, Diverged, Exchange, ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.reply_validation import RejectedReply
from fedrecall.core.types import Engine, Payload, Score, Server, require_payload
from fedrecall.errors import UserError


@dataclass(frozen=True)
class RoundSchedule:
    """Number of rounds and sampling of clients."""

    rounds: int
    population: int
    sample: int  # clients per round
    seed: int
    evaluate_every: int = 1
    has_test: bool = True  # the server has a test set
    logits: bool = False  # evaluations keep the logits, for metrics; the evaluation after the last round always does

    def is_evaluated(self, number: int) -> bool:
        """Return True if the model is evaluated after round `number`, from 1."""
        return number % self.evaluate_every == 0 or number == self.rounds


class RoundResult(NamedTuple):
    """Result of one round, and the server after it."""

    number: int  # from 1: number of aggregations
    server: Server
    score: Score | None  # None if the round is not evaluated
    seconds: float
    bytes_up: int  # per participating client
    bytes_down: int
    clients: list[int]  # sampled
    replies: int  # accepted replies
    train_loss: float | None  # mean over the participating clients
    local_accuracy: float | None  # of the clients' models on the test set before aggregation, mean
    personalised: bool  # there is no global model: the local accuracy is the accuracy
    client_metrics: list[Payload]  # of each participating client, for probes
    tensors_sent: Payload  # to every client
    rejected: list[RejectedReply]
    received: Score | None = None  # of the model that the clients received; None if it is not evaluated


def sample_clients(schedule: RoundSchedule, t: int) -> list[int]:
    """Sample the clients of round t: a function of seed and round alone, so that all methods have the same clients."""
    rng = seeds.numpy_generator(schedule.seed, "sample", t)
    return sorted(rng.choice(schedule.population, schedule.sample, replace=False).tolist())


def run_rounds(
    method: Method, server: Server, engine: Engine, schedule: RoundSchedule, policy: ReplyPolicy = ACCEPT_ALL
) -> Iterator[RoundResult]:
    """Run rounds server.t, server.t + 1, ..., schedule.rounds - 1; yield the result of each."""
    for t in range(server.t, schedule.rounds):
        started = time.perf_counter()
        clients = sample_clients(schedule, t)
        exchange = Exchange(server, engine.cohort(t, clients), policy)
        after = _checked(method.round(server, exchange), server, method, "its aggregation")
        server = replace(exchange.with_averaged_buffers(after), t=t + 1)
        last = None
        if server.t == schedule.rounds and type(method).finish is not Method.finish:
            last = Exchange(server, engine.cohort(server.t, range(schedule.population)), policy)
            server = _checked(method.finish(server, last), server, method, "its finish")
        if not server.evaluated_state.isfinite().all():
            raise Diverged(
                "round.diverged",
                f"round {server.t}: the global model is not finite",
                "local.lr",
                "use a smaller local.lr or server.lr",
            )
        due = schedule.has_test and has_global_model(method, server.f) and schedule.is_evaluated(server.t)
        keep = schedule.logits or server.t == schedule.rounds
        score = engine.evaluate(server.evaluated_state, logits=keep) if due else None
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
            time.perf_counter() - started,
            exchange.bytes_up + (0 if last is None else round(last.total_bytes_up / max(exchange.replies, 1))),
            exchange.bytes_down + (0 if last is None else round(last.bytes_down * schedule.population / len(clients))),
            clients,
            exchange.replies,
            exchange.mean_metric("loss"),
            exchange.mean_metric("local_accuracy"),
            not has_global_model(method, server.f),
            exchange.reports,
            exchange.tensors_sent,
            exchange.rejected,
        )


def _checked(after: object, before: Server, method: Method, origin: str) -> Server:
    """Return the server that a method has made; raise an error if it is none, or a vector of it has another form.

    Methods are written by users, whom no type checker stops. `origin` names the hook that made it.
    """
    name = f"method = {type(method).__name__}: {origin}"
    if not isinstance(after, Server):
        raise _wrong_server(f"{name} returns a {type(after).__name__}, not a server with weights {_form(before.w)}")
    extra = require_payload(after.extra, f"{name} returns a server whose extra state")
    require_payload(after.optimiser_state, f"{name} returns a server whose optimiser_state")
    vectors = [
        ("weights", after.w, before.w),
        ('extra["evaluated"]', extra.get("evaluated", before.w), before.w),
        ("b", after.b, before.b),
        ("int_buffers", after.int_buffers, before.int_buffers),
    ]
    for vector, found, expected in vectors:
        if _form(found) != _form(expected):
            raise _wrong_server(f"{name} returns a server with {vector} {_form(found)}, not {_form(expected)}")
    return after


def _form(t: object) -> str:
    return f"{t.dtype} {list(t.shape)} on {t.device}" if isinstance(t, Tensor) else type(t).__name__


def _wrong_server(message: str) -> UserError:
    hint = "return server.step(w), or a copy of the server with vectors of this form"
    return UserError("method.invalid_weights", message, "method", hint)
