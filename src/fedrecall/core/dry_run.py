"""Dry run of a task: the server performs it on two examples, to learn the form of the replies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedrecall.core.client import ClientRunner
from fedrecall.core.client_report import ReportRequest, find_report_error, without_steps
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.reply_validation import Reason, ReplySpec, spec_of
from fedrecall.core.types import Examples, Payload, Reply, Score
from fedrecall.errors import UserError

TWO_ROWS = torch.tensor([0, 0])  # the first example twice: batch normalisation needs two examples

NO_REPORT = ReportRequest()


@dataclass(frozen=True)
class DryRun:
    """Engine whose only client is the server itself. A task is one training step an epoch, on two examples."""

    runner: ClientRunner
    f: FlatModel
    sample: Examples | None = None  # of which the first one is used; None: the test set
    _specs: dict[tuple[str, ...], ReplySpec] = field(default_factory=dict)

    size: int = 1
    population: int = 1

    def expected_spec(self, task: str, down: Payload, t: int) -> ReplySpec:
        """Return names, types and shapes of a reply to this task in round t, and of its report.

        Payloads of the same form are tried once, and again where the report of the round has other metrics.
        """
        form = (f"{name} {tensor.dtype} {list(tensor.shape)}" for name, tensor in sorted(down.items()))
        key = (task, str(self.runner.report.in_round(t)), *form)
        if key not in self._specs:
            reply = self._run_task(task, down, t, self.runner.report)
            report = spec_of(reply.metrics)
            self._specs[key] = ReplySpec(spec_of(reply.up), (report, without_steps(report)))
        return self._specs[key]

    def find_report_error(self, reply: Reply) -> Reason | None:
        """Return what is wrong with the buffers and the metrics of a reply, which no method validates, or None."""
        if "b" in reply.up and (reply.up["b"][self._variances] < 0).any():
            return Reason("reply.invalid_value", "b has a negative variance")
        return find_report_error(reply.metrics, reply.client, self.runner.classes)

    def cohort(self, t: int, clients: Sequence[int]) -> "DryRun":
        """Return this object, for any clients."""
        return self

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Yield one reply."""
        yield self._run_task(task, down)

    def accept(self, reply: Reply) -> None:
        """Do nothing: a dry run stores no client state."""

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on one example."""
        return self.f.score(state, self._examples(), logits=logits)

    def _run_task(self, task: str, down: Payload, t: int = 0, report: ReportRequest = NO_REPORT) -> Reply:
        training = replace(self.runner.training, batch=len(TWO_ROWS), drop_last=False)
        runner = replace(self.runner, training=training, report=report)
        copies = {name: tensor.clone() for name, tensor in down.items()}  # a task of a faulty method writes to them
        reply = runner.run_on(self._examples(), self.f, task, 0, t, copies, None)
        for name, tensor in copies.items():
            if tensor._version:
                where, method = f"r.{name}" if name == "w" else f'r.down["{name}"]', type(self.runner.method).__name__
                message = f"method = {method}: it writes to {where}, which all clients share"
                raise UserError("method.writes_to_payload", message, "method", f"write to {where}.clone()")
        return reply

    @cached_property
    def _variances(self) -> Tensor:
        """Mask of the float buffers that are variances."""
        sizes = self.f.float_buffers.items()
        return torch.cat([torch.full((n,), name.endswith("running_var")) for name, n in sizes])

    def _examples(self) -> Examples:
        return (self.sample or self.runner.test).subset(TWO_ROWS)
