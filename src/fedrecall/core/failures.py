"""Clients that fail: what is kept of it, and when it is too much for a round."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fedrecall.errors import UserError

CLIENT_FAILED = "round.client_failed"  # code of an exception in a client's own code


class ClientFailure(NamedTuple):
    """A client without a reply: its code raised an exception, or its worker or node failed."""

    t: int  # the round, from 0
    client: int
    error: str  # one line
    traceback: str
    code: str = CLIENT_FAILED


class RemoteTraceback(Exception):
    """The traceback of another process, shown as the cause of what is raised in this one."""

    def __str__(self) -> str:
        return f"in a worker process:\n{self.args[0]}"


@dataclass(frozen=True)
class FailurePolicy:
    """What a run does about clients that fail.

    By default it stops at the first one: in a simulation an exception is a mistake in the code far more often than a
    fault worth simulating, and a mean over the clients that happened to survive would hide it.
    """

    min_replies: int | None = None  # a round goes on with so many; None: all
    save_traceback: Callable[[ClientFailure], str | None] | None = (
        None  # where the traceback goes; may say where that is
    )


@dataclass
class FailureTracker:
    """Who failed in one exchange."""

    faults: FailurePolicy
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
        place = (
            self.faults.save_traceback(ClientFailure(self.t, client, error, text, code))
            if self.faults.save_traceback
            else None
        )
        least = self.num_clients if self.faults.min_replies is None else min(self.faults.min_replies, self.num_clients)
        left = self.num_clients - len(self.missing)
        if left >= least:
            return
        line = f"round {self.t + 1}: client {client} failed: {error}"
        hint = f"see the traceback in {place}" if place else None
        if self.faults.min_replies is not None:
            line += f", {left} of {self.num_clients} replies are left, engine.min_replies = {least}"
            raise UserError("round.too_few_replies", line, "engine.min_replies", hint) from cause
        raise UserError(code, line, key, hint) from cause


def format_exception(error: BaseException) -> tuple[str, str]:
    """An exception as one line, and with its traceback."""
    line = " ".join("".join(traceback.format_exception_only(error)).split())
    return line, "".join(traceback.format_exception(error))
