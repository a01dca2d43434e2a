"""Models: exact parameter counts, outputs, one training step, invalid inputs."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from fedrecall.errors import UserError
from fedrecall.models import (
    MODELS,
    AlexNet,
    Cnn,
    Cnn3264,
    Mlp,
    MobileNet,
    Model,
    ResNet8,
    ResNet18,
    ResNet20,
    ResNet50,
    Rnn,
    TabularMlp,
    Vit,
)

MNIST, CIFAR, TINY, OFFICE, DIGITS = (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 256, 256), (1, 8, 8)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "classes", "count"),
    [
        (Cnn(), CIFAR, 10, 62_006),
        (Cnn(), MNIST, 10, 44_426),
        (Cnn(), MNIST, 62, 44_426 + 52 * 85),
        (Cnn(head=True), CIFAR, 10, 92_626),
        (Cnn3264(), CIFAR, 10, 2_156_490),
        (Cnn3264(), CIFAR, 100, 2_202_660),
        (Cnn3264(), MNIST, 10, 1_663_370),
        (Cnn3264(), TINY, 200, 8_545_416),
        (ResNet50(), CIFAR, 10, 23_520_842),
        (ResNet50(), CIFAR, 100, 23_705_252),
        (ResNet50(), TINY, 200, 23_910_152),
        (ResNet50(), MNIST, 10, 23_519_690),
        (ResNet50(), MNIST, 26, 23_552_474),
        (ResNet50(), MNIST, 62, 23_626_238),
        (ResNet50(head=True), CIFAR, 100, 28_246_948),
        (ResNet50(head=True), TINY, 200, 28_272_648),
        (ResNet8(), CIFAR, 10, 78_042),
        (ResNet8(), CIFAR, 100, 83_892),
        (ResNet8(norm="group"), CIFAR, 10, 78_042),
        (ResNet18(), CIFAR, 10, 11_173_962),
        (ResNet18(norm="batch"), CIFAR, 100, 11_220_132),
        (ResNet20(), CIFAR, 10, 272_474),
        (ResNet20(norm="batch"), CIFAR, 10, 272_474),
        (Vit(), CIFAR, 10, 6_272 + 8_192 + 6 * 132_480 + 256 + 1_290),
        (Vit(depth=1, width=64, heads=2, patch=8), CIFAR, 10, 12_352 + 1_024 + 33_472 + 128 + 650),
        (Rnn(vocabulary=1000), (40,), 5, 1000 * 64 + 3 * (64 + 128 + 2) * 128 + 129 * 5),
        (Rnn("lstm", 1000), (40,), 5, 1000 * 64 + 4 * (64 + 128 + 2) * 128 + 129 * 5),
        (TabularMlp((20,), (3, 200)), {"c": (2,), "n": (4,)}, 5, 3 * 2 + 200 * 50 + (2 + 50 + 4 + 1) * 20 + 21 * 5),
        (MobileNet(), CIFAR, 10, 3_217_226),
        (AlexNet(), OFFICE, 10, 57_063_498),
        (Mlp(), MNIST, 10, 784 * 200 + 200 + 2_010),
        (Mlp(hidden=(200, 200)), MNIST, 10, 199_210),
        (Mlp(hidden=()), (30,), 2, 62),
    ],
    ids=str,
)
def test_parameter_counts_are_the_papers(model: Model, shape: tuple[int, ...], classes: int, count: int) -> None:
    with torch.device("meta"):  # shapes only: no time and no memory for weights
        assert parameters(model.build(shape, classes)) == count


def test_backbone_without_classifier() -> None:
    with torch.device("meta"):
        assert parameters(ResNet50().build(CIFAR, 10).features) == 23_500_352
        assert parameters(ResNet50().build(MNIST, 10).features) == 23_499_200


def floats(module: nn.Module) -> int:
    return sum(b.numel() for b in module.buffers() if b.is_floating_point())


def test_buffers() -> None:
    with torch.device("meta"):
        assert floats(ResNet50().build(CIFAR, 10)) == 53_120
        assert floats(ResNet8(norm="group").build(CIFAR, 10)) == 0
        for model in (ResNet50(bn_stats="batch"), ResNet8(bn_stats="batch"), MobileNet(bn_stats="batch")):
            assert not list(model.build(CIFAR, 10).buffers())
        assert not list(AlexNet(bn_stats="batch").build(OFFICE, 10).buffers())


SMALL = {
    "cnn": (Cnn(), (1, 16, 16), 84),
    "cnn head": (Cnn(head=True), (3, 16, 20), 256),
    "cnn-32-64": (Cnn3264(), DIGITS, 512),
    "resnet50": (ResNet50(), DIGITS, 2048),
    "resnet50 head": (ResNet50(head=True), DIGITS, 256),
    "resnet8": (ResNet8(), DIGITS, 64),
    "resnet8 group": (ResNet8(norm="group"), DIGITS, 64),
    "resnet8 batch": (ResNet8(bn_stats="batch"), (3, 9, 4), 64),
    "resnet18": (ResNet18(), DIGITS, 512),
    "resnet20": (ResNet20(groups=16), DIGITS, 64),
    "vit": (Vit(patch=2, depth=2), DIGITS, 128),
    "vit oblong": (Vit(patch=4, depth=1, width=12, heads=3, dropout=0.1), (3, 8, 12), 12),
    "mobilenet": (MobileNet(), (3, 16, 16), 1024),
    "alexnet": (AlexNet(), (3, 63, 63), 4096),
    "mlp": (Mlp(), DIGITS, 200),
    "mlp flat": (Mlp(hidden=(7, 5)), (13,), 5),
    "mlp linear": (Mlp(hidden=()), (13,), 13),
}


@pytest.mark.parametrize("name", SMALL)
def test_trains_a_step_and_returns_features_and_logits(name: str) -> None:
    model, shape, width = SMALL[name]
    torch.manual_seed(0)
    net = model.build(shape, 5)
    x, y = torch.randn(2, *shape), torch.tensor([0, 3])
    h, z = net(x)
    assert h.shape == (2, width)
    assert z.shape == (2, 5)
    assert torch.equal(z, net.classifier(h))
    (cross_entropy(z, y) + h.square().mean()).backward()
    for key, p in net.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
    with torch.no_grad():
        h, z = net.eval()(x)
    assert h.isfinite().all()
    assert z.isfinite().all()


def test_batch_statistics_are_the_test_batchs_own() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    by_batch, running = ResNet8(bn_stats="batch").build((3, 8, 8), 5), ResNet8().build((3, 8, 8), 5)
    assert torch.equal(by_batch.train()(x)[1], by_batch.eval()(x)[1])
    assert not torch.equal(running.train()(x)[1], running.eval()(x)[1])


def test_pooling_before_relu_changes_neither_function_nor_gradient() -> None:
    torch.manual_seed(0)
    net = Cnn().build(CIFAR, 10)
    first, second, wide, narrow = (m for m in net.features if isinstance(m, nn.Conv2d | nn.Linear))
    x = torch.randn(4, *CIFAR)
    a = max_pool2d(relu(second(max_pool2d(relu(first(x)), 2))), 2).flatten(1)
    h = relu(narrow(relu(wide(a))))
    assert torch.equal(h, net(x)[0])
    ours = torch.autograd.grad(net(x)[0].square().sum(), first.weight)[0]
    papers = torch.autograd.grad(h.square().sum(), first.weight)[0]
    assert torch.equal(ours, papers)


def test_resnet50_initialisation_is_he_normal_fan_out() -> None:
    torch.manual_seed(0)
    net = ResNet50().build(CIFAR, 10)
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            fan_out = m.out_channels * m.kernel_size[0] ** 2
            assert m.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
            assert m.bias is None
        elif isinstance(m, nn.BatchNorm2d):
            assert (m.weight == 1).all()
            assert (m.bias == 0).all()


@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet20", "vit", "mobilenet", "mlp"])
def test_only_torchs_global_generator_decides_the_initial_weights(name: str) -> None:
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(7)
        return list(MODELS[name]().build(CIFAR, 10).parameters())

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = weights()
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    random.seed(1)
    assert all(torch.equal(a, b) for a, b in zip(first, weights(), strict=True))


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("mlp", "rnn", "tabular", "huggingface")])
@pytest.mark.parametrize("shape", [(3, 3, 3), (64,), (28, 28)], ids=str)
def test_wrong_shapes_are_errors_with_mlp_as_hint(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as e:
        MODELS[name]().build(shape, 10)
    assert (e.value.code, e.value.key) == ("model.unsupported_input", "model.name")
    assert f'"{name}"' in str(e.value)
    assert '"mlp"' in str(e.value)
    assert "\n" not in str(e.value)


def test_digits_into_the_cnn_is_an_error_with_the_needed_size() -> None:
    with pytest.raises(UserError) as error:
        Cnn().build(DIGITS, 10)
    assert (error.value.code, error.value.key) == ("model.unsupported_input", "model.name")
    assert "16x16" in str(error.value)
    assert "8x8" in str(error.value)


def test_smallest_images_that_are_accepted_do_work() -> None:
    smallest = {"cnn": 16, "cnn-32-64": 4, "resnet8": 4, "mobilenet": 16}
    for name, side in smallest.items():
        net = MODELS[name]().build((3, side, side), 4)
        assert net(torch.randn(2, 3, side, side))[1].shape == (2, 4)
        with pytest.raises(UserError) as error:
            MODELS[name]().build((3, side - 1, side), 4)
        assert error.value.code == "model.unsupported_input"


def test_unknown_options_are_errors() -> None:
    for model, key in (
        (ResNet8(norm="layer"), "model.norm"),  # type: ignore[arg-type]
        (ResNet8(bn_stats="none"), "model.bn_stats"),  # type: ignore[arg-type]
        (AlexNet(bn_stats="none"), "model.bn_stats"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError) as error:
            model.build(OFFICE, 10)
        assert (error.value.code, error.value.key) == ("config.unknown_name", key)
        assert "batch" in str(error.value), "a valid name"
    with pytest.raises(UserError) as error:
        Mlp(hidden=(0,))
    assert (error.value.code, error.value.key) == ("config.invalid_value", "model.hidden")
