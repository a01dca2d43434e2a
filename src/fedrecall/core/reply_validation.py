"""Validation of replies before the method uses them: a client may be faulty or malicious."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from fedrecall.core.types import Payload, Reply
from fedrecall.errors import first_line, printable

PayloadSpec = dict[str, tuple[torch.dtype, torch.Size]]  # type and shape of every tensor in a payload, by name


class ReplySpec(NamedTuple):
    """Form of the replies to a task."""

    up: PayloadSpec
    reports: tuple[PayloadSpec, ...]  # forms that the metrics may have: with and without a training step


MODEL_TENSORS = ("w", "b", "counters")  # sent and returned under the same name: the norm of their change is limited

MAX_UPDATE_FACTOR = (
    1000.0  # limit of an update's norm, times (1 + norm of the global weights): far beyond honest training
)

MAX_EXTRA_FACTOR = 1e6  # the same for tensors besides the weights, whose scale depends on the method

MAX_METRIC = 1e30  # absolute value of a metric in a report: no mean or sum of finite metrics overflows

MAX_CLIENT_EXAMPLES = 10**9  # examples of a client, where federation.max_examples is not set


class Reason(str):
    """Reason for rejecting a reply: a text with a stable code. It is a string, so files and messages store its text.

    >>> reason = Reason("reply.not_finite", "w is not finite")
    >>> reason.code, str(reason)
    ('reply.not_finite', 'w is not finite')
    """

    code: str

    def __new__(cls, code: str, text: str) -> Self:
        """Return the text with its code. The text may quote a reply: it becomes one printable line."""
        reason = super().__new__(cls, printable(text))
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
    """Rules that replies must meet, and the number of valid replies that a round needs.

    The norm of an update is limited by `max_norm`. Without it, if a round may continue without a reply, the limit is a
    thousand times (1 + the norm of the global weights): far beyond honest training, and small enough that one reply
    cannot drown all others in rounding errors. Tensors besides the weights are limited by a million times that, so that
    no mean overflows.
    """

    min_replies: int | None = None
    """Valid replies with which a round continues. None: the first invalid reply stops the run."""
    max_norm: float | None = None
    """Limit of the norm of the update of the weights."""
    max_examples: int | None = None
    """Largest number of examples that a client may claim."""
    expected_spec: Callable[[str, Payload, int], ReplySpec] | None = None
    """Returns the form of the replies to a task with this payload in a round. None: replies of trusted code."""
    extra_checks: tuple[ReplyCheck, ...] = ()
    """Checks of replies that have the right form."""

    def find_error(self, reply: Reply, task: str, down: Payload, t: int) -> Reason | None:
        """Return the reason for rejecting a reply to this task of round t, or None if the reply is valid."""
        if self.expected_spec is None:
            return self._find_error(reply, down, None)
        spec = self.expected_spec(task, down, t)
        try:
            return self._find_error(reply, down, spec)
        except Exception as error:  # of a reply that no check foresees: it must not end the run
            return Reason("reply.unreadable", f"{type(error).__name__} while reading the reply: {first_line(error)}")

    def _find_error(self, reply: Reply, down: Payload, spec: ReplySpec | None) -> Reason | None:
        max_examples = self.max_examples or MAX_CLIENT_EXAMPLES
        if type(reply.n) is not int or not 1 <= reply.n <= max_examples:
            return Reason(
                "reply.invalid_example_count",
                f"number of examples = {str(reply.n)[:40]}: it must be a whole number from 1 to {max_examples}",
            )
        if spec is not None and (wrong := _spec_error(reply.up, spec.up) or _report_error(reply.metrics, spec.reports)):
            return wrong
        for name in MODEL_TENSORS:
            if name in reply.up and name in down and reply.up[name].shape != down[name].shape:
                return Reason(
                    "reply.wrong_shape",
                    f"{name} has shape {list(reply.up[name].shape)}, expected {list(down[name].shape)}",
                )
        for name, t in reply.up.items():
            if not is_finite(t):
                return Reason("reply.not_finite", f"{name} is not finite")
        if wrong := self._norm_error(reply.up, down):
            return wrong
        found = next((text for check in self.extra_checks if (text := check(reply))), None)
        return found if found is None or isinstance(found, Reason) else Reason("reply.rejected", found)

    def _norm_error(self, up: Payload, down: Payload) -> Reason | None:
        if self.min_replies is None and self.max_norm is None:
            return None
        scale = 1 + (l2_norm(down["w"]) if "w" in down else 0.0) if self.min_replies is not None else math.inf
        for name, t in up.items():
            limit = self.max_norm or MAX_UPDATE_FACTOR * scale if name == "w" else MAX_EXTRA_FACTOR * scale
            norm = l2_norm(t - down[name] if name in MODEL_TENSORS and name in down else t)
            if not norm <= limit:
                what = "the update of w" if name == "w" else name
                return Reason("reply.norm_too_large", f"{what} has norm {norm:.3g}, above the limit of {limit:.3g}")
        return None


def is_finite(t: torch.Tensor) -> bool:
    """Return True if all values are finite. If their sum is finite they are, and a sum takes a fraction of the time."""
    return math.isfinite(float(t.sum())) or bool(t.isfinite().all())


def l2_norm(t: torch.Tensor) -> float:
    """Return the L2 norm, summed in double precision so that it is finite for finite numbers."""
    return float(torch.linalg.vector_norm(t if t.is_floating_point() else t.double(), dtype=torch.float64))


def spec_of(up: Payload) -> PayloadSpec:
    """Return type and shape of every tensor of a reply."""
    return {name: (t.dtype, t.shape) for name, t in up.items()}


def _spec_error(payload: Payload, spec: PayloadSpec, where: str = "") -> Reason | None:
    """Return what is wrong with the names, types and shapes of a payload, or None."""
    if missing := sorted(spec.keys() - payload.keys()):
        return Reason("reply.missing_tensor", f"missing tensors{where}: {', '.join(missing)}")
    if unexpected := sorted(payload.keys() - spec.keys()):
        return Reason("reply.unexpected_tensor", f"unexpected tensors{where}: {', '.join(unexpected)[:80]}")
    for name, (dtype, shape) in spec.items():
        if payload[name].dtype != dtype or payload[name].shape != shape:
            got = f"{payload[name].dtype} {list(payload[name].shape)}"
            return Reason("reply.wrong_shape", f"{name}{where} is {got}, expected {dtype} {list(shape)}")
    return None


def _report_error(report: Payload, forms: tuple[PayloadSpec, ...]) -> Reason | None:
    """Return what is wrong with the form or the values of a report, or None."""
    errors = [_spec_error(report, form, " in the report") for form in forms]
    if all(errors):
        return errors[0]
    for name, t in report.items():
        if not is_finite(t):
            return Reason("reply.not_finite", f"{name} is not finite")
        if t.is_floating_point() and not (t.abs() <= MAX_METRIC).all():
            return Reason("reply.invalid_value", f"{name} in the report exceeds {MAX_METRIC:g}")
    return None
