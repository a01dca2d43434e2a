"""A client's task, as a pure function: the same bits in whatever process and however often it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fedrecall.core import seeds
from fedrecall.core.client_report import ClientReporter, ReportRequest
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.training import LocalTraining, train
from fedrecall.core.types import Local, Payload, Reply
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition
from fedrecall.errors import UserError
from fedrecall.simulation.attacks import Attack, malicious_clients


@dataclass(frozen=True)
class SimulatedClients:
    """What every client's task may look at, the same in every process."""

    method: Method
    training: LocalTraining
    train: Examples
    test: Examples
    partition: Partition
    classes: int
    seed: int
    report: ReportRequest = ReportRequest()  # what clients report of their training
    attack: Attack | None = None  # what some clients do instead of what they should

    @cached_property
    def malicious(self) -> frozenset[int]:
        """The clients that do."""
        return frozenset() if self.attack is None else malicious_clients(self.attack, len(self.partition), self.seed)

    def largest_first(self, clients: Sequence[int]) -> list[int]:
        """The clients with most examples first: the order in which every engine starts and sums them."""
        return sorted(clients, key=lambda client: (-len(self.partition.rows(client)), client))

    def run_task(self, f: FlatModel, task: str, client: int, t: int, down: Payload, memory: Payload | None) -> Reply:
        """One client's answer to one task of round t; no memory means that it never took part."""
        data = self.train.subset(torch.from_numpy(self.partition.rows(client)))
        if self.attack is None or client not in self.malicious:
            return self.run_on(data, f, task, client, t, down, memory)
        reply = self.run_on(self.attack.poison_data(data, self.classes), f, task, client, t, down, memory)
        return reply._replace(up=self.attack.poison_update(reply.up, down))

    def run_on(
        self, data: Examples, f: FlatModel, task: str, client: int, t: int, down: Payload, memory: Payload | None
    ) -> Reply:
        """The same on examples that need not be a client's."""
        data, down = data.precomputed(), to_device(down, f.w.device)
        if memory is None:
            memory = self.method.memory(down.get("w", f.w))
        memory = to_device(memory, f.w.device)
        if "w" in down:
            w, b = down["w"], down.get("b", f.b)
        else:  # no global weights: a client goes on with its own, which start as everyone's
            w, b = f.split(memory.get("own", f.w))
        r = Local(
            f=f,
            w=w,
            b=b if len(b) else f.b,
            down=down,
            memory=memory,
            data=data,
            y=data.y.to(f.w.device),
            counts=data.class_counts(self.classes).to(f.w.device),
            lr=self.training.sgd.lr_at(t),
            momentum=self.training.sgd.momentum,
            prox=self.training.sgd.prox,
            batch=self.training.batch,
            t=t,
            seed=seeds.derive_seed(self.seed, "method", t, client),
            scratch={},
        )
        if task == "train":
            observer = None
            if self.report != ReportRequest() or self.method.personal:
                observer = ClientReporter(self.report, self.method, f, r, self.test, client)
            reply = train(self.method, r, self.training, self.seed, client, observer)
        else:
            reply = Reply(self._method_task(task)(r), len(r.y), r.memory, {})
        home = torch.device("cpu")
        return Reply(to_device(reply.up, home), reply.n, to_device(reply.memory, home), to_device(reply.metrics, home))

    def _method_task(self, task: str) -> Callable[[Local], Payload]:
        """A task of the method's own. A task's name may have come from another machine."""
        if task not in self.method.tasks:
            declared = ", ".join(["train", *self.method.tasks])
            raise UserError(
                "method.unknown_task",
                f'{type(self.method).__name__} has no task "{task[:40]}" (its tasks: {declared})',
                "method",
                "add the task to Method.tasks",
            )
        own: Callable[[Local], Payload] = getattr(self.method, task)
        return own


def to_device(payload: Payload, device: torch.device) -> Payload:
    """The same tensors on a device; those that are there already are not copied."""
    return {name: t.to(device) for name, t in payload.items()}
