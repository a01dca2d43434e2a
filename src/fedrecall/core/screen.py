"""What a reply must look like before anything is made of it: a client may be broken, or hostile."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fedrecall.core.types import Payload, Reply

Form = dict[str, tuple[torch.dtype, torch.Size]]  # of every tensor in a reply, by name
ABSURD = 1000.0  # times the global weights' own length (and 1): no honest round carries a client so far


class Refusal(NamedTuple):
    """A reply that was left out, and why."""

    client: int | None
    reason: str


@dataclass(frozen=True)
class Screen:
    """Which replies are taken, and how many a round needs.

    The length of an update is bounded by `max_norm`, or else, where a round may go on without a reply, by a thousand
    times (1 + the length of the global weights): far beyond honest training, and near enough to keep one reply from
    drowning all others in rounding.
    """

    min_replies: int | None = None  # a round goes on with so many; None: the first refusal ends the run
    max_norm: float | None = None  # of the update of the weights
    max_examples: int | None = None  # that a client can say it has
    form: Callable[[str, Payload], Form] | None = None  # of the replies to a task, given what goes down

    def why_not(self, reply: Reply, task: str, down: Payload) -> str | None:
        """Why a reply to this task is refused; None if it is not."""
        if type(reply.n) is not int or reply.n < 1 or reply.n > (self.max_examples or math.inf):
            most = "" if self.max_examples is None else f" to {self.max_examples}"
            return f"it says that it has {reply.n} examples, which is not from 1{most}"
        if self.form is not None and (wrong := _misshapen(reply.up, self.form(task, down))):
            return wrong
        for name, t in reply.up.items():
            if t.is_floating_point() and not t.isfinite().all():
                return f"its {name} is not finite"
        return self._too_far(reply.up, down)

    def _too_far(self, up: Payload, down: Payload) -> str | None:
        if "w" not in up or "w" not in down:
            return None
        if up["w"].shape != down["w"].shape:
            return f"its w is {list(up['w'].shape)}, not {list(down['w'].shape)}"
        generous = math.inf if self.min_replies is None else ABSURD * (1 + length(down["w"]))
        limit = self.max_norm or generous
        norm = length(up["w"] - down["w"])
        return f"its update has norm {norm:.3g}, above {limit:.3g}" if not norm <= limit else None


def length(t: torch.Tensor) -> float:
    """The L2 norm, summed in double precision so that finite numbers have a finite one."""
    return float(torch.linalg.vector_norm(t, dtype=torch.float64))


def form_of(up: Payload) -> Form:
    """The form of a reply."""
    return {name: (t.dtype, t.shape) for name, t in up.items()}


def _misshapen(up: Payload, form: Form) -> str | None:
    """What is wrong with the names, types and shapes of a reply."""
    if missing := sorted(form.keys() - up.keys()):
        return f"it lacks {', '.join(missing)}"
    if surplus := sorted(up.keys() - form.keys()):
        return f"it carries {', '.join(surplus)[:80]}, which nobody asked for"
    for name, (dtype, shape) in form.items():
        if up[name].dtype != dtype or up[name].shape != shape:
            return f"its {name} is {up[name].dtype} {list(up[name].shape)}, not {dtype} {list(shape)}"
    return None
