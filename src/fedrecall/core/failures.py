"""Policy for clients that raise an exception or whose worker exits."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fedrecall.errors import UserError

CLIENT_FAILED = "round.client_failed"  # code of an exception in a client's own code


class ClientFailure(NamedTuple):
    """A client without a reply: its code raised an exception, or its worker or node failed."""

    t: int  # round, from 0
    client: int
    error: str  # one line
    traceback: str
    code: str = CLIENT_FAILED


class RemoteTraceback(Exception):
    """Traceback of another process, shown as the cause of an exception in this one."""

    def __str__(self) -> str:
        return f"in a worker process:\n{self.args[0]}"


@dataclass(frozen=True)
class FailurePolicy:
    """Reaction of a run to clients that fail.

    By default a run stops at the first failure: in a simulation an exception is usually a mistake in the code, and a
    mean over the remaining clients would hide it.
    """

    min_replies: int | None = None
    """Replies with which a round continues. None: all."""
    save_traceback: Callable[[ClientFailure], str | None] | None = None
    """Stores a traceback; returns its path, or None."""


@dataclass
class FailureTracker:
    """Clients that failed in one exchange."""

    policy: FailurePolicy
    t: int
    num_clients: int
    missing: list[int] = field(default_factory=list)

    def record(
        self,
        client: int,
        error: str,
        text: str,
        cause: BaseException,
        code: str = CLIENT_FAILED,
        key: str | None = None,
    ) -> None:
        """Store the traceback; raise a UserError if too few replies are left.

        `code` and `key` are those of the client's error. A run that needs every reply stops with them.
        """
        self.missing.append(client)
        save, min_replies = self.policy.save_traceback, self.policy.min_replies
        path = save(ClientFailure(self.t, client, error, text, code)) if save else None
        required = self.num_clients if min_replies is None else min(min_replies, self.num_clients)
        left = self.num_clients - len(self.missing)
        if left >= required:
            return
        line = f"round {self.t + 1}: client {client} failed: {error}"
        hint = f"see the traceback in {path}" if path else None
        if min_replies is not None:
            line += f", {left} of {self.num_clients} replies are left, engine.min_replies = {required}"
            raise UserError("round.too_few_replies", line, "engine.min_replies", hint) from cause
        raise UserError(code, line, key, hint) from cause


def format_exception(error: BaseException) -> tuple[str, str]:
    """Return an exception as one line, and as text with its traceback."""
    line = " ".join("".join(traceback.format_exception_only(error)).split())
    return line, "".join(traceback.format_exception(error))
