"""Clients of a simulation: a partition of one training set, some of the clients malicious."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from fedrecall.core.client import ClientRunner
from fedrecall.core.evaluation import EVALUATE, HeldOutPart
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload, Reply
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition
from fedrecall.simulation.attacks import Attack, ClientAttack, malicious_clients

DATASET_PRECOMPUTE_BYTES = 256 * 2**20  # limit for holding all transformed examples in memory, shared by the workers


@dataclass(frozen=True, kw_only=True)
class SimulatedClients(ClientRunner):
    """Client runner over a partition."""

    train: Examples
    """Training examples of all clients."""
    test: Examples
    partition: Partition
    held_out: dict[HeldOutPart, Partition] = field(default_factory=dict)
    """Examples held out from the clients for evaluation."""
    attack: Attack | None = None
    """Attack of the malicious clients. None: all clients are honest."""

    @cached_property
    def malicious(self) -> frozenset[int]:
        """Malicious clients."""
        return frozenset() if self.attack is None else malicious_clients(self.attack, len(self.partition), self.seed)

    def precomputed(self) -> "SimulatedClients":
        """Return the clients with examples that are transformed once for the whole run, unless they are many.

        Attacks work on the examples as they are stored.
        """
        if self.attack is not None:
            return self
        train, test = (examples.precomputed(DATASET_PRECOMPUTE_BYTES) for examples in (self.train, self.test))
        return replace(self, train=train, test=test)

    def largest_first(self, clients: Sequence[int]) -> list[int]:
        """Sort clients by their number of examples, largest first: the order of starting and summing on all engines."""
        return sorted(clients, key=lambda client: (-len(self.partition.rows(client)), client))

    def run_task(self, f: FlatModel, task: str, client: int, t: int, down: Payload, memory: Payload | None) -> Reply:
        """Run one client's task of round t. `memory` is None if the client has no state yet."""
        if task == EVALUATE:
            parts = {
                part: self.train.subset(torch.from_numpy(rows.rows(client))) for part, rows in self.held_out.items()
            }
            data = self.train.subset(torch.from_numpy(self.partition.rows(client)))
            return self.evaluate_on(data, parts, f, client, t, down, memory)
        data = self.train.subset(torch.from_numpy(self.partition.rows(client)))
        # a check against a protocol takes 0.1 ms, so it comes last
        if self.attack is None or client not in self.malicious or not isinstance(self.attack, ClientAttack):
            return self.run_on(data, f, task, client, t, down, memory)
        reply = self.run_on(self.attack.poison_data(data, self.classes), f, task, client, t, down, memory)
        return reply._replace(up=self.attack.poison_update(reply.up, down))
