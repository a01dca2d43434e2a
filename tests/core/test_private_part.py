"""The private part of a model: names, vectors, training, teachers and client state."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrecall import METHODS
from fedrecall.core import seeds
from fedrecall.core.client import ClientRunner
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD
from fedrecall.core.private_part import private_names
from fedrecall.core.training import LocalTraining, batches, train
from fedrecall.core.types import Local, Payload
from fedrecall.errors import UserError
from fedrecall.testing.federation import TinyNet
from support.tiny_federation import Vectors, local, vectors

NORM = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
HEAD = {"c.weight", "c.bias"}
BODY = {"a.weight", "a.bias"} | NORM


def net(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyNet(batch_norm=True).to(dtype)


def flat(choice: object) -> FlatModel:
    module = net()
    return FlatModel(module, private_names(module, choice))


@pytest.mark.parametrize(
    ("choice", "names"),
    [(None, set()), ("head", HEAD), ("body", BODY), ("norm", NORM), (("a.*",), {"a.weight", "a.bias"}),
     (("*.bias", "norm.*"), NORM | {"a.bias", "c.bias"})],
)  # fmt: skip
def test_names_and_sizes(choice: object, names: set[str]) -> None:
    f, module = flat(choice), net()
    assert f.private_names == names
    state = {k: t.numel() for k, t in module.state_dict().items()}
    shared = {k: n for k, n in state.items() if k not in names}
    counters = {k for k in state if k.endswith("tracked")}
    statistics = {k for k in state if "running" in k}
    assert len(f.w) == sum(n for k, n in shared.items() if k not in counters | statistics)
    assert len(f.b) == sum(n for k, n in shared.items() if k in statistics)
    assert len(f.int_buffers) == len(counters - names)
    assert sum(len(t) for t in f.private) == sum(n for k, n in state.items() if k in names)
    x = torch.randn(5, 6, dtype=torch.float64)
    expected = module.eval()(x)
    for out in (f(f.join(f.w, f.b), x), f.to_module(f.w, f.b, f.int_buffers)(x)):
        torch.testing.assert_close(out[1], expected[1], rtol=0, atol=0)


@pytest.mark.parametrize(("choice", "module"), [(("zzz",), net()), (("*",), net()), ("norm", nn.Linear(2, 2)),
                                                ("body", nn.Linear(2, 2)), ("head", nn.Conv2d(1, 1, 1))])  # fmt: skip
def test_a_part_that_is_nothing_or_everything_is_an_error(choice: object, module: nn.Module) -> None:
    with pytest.raises(UserError) as error:
        private_names(module, choice)
    assert (error.value.code, error.value.key) == ("config.invalid_value", "federation.private")


@pytest.mark.parametrize("choice", ["head", "body", "norm"])
def test_training_is_torch_sgd_on_both_parts_and_only_the_shared_one_is_sent(choice: str) -> None:
    f, data = flat(choice), vectors(dtype=torch.float64)
    training = LocalTraining(2, 10, ClientSGD(0.1, 0.9, 1e-3))
    reply = train(Method(), local(f, data, training=training), 0, 0)
    module = net()
    optimiser = torch.optim.SGD(module.parameters(), 0.1, 0.9, weight_decay=1e-3)
    rng = seeds.generator(0, "batches", 0, 0)
    for _, rows in batches(len(data), training, rng, needs_pairs=True):
        optimiser.zero_grad()
        F.cross_entropy(module(data.x[rows])[1], data.y[rows]).backward()
        optimiser.step()
    expected = FlatModel(module, f.private_names)
    torch.testing.assert_close(reply.up["w"], expected.w, rtol=0, atol=1e-12)
    assert reply.up["w"].untyped_storage().nbytes() == reply.up["w"].nbytes
    for name, t in expected.private._asdict().items():
        if len(t):
            torch.testing.assert_close(reply.memory[f"private.{name}"], t, rtol=0, atol=1e-12)
    assert set(reply.up) == {"w"} | ({"b", "counters"} if choice == "head" else set())


@dataclass(frozen=True)
class Teacher(Method):
    def frozen(self, r: Local) -> dict[str, Tensor]:
        return {"global": r.w}

    def loss(self, s, r):
        r.scratch.setdefault("z", s.frozen["global"].z)
        return super().loss(s, r)

    def reply(self, w, steps, r):
        return {"w": w, "z": r.scratch["z"]}, {}


class Recorder(Method):
    """Reports the features that `reply` computes."""

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        return {"w": w, "h": r.f.outputs(r.state(w), r.data).h}, {}


def test_the_reply_is_computed_with_the_trained_private_part() -> None:
    f, data = flat("body"), vectors(n=8, dtype=torch.float64)
    training = LocalTraining(1, 8, ClientSGD(0.5))
    runner = ClientRunner(method=Recorder(), training=training, test=data, classes=3, seed=0)
    reply = runner.run_on(data, f, "train", 0, 0, {"w": f.w, "b": f.b, "counters": f.int_buffers}, None)
    own = [reply.memory[f"private.{name}"] for name in ("w", "b")]
    trained = f.outputs(torch.cat([reply.up["w"], *own]), data).h
    untrained = f.outputs(f.join(f.w, f.b), data).h
    assert torch.equal(reply.up["h"], trained)
    assert not torch.equal(reply.up["h"], untrained)
    assert torch.equal(f.private.w, f.initial_private.w), "the next client has its own again"


def test_the_teacher_is_the_received_part_with_the_clients_own_and_the_next_client_has_its_own_again() -> None:
    f, data = flat("head"), vectors(n=8, dtype=torch.float64)
    training = LocalTraining(1, 8, ClientSGD(0.5))
    runner = ClientRunner(method=Teacher(), training=training, test=data, classes=3, seed=0)
    first = runner.run_on(data, f, "train", 0, 0, {"w": f.w, "b": f.b, "counters": f.int_buffers}, None)
    assert torch.equal(f.private.w, f.initial_private.w)
    again = runner.run_on(data, f, "train", 0, 1, {"w": f.w, "b": f.b, "counters": f.int_buffers}, first.memory)
    other = runner.run_on(data, f, "train", 1, 1, {"w": f.w, "b": f.b, "counters": f.int_buffers}, None)
    own = f.outputs(torch.cat([f.w, first.memory["private.w"], f.b]), data).z
    common = f.outputs(f.join(f.w, f.b), data).z
    assert torch.equal(again.up["z"].sort(0).values, own.sort(0).values)
    assert torch.equal(other.up["z"].sort(0).values, common.sort(0).values)
    assert not torch.equal(own, common)


def test_fedrep_trains_the_head_then_the_body() -> None:
    f, data = flat("head"), vectors(dtype=torch.float64)
    training = LocalTraining(3, 10, ClientSGD(0.1, 0.9))
    head_only = train(METHODS["fedrep"](), local(f, data, training=replace(training, epochs=1)), 0, 0)
    assert not torch.equal(head_only.up["w"], f.w)  # one epoch is the body's
    assert torch.equal(head_only.memory["private.w"], f.initial_private.w)
    reply = train(METHODS["fedrep"](body_epochs=1), local(f, data, training=training), 0, 0)
    module = net()
    rng = seeds.generator(0, "batches", 0, 0)
    head = torch.optim.SGD(module.c.parameters(), 0.1, 0.9)
    body = torch.optim.SGD([p for n, p in module.named_parameters() if n not in HEAD], 0.1, 0.9)
    for epoch, rows in batches(len(data), training, rng, needs_pairs=True):
        module.zero_grad()
        F.cross_entropy(module(data.x[rows])[1], data.y[rows]).backward()
        (head if epoch < 2 else body).step()
    expected = FlatModel(module, f.private_names)
    torch.testing.assert_close(reply.up["w"], expected.w, rtol=0, atol=1e-12)
    torch.testing.assert_close(reply.memory["private.w"], expected.private.w, rtol=0, atol=1e-12)


def fit(module: nn.Module, names: set[str], data: Vectors, training: LocalTraining) -> FlatModel:
    """Train the parameters of these names with torch; return the model as vectors, with a private head."""
    optimiser = torch.optim.SGD([p for n, p in module.named_parameters() if n in names], 0.1, 0.9)
    for _, rows in batches(len(data), training, seeds.generator(0, "batches", 0, 0), needs_pairs=True):
        module.zero_grad()
        F.cross_entropy(module(data.x[rows])[1], data.y[rows]).backward()
        optimiser.step()
    return FlatModel(module, private_names(module, "head"))


def test_fedbabu_trains_the_body_only() -> None:
    f, data, training = flat("head"), vectors(dtype=torch.float64), LocalTraining(2, 10, ClientSGD(0.1, 0.9))
    reply = train(METHODS["fedbabu"](), local(f, data, training=training), 0, 0)
    expected = fit(net(), BODY, data, training)
    torch.testing.assert_close(reply.up["w"], expected.w, rtol=0, atol=1e-12)
    torch.testing.assert_close(reply.up["b"], expected.b, rtol=0, atol=1e-12)
    assert torch.equal(reply.memory["private.w"], f.initial_private.w)


@pytest.mark.parametrize(("finetune", "names"), [("head", HEAD), ("all", HEAD | BODY)])
def test_fedbabu_fine_tunes_the_received_model_before_a_score(finetune: str, names: set[str]) -> None:
    f, data, training = flat("head"), vectors(dtype=torch.float64), LocalTraining(2, 10, ClientSGD(0.1, 0.9))
    r = local(f, data, training=training)
    state = METHODS["fedbabu"](finetune_epochs=3, finetune=finetune).personal_model(r.state(r.w), r)
    expected = fit(net(), names, data, replace(training, epochs=3))
    meant = torch.cat([expected.w, expected.private.w, expected.b, expected.private.b])
    torch.testing.assert_close(state, meant, rtol=0, atol=1e-12)
    assert torch.equal(r.w, f.w)
