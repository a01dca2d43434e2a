from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core import seeds
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD
from fedrecall.core.training import LocalTraining, batches, train
from fedrecall.core.types import Local
from support.tiny_federation import flat, local, vectors

HOW = LocalTraining(epochs=3, batch=10, sgd=ClientSGD(lr=0.1, momentum=0.9, weight_decay=1e-3))


def rng() -> torch.Generator:
    return seeds.generator(0, "batches", 0, 0)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("sgd", [ClientSGD(0.1, 0.0), ClientSGD(0.1, 0.9, 1e-3), ClientSGD(0.1, 0.9, 1e-3, prox=0.3)])
def test_a_clients_round_is_torch_sgd(batch_norm: bool, sgd: ClientSGD) -> None:
    f, data = flat(torch.float64, batch_norm=batch_norm), vectors(dtype=torch.float64)
    how = LocalTraining(3, 10, sgd)
    reply = train(Method(), local(f, data, how=how), 0, 0)

    model = flat(torch.float64, batch_norm=batch_norm).model
    first = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay)
    for _, rows in batches(len(data), how, rng(), needs_pairs=batch_norm):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(data.x[rows])[1], data.y[rows])
        pull = sum((p - p0).square().sum() for p, p0 in zip(model.parameters(), first, strict=True))
        (loss + sgd.prox / 2 * pull).backward()
        optimiser.step()

    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(reply.up["w"], expected, rtol=0, atol=1e-12)
    assert (reply.n, "b" in reply.up) == (len(data), batch_norm)
    if batch_norm:
        statistics = torch.cat([model.norm.running_mean, model.norm.running_var])
        torch.testing.assert_close(reply.up["b"], statistics, rtol=0, atol=1e-12)
        assert reply.up["counters"].tolist() == [int(model.norm.num_batches_tracked)]


@dataclass(frozen=True)
class Ahead(Method):
    """Gradient at w + 0.2 g, for the test of the second pass."""

    def perturbation(self, g: Tensor, w: Tensor, r: Local) -> Tensor:
        return 0.2 * g


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_perturbation_moves_the_gradient_and_leaves_the_statistics_of_the_first_pass(batch_norm: bool) -> None:
    f, data = flat(torch.float64, batch_norm=batch_norm), vectors(dtype=torch.float64)
    how = LocalTraining(2, 10, ClientSGD(0.1, 0.9, 1e-3, prox=0.3))
    reply = train(Ahead(), local(f, data, how=how), 0, 0)

    model = flat(torch.float64, batch_norm=batch_norm).model
    first = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-3)
    for _, rows in batches(len(data), how, rng(), needs_pairs=batch_norm):
        F.cross_entropy(model(data.x[rows])[1], data.y[rows]).backward()
        ahead = deepcopy(model)  # whose statistics are dropped
        with torch.no_grad():
            for there, p in zip(ahead.parameters(), model.parameters(), strict=True):
                there.add_(p.grad, alpha=0.2)
        ahead.zero_grad()
        F.cross_entropy(ahead(data.x[rows])[1], data.y[rows]).backward()
        for p, there, start in zip(model.parameters(), ahead.parameters(), first, strict=True):
            p.grad = there.grad + 0.3 * (p.detach() - start)
        optimiser.step()
        optimiser.zero_grad()

    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(reply.up["w"], expected, rtol=0, atol=1e-12)
    if batch_norm:
        statistics = torch.cat([model.norm.running_mean, model.norm.running_var])
        torch.testing.assert_close(reply.up["b"], statistics, rtol=0, atol=1e-12)
        assert reply.up["counters"].tolist() == [int(model.norm.num_batches_tracked)]


def test_batches_cover_every_row_each_epoch() -> None:
    epochs, rows = zip(*batches(41, LocalTraining(2, 10), rng()), strict=True)
    assert epochs == (0,) * 5 + (1,) * 5
    assert [len(r) for r in rows] == [10, 10, 10, 10, 1] * 2
    assert sorted(torch.cat(rows[:5]).tolist()) == list(range(41))
    assert torch.cat(rows[:5]).tolist() != torch.cat(rows[5:]).tolist()


def test_a_batch_of_one_is_skipped_only_with_batch_norm() -> None:
    assert [len(r) for _, r in batches(11, LocalTraining(1, 10), rng())] == [10, 1]
    assert [len(r) for _, r in batches(11, LocalTraining(1, 10), rng(), needs_pairs=True)] == [10]
    assert [len(r) for _, r in batches(15, LocalTraining(1, 10, drop_last=True), rng())] == [10]


def test_a_client_without_a_step_returns_what_it_received() -> None:
    f, data = flat(batch_norm=True), vectors(n=1)
    reply = train(Method(), local(f, data, how=HOW), 0, 0)
    assert torch.equal(reply.up["w"], f.w)
    assert torch.equal(reply.up["b"], f.b)
    assert reply.metrics["steps"] == 0


def test_received_weights_are_not_changed() -> None:
    f, data = flat(batch_norm=True), vectors()
    r = local(f, data, how=HOW)
    before = r.w.clone(), r.b.clone()
    train(Method(), r, 0, 0)
    assert torch.equal(r.w, before[0])
    assert torch.equal(r.b, before[1])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_same_seed_same_bits_for_any_global_generator(noise: float) -> None:
    f, data = flat(dropout=0.5), vectors(noise=noise)
    torch.manual_seed(1)
    one = train(Method(), local(f, data, how=HOW), 0, 0).up["w"]
    torch.manual_seed(2)
    poisoned = torch.get_rng_state()
    two = train(Method(), local(f, data, how=HOW), 0, 0).up["w"]
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), poisoned), "the global generator was consumed"
    assert not torch.equal(one, train(Method(), local(f, data, how=HOW), 0, 1).up["w"]), "another client"
    assert not torch.equal(one, train(Method(), local(f, data, how=HOW), 1, 0).up["w"]), "another seed"


def test_augmentation_has_its_own_stream() -> None:
    f = flat()
    plain = train(Method(), local(f, vectors(), how=HOW), 0, 0)
    noisy = train(Method(), local(f, vectors(noise=1e-9), how=HOW), 0, 0)
    torch.testing.assert_close(plain.up["w"], noisy.up["w"], rtol=0, atol=1e-5)  # the same batches in the same order


class Listener(Method):
    """Notes what the frozen global model is heard to say, and how often it is run."""

    def frozen(self, r):
        return {"global": r.w}

    def loss(self, s, r):
        heard.append((s.frozen["global"].z, s.z.detach()))
        return F.cross_entropy(s.z, s.y)


heard: list[tuple[torch.Tensor, torch.Tensor]] = []


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_teacher_and_the_student_evaluate_the_same_batch(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    f, data = flat(), vectors(noise=noise)
    heard.clear()
    passes = 0
    original = f.frozen_module

    def counted(*args, **kwargs):
        module = original(*args, **kwargs)

        def count(*_: object) -> None:
            nonlocal passes
            passes += 1

        module.register_forward_hook(count)
        return module

    monkeypatch.setattr(f, "frozen_module", counted)
    train(Listener(), local(f, data, how=HOW), 0, 0)
    teacher, student = heard[0]
    torch.testing.assert_close(teacher, student)  # before the first step they are one model
    assert not torch.allclose(*heard[-1])
    assert passes == (15 if noise else 1), "once a round, or once a batch where images change"
