"""What the core does to every exchange, so that no method has to: buffers, bytes, and losses that went wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrecall.core.reply_validation import Reason, RejectedReply, ReplyValidator
from fedrecall.core.robust import AggregationRule, ExchangeInfo
from fedrecall.core.types import EngineCohort, Payload, Reply, RunningMean, Server
from fedrecall.errors import UserError


class Diverged(UserError):
    """The training diverged: a loss, a reply or the global model is not finite or out of range."""


@dataclass(frozen=True)
class ReplyPolicy:
    """What stands between the clients and the method."""

    validator: ReplyValidator = ReplyValidator()
    rule: AggregationRule | None = None  # of robust aggregation, or of privacy


ACCEPT_ALL = ReplyPolicy()  # every sound reply counts as it is


class Exchange:
    """A cohort, as a method sees it in one round.

    Buffers go down beside the weights, come up with the replies and are averaged by sample count, whatever rule the
    method has for the weights (a rule for weights can make a variance negative). The names "b" and "counters" in a
    payload are the core's.
    """

    def __init__(self, server: Server, cohort: EngineCohort, guard: ReplyPolicy = ACCEPT_ALL) -> None:
        self._server, self._cohort, self._guard = server, cohort, guard
        self._buffers: Payload = {}
        if len(server.b):
            self._buffers["b"] = server.b
        if len(server.int_buffers):
            self._buffers["counters"] = server.int_buffers
        self._sent: Payload = {}
        self._num_replies: int | None = None
        self._b = RunningMean()
        self._counters = server.int_buffers
        self._up = 0
        self.replies = 0  # to the last task, without those refused
        self.rejected: list[RejectedReply] = []
        self.reports: list[Payload] = []  # of each participating client, beside its replies
        self.bytes_down = 0  # to each participating client

    @property
    def size(self) -> int:
        """|S_t|: the replies that count, or the clients asked as long as none has come."""
        return self._num_replies or self._cohort.size

    @property
    def population(self) -> int:
        """All clients there are."""
        return self._cohort.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """The replies to one task, without their buffers. What a client has had this round is not sent again."""
        if "w" in down:
            down = {**down, **self._buffers}
        self.bytes_down += sum(_bytes(t) for name, t in down.items() if self._sent.get(name) is not t)
        self._sent |= down
        self._num_replies = 0
        replies = self._validated(task, down)
        if self._guard.rule is not None:
            replies = self._guard.rule.apply(replies, ExchangeInfo(task, down, self._cohort.size, self._server.t))
        for reply in replies:
            self._num_replies += 1
            yield self._without_buffers(reply)

    def _validated(self, task: str, down: Payload) -> Iterator[Reply]:
        """The replies that pass the screen, if they are enough."""
        self.replies, least = 0, self._guard.validator.min_replies
        for reply in self._cohort.run(task, down):
            if self._accept_or_reject(reply, task, down):
                self.replies += 1
                self._up += sum(map(_bytes, reply.up.values()))
                if reply.metrics:
                    self.reports.append(reply.metrics)
                yield reply
        if self.replies < (least or 1):
            some = f"{self.replies} of" if self.replies else "none of"
            wanted = f", engine.min_replies = {least}" if least is not None else ""
            raise UserError(
                "round.too_few_replies",
                f"round {self._server.t + 1}: {some} the {self._cohort.size} clients replied{wanted}{self._rejection_summary()}",
                "engine.min_replies",
                "check the clients that did not reply" + ("" if least is None else ", or lower engine.min_replies"),
            )

    def _accept_or_reject(self, reply: Reply, task: str, down: Payload) -> bool:
        """Whether a reply is taken. Where none may be missing, one that is not is a run that went wrong."""
        screen, number = self._guard.validator, self._server.t + 1
        reason = screen.find_error(reply, task, down)
        lost = "loss" in reply.metrics and not reply.metrics["loss"].isfinite().all()
        if reason is None and not lost:
            return True
        if reply.client is not None:
            self._cohort.refuse(reply.client)
        if screen.min_replies is not None:
            unsound = reason or Reason("reply.not_finite", "the training loss is not finite")
            self.rejected.append(RejectedReply(reply.client, unsound))
            return False
        who = "a client" if reply.client is None else f"client {reply.client}"
        if reason is None or lost:
            raise Diverged(
                "round.diverged",
                f"round {number}: the training loss of {who} is not finite, the run stops",
                "local.lr",
                "use a smaller local.lr, or smaller weights in the method's loss",
            )
        raise Diverged(
            reason.code,
            f"round {number}: the reply of {who} is rejected, the run stops: {reason}",
            "engine.min_replies",
            "use a smaller local.lr, or set engine.min_replies to continue rounds without rejected replies",
        )

    def _rejection_summary(self) -> str:
        if not self.rejected:
            return ""
        last = self.rejected[-1]
        return f", {len(self.rejected)} rejected, the last one of client {last.client} ({last.code}: {last.reason})"

    def _without_buffers(self, reply: Reply) -> Reply:
        up = dict(reply.up)
        if "b" in up:
            self._b.add({"b": up.pop("b")}, reply.n)
        if "counters" in up:  # all start from the same count, so the largest is that of the most steps
            self._counters = torch.maximum(self._counters, up.pop("counters"))
        return reply._replace(up=up)

    def with_averaged_buffers(self, server: Server) -> Server:
        """The server after the round, with the averaged buffers."""
        return replace(server, b=self._b.value.get("b", server.b), int_buffers=self._counters)

    @property
    def bytes_up(self) -> int:
        """From each participating client, on average."""
        return round(self._up / max(self.replies, 1))

    @property
    def tensors_sent(self) -> Payload:
        """Everything that went down in this round."""
        return self._sent

    def mean_metric(self, name: str) -> float | None:
        """Mean over the participants of a number that they reported, if they did."""
        average = RunningMean()
        for report in self.reports:
            if name in report:
                average.add({name: report[name]}, 1)
        return float(average.value[name]) if average.value else None


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()
