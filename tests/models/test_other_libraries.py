"""Networks of timm and torchvision, where they are installed and can be imported."""

import importlib

import pytest
from torch import nn

import fedrecall as fr
from fedrecall.models.adapt import adapt


def build(library: str) -> nn.Module:
    try:
        module = importlib.import_module(library)
    except Exception as error:  # torchvision of another build raises a RuntimeError
        pytest.skip(f"{library} cannot be imported: {error}")
    if library == "timm":
        return module.create_model("resnet10t", num_classes=10, in_chans=1)
    net = module.models.mobilenet_v3_small(num_classes=10)
    net.features[0][0] = nn.Conv2d(1, 16, 3, 2, 1, bias=False)
    return net


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_network_of_another_library_trains(library: str) -> None:
    net = build(library)
    result = fr.run({"local": {"epochs": 1}}, model=lambda: net, clients=2, rounds=1, progress=False)
    assert result.summary["final"] is not None
    assert adapt(net) is not net
