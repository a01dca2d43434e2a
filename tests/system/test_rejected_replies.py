"""A reply that is refused leaves nothing behind: neither in the model nor in what its client remembers."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import fedrecall as fr
from fedrecall.core.exchange import Diverged, Exchange, ReplyPolicy
from fedrecall.core.method_extensions import Traits
from fedrecall.core.optim import ServerSGD
from fedrecall.core.reply_validation import ReplyValidator
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server
from fedrecall.simulation import ENGINES, ClientStateStore
from fedrecall.simulation.availability import UnreliableClients
from fedrecall.testing.federation import SKEWED_LABELS, model, simulated_clients
from support.malicious_client import Lying

EVERYONE = range(len(SKEWED_LABELS))
engines = pytest.mark.parametrize("name", ENGINES)


@dataclass(frozen=True)
class Counts(fr.Method):
    """Two exchanges; a client remembers how many of its replies were taken."""

    @property
    def traits(self) -> Traits:
        return Traits(extra_tasks=("greet",))

    def memory(self, w: Tensor) -> Payload:
        return {"taken": torch.tensor(0)}

    def greet(self, r: Local) -> Payload:
        return {"hello": torch.tensor(1.0)}

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        return {"w": w}, {"taken": r.memory["taken"] + 1}

    def round(self, server: Server, cohort: Cohort) -> Server:
        for _ in cohort.run("greet", {}):
            pass
        return self.aggregate(server, cohort.run("train", {"w": server.w}), cohort)


def taken(memories: ClientStateStore) -> dict[int, int]:
    return {client: int(memory["taken"]) for client, memory in memories.items()}


def spoiled(t: int, *rounds: int):
    """A lie about the weights in some rounds."""

    def lie(reply: Reply) -> Reply:
        return reply._replace(up={"w": reply.up["w"] * torch.nan}) if t in rounds and "w" in reply.up else reply

    return lie


@engines
@pytest.mark.parametrize("absent", [False, True])
def test_a_rejected_client_keeps_its_state(name: str, absent: bool) -> None:
    f, method = model(), Counts()
    server = Server(f, f.w, f.b, f.int_buffers, ServerSGD())
    with ENGINES[name](simulated_clients(method), f) as engine:
        for t in range(4):
            liar = Lying(UnreliableClients(engine, [1] * 5, 5, seed=0) if absent else engine, spoiled(t, 1, 3))
            exchange = Exchange(server, liar.cohort(t, EVERYONE), ReplyPolicy(ReplyValidator(min_replies=4)))
            server = method.round(server, exchange)
            assert [refusal.client for refusal in exchange.rejected] == ([3] if t in (1, 3) else [])
        assert taken(engine.client_state) == {0: 4, 1: 4, 2: 4, 3: 2, 4: 4}


@engines
def test_a_client_rejected_at_the_end_of_the_run_keeps_its_state(name: str) -> None:
    f, method = model(), Counts()
    with ENGINES[name](simulated_clients(method), f) as engine:
        exchange = Exchange(
            Server(f, f.w, f.b, f.int_buffers, ServerSGD()), Lying(engine, spoiled(0, 0)).cohort(0, EVERYONE)
        )
        replies = exchange.run("train", {"w": f.w})
        with pytest.raises(Diverged) as error:
            list(replies)
        assert (error.value.code, error.value.key) == ("reply.not_finite", "engine.min_replies")
        assert "client 3" in str(error.value)
        assert 3 not in engine.client_state


def test_states_of_rejected_clients_in_a_resumed_run(tmp_path) -> None:
    """Hostile SCAFFOLD clients keep the control variate they began with, also over a checkpoint."""
    given = {
        "federation": {"clients": 7, "attack": {"name": "scaling", "share": 0.3, "scale": 1e6}, "max_norm": 10.0},
        "local": {"epochs": 1},
        "method": {"name": "scaffold"},
        "engine": {"name": "serial", "min_replies": 5},
        "run": {"rounds": 3},
    }

    def stop(line: dict[str, object]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(given, out=tmp_path / "a", watch=stop)
    remembered = {int(p.name.partition("-")[0]) for p in (tmp_path / "a" / "checkpoints" / "memories").iterdir()}
    resumed, whole = fr.run(given, out=tmp_path / "a", resume=True), fr.run(given)
    hostile = {refusal["client"] for refusal in whole.rounds[0]["refused"]}
    assert len(hostile) == 2
    assert remembered == set(range(7)) - hostile
    assert torch.equal(resumed.server.state, whole.server.state)
