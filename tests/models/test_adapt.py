"""Modules of users, adapted to return (features, logits)."""

import logging
import pickle
from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear, relu

from fedrecall.errors import UserError
from fedrecall.models import adapt
from fedrecall.tensor_dict import TensorDict


def sequential() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 9),
        nn.Dropout(0.5),
        nn.Linear(9, 3),
    )


class Backwards(nn.Module):
    """Module whose classifier is registered first and runs last."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(5, 3)
        self.body = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(relu(self.body(x.flatten(1))))


class Two(NamedTuple):
    features: Tensor
    logits: Tensor


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.last = nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Two:
        h = self.conv(x)
        return Two(h, self.last(h.flatten(1)))


class Tied(nn.Module):
    """Module with two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(relu(self.b(relu(self.a(x.flatten(1))))))


class Returns(nn.Module):
    """Module that applies a function to its input."""

    def __init__(self, make: object) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(self.layer(x.flatten(1)))


X = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("make", "width"), [(sequential, 9), (Backwards, 5), (Pair, 72), (Tied, 64)])
def test_gives_features_and_logits_and_keeps_names_and_weights(make: type[nn.Module], width: int) -> None:
    torch.manual_seed(0)
    module = make()
    net = adapt(module, X, 3)
    assert list(net.state_dict()) == list(module.state_dict())
    assert [n for n, _ in net.named_parameters()] == [n for n, _ in module.named_parameters()]
    with torch.no_grad():
        h, z = net.eval()(X)
        output = module.eval()(X)
    assert h.shape == (4, width)
    assert torch.equal(z, output if isinstance(output, Tensor) else output[1])
    last = [m for m in net.modules() if isinstance(m, nn.Linear) and m.out_features == 3][-1]
    assert torch.allclose(last(h), z)
    module.load_state_dict(net.state_dict())


def test_the_callers_module_is_not_changed() -> None:
    module = sequential()
    before = deepcopy(module.state_dict())
    adapt(module.train(), X)
    assert isinstance(module(X[:3]), Tensor)
    assert module.training
    module = sequential()
    module.load_state_dict(before)
    net = adapt(module, X)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), before.values(), strict=True))
    assert net.training


def test_gradients_flow_through_features_and_logits() -> None:
    net = adapt(Tied())
    h, z = net(X)
    (h.sum() + z.square().sum()).backward()
    assert len(list(net.parameters())) == 5
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("copy", [deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_independent(copy: object) -> None:
    net = adapt(Backwards(), X)
    net(X)[1].sum().backward()
    twin = copy(net)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(1.0)
    (h, z), (h2, z2) = net(X), twin(X)
    assert torch.equal(net.classifier(h), z)
    assert torch.equal(twin.classifier(h2), z2)
    assert not torch.equal(h, h2)


def test_works_with_weights_from_outside() -> None:
    net = adapt(Backwards(), X)
    weights = {k: torch.zeros_like(v) for k, v in net.state_dict().items()}
    h, z = functional_call(net, weights, X)
    assert not h.any()
    assert not z.any()
    assert net(X)[0].any()


def test_can_be_copied_after_a_forward_that_failed() -> None:
    def fail(h: Tensor) -> Tensor:
        raise RuntimeError("no")

    net = adapt(Returns(fail))
    with pytest.raises(RuntimeError):
        net(X)
    deepcopy(net)


def test_twice_is_once() -> None:
    net = adapt(Backwards(), X)
    again = adapt(net, X)
    assert all(torch.equal(a, b) for a, b in zip(net(X), again(X), strict=True))


def test_a_batch_of_one_keeps_its_dimension() -> None:
    h, z = adapt(Backwards(), X)(X[:1])
    assert (h.shape, z.shape) == ((1, 5), (1, 3))


@pytest.mark.parametrize(
    ("module", "sample", "classes", "code", "facts"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()),
            X,
            3,
            "model.invalid_output",
            ["Sequential", "torch.nn.Linear", "(features, logits)"],
        ),
        (Returns(lambda h: linear(h, torch.ones(3, 8))), X, 3, "model.invalid_output", ["torch.nn.Linear"]),
        (Returns(lambda h: {"logits": h}), X, 8, "model.invalid_output", ["a dict"]),
        (Returns(lambda h: (h, h, h)), X, 8, "model.invalid_output", ["a tuple of 3"]),
        (Returns(lambda h: (h, h.sum(1))), X, 8, "model.invalid_output", ["[B, D]", "[B, K]"]),
        (Backwards(), X, 7, "model.wrong_class_count", ["3 logits", "7 classes"]),
        (Backwards(), X[:, :, :5], 3, "model.unsupported_input", ["(1, 5, 8)"]),
    ],
)
def test_modules_that_cannot_be_adapted_are_errors(
    module: nn.Module, sample: Tensor, classes: int, code: str, facts: list[str]
) -> None:
    with pytest.raises(UserError) as e:
        adapt(module, sample, classes)
    assert (e.value.code, e.value.key) == (code, "model")
    assert all(fact in str(e.value) for fact in facts), str(e.value)
    assert "\n" not in str(e.value)


IDS = torch.randint(0, 7, (4, 5), generator=torch.Generator().manual_seed(0))
WORDS = TensorDict({"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1, 0, 0]] * 4)})


class Logits(NamedTuple):
    """Output of a Hugging Face model: an object with logits."""

    loss: None
    logits: Tensor


class Classifier(nn.Module):
    """Mean of the embeddings of the words, as an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(7, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor | None = None) -> Logits:
        mask = attention_mask.unsqueeze(-1)
        return Logits(None, self.last((self.words(input_ids) * mask).sum(1) / mask.sum(1)))


class Decoder(nn.Module):
    """Logits at every position, of which the last that is not padded is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(7, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Logits:
        z = self.last(self.words(input_ids))
        return Logits(None, z[torch.arange(len(z)), attention_mask.sum(1) - 1])


def test_inputs_by_name_are_keyword_arguments() -> None:
    own = Classifier()
    net = adapt(own, WORDS, 3)
    h, z = net(WORDS)
    assert torch.equal(z, own(**WORDS).logits)
    assert torch.allclose(net.last(h), z)
    for twin in (deepcopy(net), pickle.loads(pickle.dumps(net)), adapt(net, WORDS, 3)):
        assert torch.equal(twin(WORDS)[1], z)
    assert torch.equal(net(IDS, attention_mask=WORDS["attention_mask"])[1], z)


def test_features_of_a_decoder_are_those_of_the_position_of_its_logits() -> None:
    own = Decoder()
    h, z = adapt(own, WORDS, 3)(WORDS)
    assert torch.equal(h, own.words(IDS)[:, 2])
    assert torch.equal(z, own(**WORDS).logits)


@pytest.mark.parametrize(
    ("sample", "facts"),
    [
        (TensorDict({"input_id": IDS, "attention_mask": IDS}), ['"input_id"', 'did you mean "input_ids"']),
        (TensorDict({"input_ids": IDS}), ["needs attention_mask"]),
        (TensorDict(dict(WORDS.tensors) | {"input_ids": IDS.float()}), ["input_ids (5,) torch.float32", "integers"]),
        (TensorDict(dict(WORDS.tensors) | {"input_ids": IDS + 4}), ["largest integer is 10"]),
    ],
    ids=["unknown name", "missing name", "float ids", "id out of range"],
)
def test_inputs_by_name_that_do_not_fit_are_refused_in_one_line(sample: TensorDict, facts: list[str]) -> None:
    with pytest.raises(UserError) as e:
        adapt(Classifier(), sample, 3)
    assert (e.value.code, e.value.key) == ("model.unsupported_input", "model")
    assert all(fact in str(e.value) for fact in facts), str(e.value)
    assert "\n" not in str(e.value)


def test_integers_for_a_linear_layer_are_refused_with_the_conversion() -> None:
    with pytest.raises(UserError) as e:
        adapt(nn.Linear(5, 3), IDS, 3)
    assert e.value.code == "model.unsupported_input"
    assert "float32" in str(e.value.hint)


def test_probabilities_instead_of_logits_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    layers = nn.Flatten(), nn.Linear(64, 3)
    with caplog.at_level(logging.WARNING):
        adapt(nn.Sequential(*layers), X, 3)
        adapt(nn.Sequential(*layers, nn.LogSoftmax(1)), X, 3)
        assert not caplog.records
        adapt(nn.Sequential(*layers, nn.Softmax(1)), X, 3)
        adapt(nn.Sequential(*layers, nn.Softmax(1)), X, 3)
    assert len(caplog.records) == 1
    assert "softmax" in caplog.records[0].getMessage()
