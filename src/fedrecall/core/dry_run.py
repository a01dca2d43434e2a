"""A round without clients: the server performs a task itself, on two examples, to learn what replies look like."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedrecall.core.client_report import Observe, misreport
from fedrecall.core.flat_model import Flat
from fedrecall.core.reply_validation import Form, Reason, form_of
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.data.examples import Examples
from fedrecall.simulation.clients import World

PAIR = torch.tensor([0, 0])  # the first test example, twice: a batch norm wants two


@dataclass(frozen=True)
class Rehearsal:
    """An engine of one client, which is the server itself: one step a task."""

    world: World
    f: Flat
    _known: dict[tuple[str, ...], Form] = field(default_factory=dict)

    size: int = 1
    population: int = 1

    def form(self, task: str, down: Payload) -> Form:
        """What a reply to this task looks like; performed once for everything of the same form that goes down."""
        key = (task, *(f"{name} {t.dtype} {list(t.shape)}" for name, t in sorted(down.items())))
        if key not in self._known:
            self._known[key] = form_of(self._perform(task, down).up)
        return self._known[key]

    def look(self, reply: Reply) -> Reason | None:
        """Return what is wrong with the buffers and the report of a reply, which no method validates, or None."""
        if "b" in reply.up and (reply.up["b"][self._variances] < 0).any():
            return Reason("reply.invalid_value", "b has a negative variance")
        return misreport(reply.report, reply.client, self.world.observe, self.world.test, self.world.classes)

    def cohort(self, t: int, clients: Sequence[int]) -> "Rehearsal":
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
        brief = replace(world.training, epochs=1, batch=len(PAIR), drop_last=False)
        alone = replace(world, training=brief, observe=Observe())
        own = {name: t.clone() for name, t in down.items()}  # whatever the task does to it
        return alone.perform_on(self._pair(), self.f, task, 0, 0, own, None)

    @cached_property
    def _variances(self) -> Tensor:
        """Which of the float buffers are variances."""
        buffers = [(name, t.numel()) for name, t in self.f.model.named_buffers() if t.is_floating_point()]
        return torch.cat([torch.full((n,), name.endswith("running_var")) for name, n in buffers])

    def _pair(self) -> Examples:
        return self.world.test.take(PAIR)
