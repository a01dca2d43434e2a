"""One task to a cohort and back: buffers, byte counts, validation of replies, aggregation rule."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from fedrecall.core.reply_validation import Reason, RejectedReply, ReplyValidator
from fedrecall.core.robust import AggregationRule, ExchangeInfo
from fedrecall.core.types import EngineCohort, Payload, Reply, RunningMean, Server, payload_bytes, require_payload
from fedrecall.errors import UserError


class Diverged(UserError):
    """The training diverged: a loss, a reply or the global model is not finite or out of range."""


@dataclass(frozen=True)
class ReplyPolicy:
    """Validation and aggregation rules applied to every reply before the method sees it."""

    validator: ReplyValidator = ReplyValidator()
    rules: tuple[AggregationRule, ...] = ()  # limits, pre-aggregation and robust aggregation, or privacy, in order
    seed: int = 0  # of rules that draw random numbers


ACCEPT_ALL = ReplyPolicy()  # every finite reply is used unchanged


class Exchange:
    """The cohort of one round, as a method sees it.

    Float buffers are sent with the weights, returned with the replies and averaged by number of examples, independent
    of the method's rule for the weights: such a rule can make a variance negative. Where an aggregation rule gives all
    replies the same weight, buffers have it too: the number of examples is a client's own claim. The names "b" and
    "counters" in a payload are reserved for buffers.
    """

    def __init__(self, server: Server, cohort: EngineCohort, policy: ReplyPolicy = ACCEPT_ALL) -> None:
        self._server, self._cohort, self._policy = server, cohort, policy
        self._buffers: Payload = {}
        if len(server.b):
            self._buffers["b"] = server.b
        if len(server.int_buffers):
            self._buffers["counters"] = server.int_buffers
        self._sent: Payload = {}
        self._exchanges = 0  # in this round so far
        self._b = RunningMean()
        self._counters = server.int_buffers
        self._bytes_up = 0
        self.replies = 0  # accepted replies to the last task
        self.rejected: list[RejectedReply] = []
        self.reports: list[Payload] = []  # metrics of each participating client
        self.bytes_down = 0  # to each participating client

    @property
    def size(self) -> int:
        """|S_t|: the number of accepted replies; before the first one, the number of sampled clients.

        It is the latter also if an aggregation rule counts missing replies as zero updates.
        """
        counts_missing = any(getattr(rule, "counts_missing_replies", False) for rule in self._policy.rules)
        return self._cohort.size if counts_missing else self.replies or self._cohort.size

    @property
    def population(self) -> int:
        """Number of all clients."""
        return self._cohort.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on every client; yield the replies without their buffers.

        A tensor that was sent earlier in the round is not counted as sent again.
        """
        down = require_payload(down, f'method: the payload of cohort.run("{task}")')
        if "w" in down:
            down = {**down, **self._buffers}
        self.bytes_down += payload_bytes({name: t for name, t in down.items() if self._sent.get(name) is not t})
        self._sent |= down
        self.replies = 0
        replies = self._validated(task, down)
        exchange = ExchangeInfo(task, down, self._cohort.size, self._server.t, self._exchanges, self._policy.seed)
        for rule in self._policy.rules:
            replies = rule.apply(replies, exchange)
        self._exchanges += 1
        for reply in replies:
            yield self._without_buffers(reply)

    def _validated(self, task: str, down: Payload) -> Iterator[Reply]:
        """Accept valid replies and yield them; raise a UserError if there are too few."""
        min_replies = self._policy.validator.min_replies
        for reply in self._cohort.run(task, down):
            if self._is_valid(reply, task, down):
                self._cohort.accept(reply)
                self.replies += 1
                self._bytes_up += payload_bytes(reply.up)
                if reply.metrics:
                    self.reports.append(reply.metrics)
                yield reply
        if self.replies < (min_replies or 1):
            number = f"{self.replies} of" if self.replies else "none of"
            required = f", engine.min_replies = {min_replies}" if min_replies is not None else ""
            raise UserError(
                "round.too_few_replies",
                f"round {self._server.t + 1}: {number} the {self._cohort.size} clients replied"
                f"{required}{self._rejection_summary()}",
                "engine.min_replies",
                "check the clients that did not reply" + ("" if required == "" else ", or lower engine.min_replies"),
            )

    def _is_valid(self, reply: Reply, task: str, down: Payload) -> bool:
        """Return True if a reply is valid. An invalid one is recorded; it stops a run that needs every reply."""
        validator, number = self._policy.validator, self._server.t + 1
        reason = validator.find_error(reply, task, down, self._server.t)
        diverged = "loss" in reply.metrics and not reply.metrics["loss"].isfinite().all()
        if reason is None and not diverged:
            return True
        if validator.min_replies is not None:
            reason = reason or Reason("reply.not_finite", "the training loss is not finite")
            self.rejected.append(RejectedReply(reply.client, reason))
            return False
        sender = "a client" if reply.client is None else f"client {reply.client}"
        if reason is None or diverged:
            raise Diverged(
                "round.diverged",
                f"round {number}: the training loss of {sender} is not finite, the run stops",
                "local.lr",
                "use a smaller local.lr, or smaller weights in the method's loss",
            )
        raise Diverged(
            reason.code,
            f"round {number}: the reply of {sender} is rejected, the run stops: {reason}",
            "engine.min_replies",
            "use a smaller local.lr, or set engine.min_replies to continue rounds without rejected replies",
        )

    def _rejection_summary(self) -> str:
        if not self.rejected:
            return ""
        last = self.rejected[-1]
        return f", {len(self.rejected)} rejected, the last one of client {last.client} ({last.code}: {last.reason})"

    def _without_buffers(self, reply: Reply) -> Reply:
        up, b = dict(reply.up), None
        if "b" in up:
            b = up.pop("b")
            is_uniform = bool(self._policy.rules) and self._server.weights == "uniform"
            self._b.add({"b": b}, 1 if is_uniform else reply.n)
        if "counters" in up:  # all clients start from the same count: the largest one is of the most steps
            self._counters = torch.maximum(self._counters, up.pop("counters"))
        return reply._replace(up=up, b=b)

    def with_averaged_buffers(self, server: Server) -> Server:
        """Return the server with the buffers averaged over this round's replies, unless the method has set them."""
        if server.b is not self._server.b:
            return server
        return replace(server, b=self._b.value.get("b", server.b), int_buffers=self._counters)

    @property
    def total_bytes_up(self) -> int:
        """Number of bytes received from all clients."""
        return self._bytes_up

    @property
    def bytes_up(self) -> int:
        """Mean number of bytes received from a participating client."""
        return round(self._bytes_up / max(self.replies, 1))

    @property
    def tensors_sent(self) -> Payload:
        """All tensors sent to clients in this round."""
        return self._sent

    def mean_metric(self, name: str) -> float | None:
        """Return the mean of a metric over the clients that reported it, or None if no client did."""
        average = RunningMean()
        for report in self.reports:
            if name in report:
                average.add({name: report[name]}, 1)
        return float(average.value[name]) if average.value else None
