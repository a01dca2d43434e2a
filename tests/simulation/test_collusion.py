"""Colluding attackers: their formulae by hand and by search, and their place between the clients and the server."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedrecall as fr
from fedrecall.data.examples import NO_TRANSFORM, Examples
from fedrecall.simulation import SerialEngine
from fedrecall.simulation.attacks import Backdoor, LabelFlip
from fedrecall.simulation.collusion import (
    ColludingClients,
    Collusion,
    InnerProductManipulation,
    LittleIsEnough,
    Mimic,
    MinMax,
)
from fedrecall.testing.federation import CLASSES, model, simulated_clients

HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 3.0]])


def test_a_little_is_enough_by_hand() -> None:
    torch.testing.assert_close(LittleIsEnough(z=1.5).forge(HONEST, 1), torch.tensor([3 + 1.5 * 2, 1 + 1.5 * 3**0.5]))
    # n = 50, m = 24: s = 26 - 24 = 2, quantile 24 / 26 (the example of the paper's Section 3.3 has z = 1.43)
    assert LittleIsEnough.largest_z(26, 24) == pytest.approx(1.426, abs=1e-3)
    assert LittleIsEnough.largest_z(18, 2) == 0, "too few to be within the spread of a majority"
    assert torch.equal(LittleIsEnough(z=1.5).forge(HONEST[:1], 1), HONEST[0])


def test_inner_product_manipulation_by_hand() -> None:
    torch.testing.assert_close(InnerProductManipulation(epsilon=0.5).forge(HONEST, 1), torch.tensor([-1.5, -0.5]))


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(0, 10**6), st.sampled_from(["deviation", "sign", "unit"]))
def test_min_max_is_the_largest_shift_that_stays_in_the_cohort(n: int, seed: int, direction: str) -> None:
    honest = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))
    forged = MinMax(direction=direction).forge(honest, 1)
    limit = torch.cdist(honest, honest).max()
    assert (forged - honest).norm(dim=1).max() <= limit * 1.0001
    further = honest.mean(0) + 1.01 * (forged - honest.mean(0))
    assert (further - honest).norm(dim=1).max() >= limit * 0.9999


def test_mimic_copies_the_update_with_the_most_variance() -> None:
    honest = torch.tensor([[0.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [9.0, 0.0]])
    assert torch.equal(Mimic().forge(honest, 1), honest[3])


@pytest.mark.parametrize("attack", [LittleIsEnough(0.4, 1.0), InnerProductManipulation(0.4), MinMax(0.4), Mimic(0.4)])
def test_malicious_clients_send_one_forged_update_and_honest_ones_their_own(attack: Collusion) -> None:
    clients, f = simulated_clients(fr.METHODS["scaffold"](), attack=attack), model()
    down = {"w": f.w, "c": torch.zeros_like(f.w)}
    assert len(clients.malicious) == 2
    with SerialEngine(clients, f) as engine:
        own = {r.client: r for r in engine.cohort(0, range(5)).run("train", down)}
        cohort = ColludingClients(engine, attack, clients.malicious).cohort(0, range(5))
        sent = {r.client: r for r in cohort.run("train", down)}
    assert list(sent) == list(own), "in the same order"
    honest = torch.stack([own[k].up["w"] - f.w for k in own if k not in clients.malicious])
    for client, reply in sent.items():
        expected = f.w + attack.forge(honest, 2) if client in clients.malicious else own[client].up["w"]
        assert torch.equal(reply.up["w"], expected)
        assert torch.equal(reply.up["dc"], own[client].up["dc"])
        assert torch.equal(reply.memory["c"], own[client].memory["c"])


def test_a_task_without_weights_is_not_attacked() -> None:
    clients, f = simulated_clients(fr.METHODS["fedcsd"](), attack=Mimic(0.4)), model()
    down = {"w": f.w, "teacher": f.w}
    with SerialEngine(clients, f) as engine:
        own = [r.up for r in engine.cohort(0, range(5)).run("prototype", down)]
        colluding = ColludingClients(engine, Mimic(0.4), clients.malicious)
        sent = [r.up for r in colluding.cohort(0, range(5)).run("prototype", down)]
    assert all(torch.equal(a[name], b[name]) for a, b in zip(own, sent, strict=True) for name in a)


def test_a_backdoor_has_a_trigger_and_a_target() -> None:
    clients = simulated_clients(fr.Method(), attack=Backdoor(0.4, target=2, size=1))
    poisoned = Backdoor(target=2, size=1).poison_data(clients.train, CLASSES)
    assert len(poisoned) == len(clients.train)
    assert torch.equal(poisoned.x[::2], clients.train.x[::2])
    assert (poisoned.x[1::2, :, -1, -1] == clients.train.x.max()).all()
    assert torch.equal(poisoned.x[1::2, :, :-1], clients.train.x[1::2, :, :-1])
    assert (poisoned.y[1::2] == 2).all()
    assert torch.equal(poisoned.y[::2], clients.train.y[::2])
    with pytest.raises(fr.UserError) as error:
        Backdoor(target=3).poison_data(clients.train, CLASSES)
    assert (error.value.code, error.value.key) == ("config.conflict", "federation.attack.target")


def test_attacks_on_labels_of_tokens() -> None:
    texts = Examples(torch.arange(6).view(2, 3), torch.tensor([[0, -100, 2], [1, 0, -100]]), NO_TRANSFORM)
    assert LabelFlip().poison_data(texts, CLASSES).labels.tolist() == [[2, -100, 0], [1, 2, -100]]
    with pytest.raises(fr.UserError) as error:
        Backdoor(target=2).poison_data(texts, CLASSES)
    assert (error.value.code, error.value.key) == ("config.conflict", "federation.attack")
