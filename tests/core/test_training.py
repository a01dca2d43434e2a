import math
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core import seeds
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientAdam, ClientSGD
from fedrecall.core.training import ClassWeights, LocalTraining, batches, train
from fedrecall.core.types import Local
from support.tiny_federation import Vectors, flat, local, vectors

TRAINING = LocalTraining(epochs=3, batch=10, optimiser=ClientSGD(lr=0.1, momentum=0.9, weight_decay=1e-3))


def rng() -> torch.Generator:
    return seeds.generator(0, "batches", 0, 0)


def train_with_torch(
    f: FlatModel, data: Vectors, training: LocalTraining, optimiser: torch.optim.Optimizer, weight: Tensor | None = None
) -> Tensor:
    """Train the module of f in a plain loop; return its weights."""
    first = [p.detach().clone() for p in f.model.parameters()]
    for _, rows in batches(len(data), training, rng(), needs_pairs=f.needs_two_examples):
        optimiser.zero_grad()
        loss = F.cross_entropy(f.model(data.x[rows])[1], data.y[rows], weight)
        pull = sum((p - p0).square().sum() for p, p0 in zip(f.model.parameters(), first, strict=True))
        (loss + training.prox / 2 * pull).backward()
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(f.model.parameters(), training.clip)
        optimiser.step()
    return torch.cat([p.detach().flatten() for p in f.model.parameters()])


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(("sgd", "prox"), [(ClientSGD(0.1, 0.0), 0), (ClientSGD(0.1, 0.9, 1e-3), 0.3)])
def test_a_clients_round_is_torch_sgd(batch_norm: bool, sgd: ClientSGD, prox: float) -> None:
    f, data = flat(torch.float64, batch_norm=batch_norm), vectors(dtype=torch.float64)
    training = LocalTraining(3, 10, sgd, prox=prox)
    reply = train(Method(), local(f, data, training=training), 0, 0)

    own = flat(torch.float64, batch_norm=batch_norm)
    optimiser = torch.optim.SGD(own.model.parameters(), sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay)
    expected = train_with_torch(own, data, training, optimiser)
    torch.testing.assert_close(reply.up["w"], expected, rtol=0, atol=1e-12)
    assert (reply.n, "b" in reply.up) == (len(data), batch_norm)
    if batch_norm:
        norm = own.model.norm
        statistics = torch.cat([norm.running_mean, norm.running_var])
        torch.testing.assert_close(reply.up["b"], statistics, rtol=0, atol=1e-12)
        assert reply.up["counters"].tolist() == [int(norm.num_batches_tracked)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize(("decay", "prox", "clip"), [(0.0, 0.0, None), (0.1, 0.0, None), (0.1, 0.3, 0.5)])
def test_a_clients_round_is_torch_adam(
    dtype: torch.dtype, decoupled: bool, decay: float, prox: float, clip: float | None
) -> None:
    f, data = flat(dtype), vectors(dtype=dtype)
    adam = ClientAdam(0.01, 0.8, 0.99, 1e-7, decay, decoupled)
    training = LocalTraining(3, 10, adam, prox=prox, clip=clip)
    r = local(f, data, training=training)
    replies = [train(Method(), r, 0, 0).up["w"] for _ in range(2)]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    own = flat(dtype)
    optimiser = kind(own.model.parameters(), adam.lr, (adam.beta1, adam.beta2), adam.eps, weight_decay=decay)
    expected = train_with_torch(own, data, training, optimiser)
    tolerance = 1e-6 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(replies[0], expected, rtol=0, atol=tolerance)
    assert torch.equal(*replies), "the state of an optimiser ends with the round"


@pytest.mark.parametrize("clip", [0.05, 0.5])
def test_clipping_is_that_of_torch(clip: float) -> None:
    data, training = vectors(dtype=torch.float64), replace(TRAINING, clip=clip, prox=0.3)
    own = flat(torch.float64)
    optimiser = torch.optim.SGD(own.model.parameters(), 0.1, 0.9, weight_decay=1e-3)
    expected = train_with_torch(own, data, training, optimiser)
    reply = train(Method(), local(flat(torch.float64), data, training=training), 0, 0)
    torch.testing.assert_close(reply.up["w"], expected, rtol=0, atol=1e-12)
    plain = train(Method(), local(flat(torch.float64), data, training=replace(training, clip=None)), 0, 0)
    assert not torch.allclose(plain.up["w"], expected)


def test_a_limit_that_no_gradient_reaches_changes_no_bit() -> None:
    plain, clipped = (
        train(Method(), local(flat(), vectors(), training=replace(TRAINING, clip=clip)), 0, 0)
        for clip in (None, math.inf)
    )
    assert torch.equal(plain.up["w"], clipped.up["w"])


@pytest.mark.parametrize("weights", [(0.5, 2.0, 3.0), "balanced"])
def test_class_weights_are_those_of_torch(weights: ClassWeights) -> None:
    f, data = flat(torch.float64), vectors(dtype=torch.float64)
    training = replace(TRAINING, class_weights=weights)
    counts = torch.bincount(data.y, minlength=3)
    expected_weights = len(data) / (3 * counts.double()) if weights == "balanced" else torch.tensor(weights).double()
    given = training.class_weights_for(counts, torch.float64)
    torch.testing.assert_close(given, expected_weights, rtol=0, atol=1e-15)
    reply = train(Method(), local(f, data, training=training, class_weights=given), 0, 0)
    own = flat(torch.float64)
    optimiser = torch.optim.SGD(own.model.parameters(), 0.1, 0.9, weight_decay=1e-3)
    expected = train_with_torch(own, data, training, optimiser, expected_weights)
    torch.testing.assert_close(reply.up["w"], expected, rtol=0, atol=1e-12)


def test_balanced_weights_of_a_client_with_absent_classes_are_finite() -> None:
    training = LocalTraining(class_weights="balanced")
    weights = training.class_weights_for(torch.tensor([6, 0, 2]), torch.float32)
    assert weights.tolist() == pytest.approx([8 / 12, 1, 2])
    assert training.class_weights_for(torch.tensor([0, 0, 0]), torch.float32).tolist() == [1, 1, 1]
    assert LocalTraining().class_weights_for(torch.tensor([1, 2, 3]), torch.float32) is None


def test_equal_class_weights_are_the_plain_loss() -> None:
    z, y = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 2, 2, 2, 1])
    r = local(flat(), vectors())
    twos = r._replace(class_weights=torch.full((3,), 2.0, dtype=torch.float64))
    weighted = r._replace(class_weights=torch.tensor([0.1, 2, 5], dtype=torch.float64))
    torch.testing.assert_close(twos.cross_entropy(z, y), F.cross_entropy(z, y))
    assert torch.equal(r.cross_entropy(z, y), F.cross_entropy(z, y))
    for each in (r, twos, weighted):
        torch.testing.assert_close(each.cross_entropy_terms(z, y).mean(), each.cross_entropy(z, y))


@dataclass(frozen=True)
class Ahead(Method):
    """Gradient at w + 0.2 g, for the test of the second pass."""

    def perturbation(self, g: Tensor, w: Tensor, r: Local) -> Tensor:
        return 0.2 * g


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_perturbation_moves_the_gradient_and_leaves_the_statistics_of_the_first_pass(batch_norm: bool) -> None:
    f, data = flat(torch.float64, batch_norm=batch_norm), vectors(dtype=torch.float64)
    training = LocalTraining(2, 10, ClientSGD(0.1, 0.9, 1e-3), prox=0.3)
    reply = train(Ahead(), local(f, data, training=training), 0, 0)

    model = flat(torch.float64, batch_norm=batch_norm).model
    first = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-3)
    for _, rows in batches(len(data), training, rng(), needs_pairs=batch_norm):
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
    reply = train(Method(), local(f, data, training=TRAINING), 0, 0)
    assert torch.equal(reply.up["w"], f.w)
    assert torch.equal(reply.up["b"], f.b)
    assert reply.metrics["steps"] == 0


def test_received_weights_are_not_changed() -> None:
    f, data = flat(batch_norm=True), vectors()
    r = local(f, data, training=TRAINING)
    before = r.w.clone(), r.b.clone()
    train(Method(), r, 0, 0)
    assert torch.equal(r.w, before[0])
    assert torch.equal(r.b, before[1])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_same_seed_same_bits_for_any_global_generator(noise: float) -> None:
    f, data = flat(dropout=0.5), vectors(noise=noise)
    torch.manual_seed(1)
    trained = train(Method(), local(f, data, training=TRAINING), 0, 0).up["w"]
    torch.manual_seed(2)
    poisoned = torch.get_rng_state()
    two = train(Method(), local(f, data, training=TRAINING), 0, 0).up["w"]
    assert torch.equal(trained, two)
    assert torch.equal(torch.get_rng_state(), poisoned), "the global generator was consumed"
    assert not torch.equal(trained, train(Method(), local(f, data, training=TRAINING), 0, 1).up["w"]), "another client"
    assert not torch.equal(trained, train(Method(), local(f, data, training=TRAINING), 1, 0).up["w"]), "another seed"


def test_augmentation_has_its_own_stream() -> None:
    f = flat()
    plain = train(Method(), local(f, vectors(), training=TRAINING), 0, 0)
    noisy = train(Method(), local(f, vectors(noise=1e-9), training=TRAINING), 0, 0)
    torch.testing.assert_close(plain.up["w"], noisy.up["w"], rtol=0, atol=1e-5)  # the same batches in the same order


class RecordsTeacher(Method):
    """Method that records the outputs of the frozen global model and the number of its evaluations."""

    def frozen(self, r):
        return {"global": r.w}

    def loss(self, s, r):
        evaluated.append((s.frozen["global"].z, s.z.detach()))
        return F.cross_entropy(s.z, s.y)


evaluated: list[tuple[torch.Tensor, torch.Tensor]] = []


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_teacher_and_the_student_evaluate_the_same_batch(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    f, data = flat(), vectors(noise=noise)
    evaluated.clear()
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
    train(RecordsTeacher(), local(f, data, training=TRAINING), 0, 0)
    teacher, student = evaluated[0]
    torch.testing.assert_close(teacher, student)  # before the first step they are one model
    assert not torch.allclose(*evaluated[-1])
    assert passes == (15 if noise else 1), "once a round, or once a batch where images change"
