"""Flower grid without Flower's processes: real messages, the real handler, and every kind of loss."""

import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from fedrecall import run
from fedrecall.config.experiment import Experiment
from fedrecall.flower import server_app
from fedrecall.flower.app_template import write_app
from fedrecall.flower.client_app import handle_message
from fedrecall.runs.result import Result


@pytest.fixture(autouse=True)
def in_a_task() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's processes have them


@dataclass
class Loopback:
    """Grid of nodes 100, 101, ... with clients 0, 1, ...; `fate` decides what happens to a message."""

    run_config: dict[str, str]
    folder: Path
    nodes: dict[int, dict[str, object]]  # node -> its node-config
    online: set[int] = field(default_factory=set)
    fate: Callable[[int, Message], Message | None] = lambda node, reply: reply  # None: the reply is lost
    sent: list[Message] = field(default_factory=list)
    _replies: dict[str, Message] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, clients: int, run_config: dict[str, str]) -> "Loopback":
        nodes = {100 + k: {"client": k, "state": str(folder / f"state-{k}")} for k in range(clients)}
        return cls(run_config, folder, nodes, set(nodes))

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identities = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.online:
                identities.append("")
                continue
            self.sent.append(message)
            identity = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = identity  # as the SuperLink does
            identities.append(identity)
            context = Context(0, node, self.nodes[node], RecordDict(), self.run_config)
            reply = self.fate(node, handle_message(message, context))
            if reply is not None:
                self._replies[identity] = reply
        return identities

    def pull_messages(self, identities: Iterable[str]) -> list[Message]:
        return [self._replies.pop(identity) for identity in identities if identity in self._replies]


def app(folder: Path, config: Path | None, changes: str) -> dict[str, str]:
    """Return the app's configuration as `flwr run` distributes it."""
    write_app(folder / "app", config, changes.split())
    project = tomllib.loads((folder / "app" / "pyproject.toml").read_text())
    return project["tool"]["flwr"]["app"]["config"] | {"out": str(folder / "run")}


def federation(folder: Path, config: Path | None, changes: str = "") -> Loopback:
    return Loopback.of(folder, 3, app(folder, config, changes))


def federate(grid: Loopback) -> None:
    server_app.main(grid, Context(0, 0, {}, RecordDict(), grid.run_config))


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]


def serial(config: Path, changes: str) -> Result:
    return run(Experiment.load(config, changes.split()))


def same(folder: Path, expected: Result) -> bool:
    got, meant = load_file(folder / "run" / "model.safetensors"), expected.model().state_dict()
    return got.keys() == meant.keys() and all(torch.equal(got[name], meant[name]) for name in got)
