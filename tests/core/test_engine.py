"""The cohort that engines share: acceptance alone changes client states, and counts as participation."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.engine import TaskEngine
from fedrecall.core.exchange import Exchange, ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.reply_validation import ReplyValidator
from fedrecall.core.types import Payload, Reply, Score
from support.tiny_federation import flat, server


class Recorded(TaskEngine):
    """Engine whose replies are made by hand; those of client 2 are not finite."""

    population = 5

    def __init__(self, client_state: ClientStateStore | None = None) -> None:
        self.client_state = ClientStateStore() if client_state is None else client_state
        self.calls: list[tuple[int, list[int], str]] = []

    def run_task(self, t: int, clients: Sequence[int], task: str, down: Payload) -> Iterator[Reply]:
        self.calls.append((t, list(clients), task))
        for client in clients:
            w = torch.full_like(down["w"], float("nan") if client == 2 else client)
            yield Reply({"w": w}, 1, {"t": torch.tensor(t)}, {}, client)

    def evaluate(self, state: torch.Tensor) -> Score:
        raise NotImplementedError


def test_a_cohort_carries_round_and_clients_to_the_engine() -> None:
    engine = Recorded()
    cohort = engine.cohort(4, [3, 1])
    assert (cohort.size, cohort.population) == (2, 5)
    assert [reply.client for reply in cohort.run("count", {"w": torch.zeros(1)})] == [3, 1]
    assert engine.calls == [(4, [3, 1], "count")]


def test_only_accepted_replies_change_client_states() -> None:
    engine = Recorded()
    cohort = engine.cohort(0, [0, 1])
    first, second = cohort.run("train", {"w": torch.zeros(1)})
    assert not list(engine.client_state)
    cohort.accept(second)
    assert list(engine.client_state) == [1]
    cohort.accept(first)
    cohort.accept(next(engine.cohort(7, [1]).run("train", {"w": torch.zeros(1)})))
    assert {client: int(state["t"]) for client, state in engine.client_state.items()} == {0: 0, 1: 7}


def test_a_reply_without_a_client_cannot_be_accepted() -> None:
    with pytest.raises(AssertionError):
        Recorded().cohort(0, [0]).accept(Reply({}, 1, {}, {}))


def test_the_number_of_participants_is_that_of_accepted_replies() -> None:
    engine, method, f = Recorded(), Method(), flat()
    exchange = Exchange(server(f, method), engine.cohort(0, [0, 1, 2, 4]), ReplyPolicy(ReplyValidator(min_replies=2)))
    after = method.round(server(f, method), exchange)
    assert exchange.size == exchange.replies == 3
    assert [rejection.client for rejection in exchange.rejected] == [2]
    assert sorted(engine.client_state) == [0, 1, 4]
    torch.testing.assert_close(after.w, torch.full_like(f.w, (0 + 1 + 4) / 3))


def test_leaving_the_context_removes_the_files_of_client_states(tmp_path: Path) -> None:
    with Recorded(ClientStateStore(tmp_path, cache_bytes=0)) as engine:
        engine.client_state.update({0: {"t": torch.tensor(0)}, 1: {"t": torch.tensor(1)}})
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
