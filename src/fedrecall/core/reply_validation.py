"""What a reply must look like before anything is made of it: a client may be broken, or hostile."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from fedrecall.core.types import Payload, Reply

PayloadSpec = dict[str, tuple[torch.dtype, torch.Size]]  # of every tensor in a reply, by name

MODEL_TENSORS = ("w", "b", "counters")  # what goes down and comes up under the same name: its change counts

MAX_UPDATE_FACTOR = 1000.0  # times the global weights' own length (and 1): no honest round carries a client so far

MAX_EXTRA_FACTOR = 1e6  # the same of all that goes beside the weights, whose scale is the method's affair

MAX_CLIENT_EXAMPLES = 10**9  # examples, where nobody knows how many a client can have


class Reason(str):
    """Reason for rejecting a reply: a text with a stable code. It is a string, so files and messages store its text.

    >>> reason = Reason("reply.not_finite", "w is not finite")
    >>> reason.code, str(reason)
    ('reply.not_finite', 'w is not finite')
    """

    code: str

    def __new__(cls, code: str, text: str) -> Self:
        """Return the text with its code."""
        reason = super().__new__(cls, text)
        reason.code = code
        return reason

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Return the class and the arguments with which a copy is made."""
        return type(self), (self.code, str(self))


ReplyCheck = Callable[[Reply], str | None]  # a check beyond the form: the reason for rejecting a reply, or None


class RejectedReply(NamedTuple):
    """A rejected reply: its client and the reason."""

    client: int | None
    reason: Reason

    @property
    def code(self) -> str:
        """Code of the reason."""
        return self.reason.code


@dataclass(frozen=True)
class ReplyValidator:
    """Which replies are taken, and how many a round needs.

    The length of an update is bounded by `max_norm`, or else, where a round may go on without a reply, by a thousand
    times (1 + the length of the global weights): far beyond honest training, and near enough to keep one reply from
    drowning all others in rounding. What a method sends beside the weights is then bounded by a million times that 1 +
    length, so that no mean of it overflows.
    """

    min_replies: int | None = None  # a round goes on with so many; None: the first refusal ends the run
    max_norm: float | None = None  # of the update of the weights
    max_examples: int | None = None  # that a client can say it has
    expected_spec: Callable[[str, Payload], PayloadSpec] | None = None  # of the replies to a task, given what goes down
    extra_checks: tuple[ReplyCheck, ...] = ()  # closer ones, at replies that have the right form

    def find_error(self, reply: Reply, task: str, down: Payload) -> Reason | None:
        """Return the reason for rejecting a reply to this task, or None if the reply is valid."""
        most = self.max_examples or MAX_CLIENT_EXAMPLES
        if type(reply.n) is not int or not 1 <= reply.n <= most:
            return Reason(
                "reply.invalid_example_count",
                f"number of examples = {str(reply.n)[:40]}: it must be a whole number from 1 to {most}",
            )
        if self.expected_spec is not None and (wrong := _spec_error(reply.up, self.expected_spec(task, down))):
            return wrong
        for name in MODEL_TENSORS:
            if name in reply.up and name in down and reply.up[name].shape != down[name].shape:
                return Reason(
                    "reply.wrong_shape",
                    f"{name} has shape {list(reply.up[name].shape)}, expected {list(down[name].shape)}",
                )
        for name, t in reply.up.items():
            if not t.isfinite().all():
                return Reason("reply.not_finite", f"{name} is not finite")
        if wrong := self._norm_error(reply.up, down):
            return wrong
        found = next((text for look in self.extra_checks if (text := look(reply))), None)
        return found if found is None or isinstance(found, Reason) else Reason("reply.rejected", found)

    def _norm_error(self, up: Payload, down: Payload) -> Reason | None:
        if self.min_replies is None and self.max_norm is None:
            return None
        reach = 1 + (l2_norm(down["w"]) if "w" in down else 0.0) if self.min_replies is not None else math.inf
        for name, t in up.items():
            limit = self.max_norm or MAX_UPDATE_FACTOR * reach if name == "w" else MAX_EXTRA_FACTOR * reach
            norm = l2_norm(t - down[name] if name in MODEL_TENSORS and name in down else t)
            if not norm <= limit:
                what = "the update of w" if name == "w" else name
                return Reason("reply.norm_too_large", f"{what} has norm {norm:.3g}, above the limit of {limit:.3g}")
        return None


def l2_norm(t: torch.Tensor) -> float:
    """The L2 norm, summed in double precision so that finite numbers have a finite one."""
    return float(torch.linalg.vector_norm(t if t.is_floating_point() else t.double(), dtype=torch.float64))


def spec_of(up: Payload) -> PayloadSpec:
    """The form of a reply."""
    return {name: (t.dtype, t.shape) for name, t in up.items()}


def _spec_error(up: Payload, form: PayloadSpec) -> Reason | None:
    """Return what is wrong with the names, types and shapes of a reply, or None."""
    if missing := sorted(form.keys() - up.keys()):
        return Reason("reply.missing_tensor", f"missing tensors: {', '.join(missing)}")
    if surplus := sorted(up.keys() - form.keys()):
        names = " ".join(", ".join(surplus).split())[:80]
        return Reason("reply.unexpected_tensor", f"unexpected tensors: {names}")
    for name, (dtype, shape) in form.items():
        if up[name].dtype != dtype or up[name].shape != shape:
            got = f"{up[name].dtype} {list(up[name].shape)}"
            return Reason("reply.wrong_shape", f"{name} is {got}, expected {dtype} {list(shape)}")
    return None
