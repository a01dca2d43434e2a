"""What the core does to every exchange, so that no method has to: buffers, bytes, and losses that went wrong."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedrecall.core.types import Cohort, Mean, Payload, Reply, Server
from fedrecall.errors import UserError


class Diverged(UserError):
    """A loss is no longer a finite number: the run cannot go on."""


class Exchange:
    """A cohort, as a method sees it in one round.

    Buffers go down beside the weights, come up with the replies and are averaged by sample count, whatever rule the
    method has for the weights (a rule for weights can make a variance negative). The names "b" and "counters" in a
    payload are the core's.
    """

    def __init__(self, server: Server, cohort: Cohort) -> None:
        self._server, self._cohort = server, cohort
        self._buffers: Payload = {}
        if len(server.b):
            self._buffers["b"] = server.b
        if len(server.counters):
            self._buffers["counters"] = server.counters
        self._sent: Payload = {}
        self._came: int | None = None
        self._b = Mean()
        self._counters = server.counters
        self._up = 0
        self.reports: list[Payload] = []  # of each participating client, beside its replies
        self.bytes_down = 0  # to each participating client

    @property
    def size(self) -> int:
        """|S_t|: the replies received, or the clients asked as long as none has come."""
        return self._came or self._cohort.size

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
        self._came = 0
        for reply in self._cohort.run(task, down):
            self._came += 1
            yield self._receive(reply)
        if not self._came:
            raise UserError(f"round {self._server.t + 1}: none of the {self._cohort.size} clients replied")

    def _receive(self, reply: Reply) -> Reply:
        if "loss" in reply.report and not torch.isfinite(reply.report["loss"]):
            raise Diverged(
                f"round {self._server.t + 1}: a client's training loss is not finite; the run stops here: "
                "try a smaller local.lr, or weaker settings of the method"
            )
        self._up += sum(map(_bytes, reply.up.values()))
        if reply.report:
            self.reports.append(reply.report)
        up = dict(reply.up)
        if "b" in up:
            self._b.add({"b": up.pop("b")}, reply.n)
        if "counters" in up:  # all start from the same count, so the largest is that of the most steps
            self._counters = torch.maximum(self._counters, up.pop("counters"))
        return reply._replace(up=up)

    def settle(self, server: Server) -> Server:
        """The server after the round, with the averaged buffers."""
        return replace(server, b=self._b.value.get("b", server.b), counters=self._counters)

    @property
    def bytes_up(self) -> int:
        """From each participating client, on average."""
        return round(self._up / max(self._came or 0, 1))

    @property
    def sent(self) -> Payload:
        """Everything that went down in this round."""
        return self._sent

    def reported(self, name: str) -> float | None:
        """Mean over the participants of a number that they reported, if they did."""
        average = Mean()
        for report in self.reports:
            if name in report:
                average.add({name: report[name]}, 1)
        return float(average.value[name]) if average.value else None


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()
