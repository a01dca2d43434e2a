"""A rejected reply changes neither the model nor its client's state."""

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
from support.malicious_client import MaliciousEngine

ALL_CLIENTS = range(len(SKEWED_LABELS))
engines = pytest.mark.parametrize("name", ENGINES)


@dataclass(frozen=True)
class Counts(fr.Method):
    """Method with two exchanges; a client's state counts its accepted replies."""

    @property
    def traits(self) -> Traits:
        return Traits(extra_tasks=("greet",))

    def memory(self, w: Tensor) -> Payload:
        return {"accepted": torch.tensor(0)}

    def greet(self, r: Local) -> Payload:
        return {"hello": torch.tensor(1.0)}

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        return {"w": w}, {"accepted": r.memory["accepted"] + 1}

    def round(self, server: Server, cohort: Cohort) -> Server:
        for _ in cohort.run("greet", {}):
            pass
        return self.aggregate(server, cohort.run("train", {"w": server.w}), cohort)


def accepted_counts(client_states: ClientStateStore) -> dict[int, int]:
    return {client: int(memory["accepted"]) for client, memory in client_states.items()}


def spoiled(t: int, *rounds: int):
    """Return a function that poisons the weights in some rounds."""

    def poison(reply: Reply) -> Reply:
        return reply._replace(up={"w": reply.up["w"] * torch.nan}) if t in rounds and "w" in reply.up else reply

    return poison


@engines
@pytest.mark.parametrize("with_absent", [False, True])
def test_a_rejected_client_keeps_its_state(name: str, with_absent: bool) -> None:
    f, method = model(), Counts()
    server = Server(f, f.w, f.b, f.int_buffers, ServerSGD())
    with ENGINES[name](simulated_clients(method), f) as engine:
        for t in range(4):
            malicious = MaliciousEngine(
                UnreliableClients(engine, [1] * 5, 5, seed=0) if with_absent else engine, spoiled(t, 1, 3)
            )
            exchange = Exchange(server, malicious.cohort(t, ALL_CLIENTS), ReplyPolicy(ReplyValidator(min_replies=4)))
            server = method.round(server, exchange)
            assert [rejection.client for rejection in exchange.rejected] == ([3] if t in (1, 3) else [])
        assert accepted_counts(engine.client_state) == {0: 4, 1: 4, 2: 4, 3: 2, 4: 4}


@engines
def test_a_client_rejected_at_the_end_of_the_run_keeps_its_state(name: str) -> None:
    f, method = model(), Counts()
    with ENGINES[name](simulated_clients(method), f) as engine:
        exchange = Exchange(
            Server(f, f.w, f.b, f.int_buffers, ServerSGD()),
            MaliciousEngine(engine, spoiled(0, 0)).cohort(0, ALL_CLIENTS),
        )
        replies = exchange.run("train", {"w": f.w})
        with pytest.raises(Diverged) as error:
            list(replies)
        assert (error.value.code, error.value.key) == ("reply.not_finite", "engine.min_replies")
        assert "client 3" in str(error.value)
        assert 3 not in engine.client_state


def test_states_of_rejected_clients_in_a_resumed_run(tmp_path) -> None:
    """Malicious SCAFFOLD clients keep their first control variate, also over a checkpoint."""
    config = {
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
        fr.run(config, out=tmp_path / "a", watch=stop)
    stored = {int(p.name.partition("-")[0]) for p in (tmp_path / "a" / "checkpoints" / "memories").iterdir()}
    resumed, complete = fr.run(config, out=tmp_path / "a", resume=True), fr.run(config)
    malicious_clients = {rejection["client"] for rejection in complete.rounds[0]["refused"]}
    assert len(malicious_clients) == 2
    assert {rejection["code"] for rejection in complete.rounds[0]["refused"]} == {"reply.norm_too_large"}
    assert stored == set(range(7)) - malicious_clients
    assert torch.equal(resumed.server.state, complete.server.state)
