"""Jobs of workers and their results, independent of the transport.

The result of a job is a function of its message, the broadcast payload and its client's payloads: it can be retried.
"""

from typing import NamedTuple

import torch

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.failures import CLIENT_FAILED, format_exception
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.precision import require_fast
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.shared_memory import Message


class TaskJob(NamedTuple):
    """Job: a client's task."""

    task: str
    client: int
    t: int
    client_state: ClientStateStore

    @property
    def message(self) -> Message:
        """Description of the job, as JSON values."""
        return {"task": self.task, "client": self.client, "t": self.t}

    def client_payloads(self) -> dict[str, Payload]:
        """Return what is sent to the worker of this job alone. Read when the job is submitted."""
        memory = self.client_state.get(self.client)
        return {} if memory is None else {"memory": memory}


class ScoreJob(NamedTuple):
    """Job: evaluation of the broadcast model on rows of the test set."""

    ranges: list[list[int]]
    logits: bool

    @property
    def message(self) -> Message:
        """Description of the job, as JSON values."""
        return {"score": self.ranges, "logits": self.logits}

    @property
    def client(self) -> None:
        """No client."""
        return None

    def client_payloads(self) -> dict[str, Payload]:
        """Return no payloads."""
        return {}


Job = TaskJob | ScoreJob


class JobResult(NamedTuple):
    """Result of a job."""

    message: Message
    payloads: dict[str, Payload]


def run_job(clients: SimulatedClients, f: FlatModel, message: Message, payloads: dict[str, Payload]) -> JobResult:
    """Run a job. An exception is returned as text: a user's exception class may not exist in the other process."""
    try:
        return _run(clients, f, message, payloads)
    except UserError as error:
        fields = [error.code, error.message, error.key, error.hint]
        return JobResult({"user_error": fields, "kind": type(error).__name__}, {})
    except Exception as error:
        line, text = format_exception(error)
        return JobResult({"error": line, "traceback": text, "code": CLIENT_FAILED}, {})


def _run(clients: SimulatedClients, f: FlatModel, message: Message, payloads: dict[str, Payload]) -> JobResult:
    down = payloads["down"]
    if "task" in message:
        require_fast(clients.training.precision, f.w.device)
        task, client, t = message["task"], message["client"], message["t"]
        reply = clients.run_task(f, task, client, t, down, payloads.get("memory"))
        return JobResult({"n": reply.n}, {"up": reply.up, "memory": reply.memory, "report": reply.metrics})
    state = down["state"].to(f.w.device)
    logits = message["logits"]
    scores = [f.score(state, clients.test.subset(torch.arange(*rows)), logits=logits) for rows in message["score"]]
    out = {"predicted": torch.cat([score.predicted for score in scores])}
    if logits:
        out["z"] = torch.cat([score.z for score in scores if score.z is not None])
    return JobResult({"losses": [score.loss for score in scores]}, {"score": out})
