"""A round without clients: the server performs a task itself, on two examples, to learn what replies look like."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedrecall.core.client_report import ReportRequest, find_report_error
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.reply_validation import PayloadSpec, Reason, spec_of
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.data.examples import Examples
from fedrecall.simulation.clients import SimulatedClients

TWO_ROWS = torch.tensor([0, 0])  # the first test example, twice: a batch norm wants two


@dataclass(frozen=True)
class DryRun:
    """An engine of one client, which is the server itself: one step a task."""

    world: SimulatedClients
    f: FlatModel
    _known: dict[tuple[str, ...], PayloadSpec] = field(default_factory=dict)

    size: int = 1
    population: int = 1

    def expected_spec(self, task: str, down: Payload) -> PayloadSpec:
        """What a reply to this task looks like; performed once for everything of the same form that goes down."""
        key = (task, *(f"{name} {t.dtype} {list(t.shape)}" for name, t in sorted(down.items())))
        if key not in self._known:
            self._known[key] = spec_of(self._perform(task, down).up)
        return self._known[key]

    def find_report_error(self, reply: Reply) -> Reason | None:
        """Return what is wrong with the buffers and the report of a reply, which no method validates, or None."""
        if "b" in reply.up and (reply.up["b"][self._variances] < 0).any():
            return Reason("reply.invalid_value", "b has a negative variance")
        return find_report_error(reply.metrics, reply.client, self.world.report, self.world.test, self.world.classes)

    def cohort(self, t: int, clients: Sequence[int]) -> "DryRun":
        """Itself, whoever is asked."""
        return self

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """One reply."""
        yield self._perform(task, down)

    def refuse(self, client: int) -> None:
        """It remembers nothing anyway."""

    def evaluate(self, state: Tensor) -> Score:
        """The model on one example."""
        return self.f.score(state, self._pair())

    def _perform(self, task: str, down: Payload) -> Reply:
        world = self.world
        brief = replace(world.training, epochs=1, batch=len(TWO_ROWS), drop_last=False)
        alone = replace(world, training=brief, report=ReportRequest())
        own = {name: t.clone() for name, t in down.items()}  # whatever the task does to it
        return alone.run_on(self._pair(), self.f, task, 0, 0, own, None)

    @cached_property
    def _variances(self) -> Tensor:
        """Which of the float buffers are variances."""
        buffers = [(name, t.numel()) for name, t in self.f.model.named_buffers() if t.is_floating_point()]
        return torch.cat([torch.full((n,), name.endswith("running_var")) for name, n in buffers])

    def _pair(self) -> Examples:
        return self.world.test.subset(TWO_ROWS)
