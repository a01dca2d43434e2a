"""The robust rules and attacks beside those of the package byzfl, on the same vectors.

byzfl imports torchvision, which its rules and attacks do not need. `make test-slow` installs it without dependencies in
a folder of its own, and its parts are imported without its `__init__`.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fedrecall.core.preaggregation import Bucketing, NearestNeighbourMixing
from fedrecall.core.robust import AggregationRule, ExchangeInfo, GeometricMedian, Krum, Median, TrimmedMean
from fedrecall.core.types import Reply, average_replies
from fedrecall.simulation.collusion import InnerProductManipulation, LittleIsEnough, Mimic

pytestmark = pytest.mark.slow
FOLDER = Path(os.environ.get("FEDRECALL_BYZFL", Path(__file__).parents[2] / "build" / "byzfl"))


@pytest.fixture(scope="module")
def byzfl() -> Iterator[ModuleType]:
    if not (FOLDER / "byzfl").is_dir():
        pytest.skip(f"byzfl is not in {FOLDER}: make test-slow installs it")
    package = ModuleType("byzfl")
    package.__path__ = [str(FOLDER / "byzfl")]
    sys.modules["byzfl"] = package
    for part in ("aggregators", "attacks"):
        found = vars(importlib.import_module(f"byzfl.{part}"))
        vars(package).update({name: value for name, value in found.items() if not name.startswith("__")})
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "byzfl"]:
        del sys.modules[name]


def vectors(seed: int, n: int = 11, d: int = 40) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng)
    x[-2:] = 5 * torch.randn(2, d, generator=rng) + 3
    return x


def aggregate(x: Tensor, *rules: AggregationRule) -> Tensor:
    replies = iter([Reply({"w": w}, 1, {}, {}, i) for i, w in enumerate(x)])
    for rule in rules:
        replies = rule.apply(replies, ExchangeInfo("train", {"w": torch.zeros(x.shape[1])}, len(x), 0))
    return average_replies(replies, "uniform")["w"]


def near(got: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), expected.double(), rtol=1e-4, atol=atol)


@pytest.mark.parametrize("seed", range(3))
def test_rules(byzfl: ModuleType, seed: int) -> None:
    x = vectors(seed)
    near(aggregate(x, Median()), byzfl.Median()(x))
    near(aggregate(x, TrimmedMean(2 / 11)), byzfl.TrMean(f=2)(x))
    # byzfl scores by n - f - 1 neighbours, the paper by n - f - 2: its f is one larger.
    near(aggregate(x, Krum(2)), byzfl.Krum(f=3)(x))
    near(aggregate(x, GeometricMedian(steps=200)), byzfl.GeometricMedian(nu=1e-6, T=200)(x.double()), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_mixing(byzfl: ModuleType, seed: int) -> None:
    x = vectors(seed)
    near(aggregate(x, NearestNeighbourMixing(2), Median()), byzfl.Median()(byzfl.NNM(f=2)(x)))
    sizes = torch.tensor([2.0] * 5 + [1.0])
    near(sizes @ byzfl.Bucketing(s=2)(x), x.sum(0), atol=1e-4)
    ours = Bucketing(2).apply(iter([Reply({"w": w}, 1, {}, {}) for w in x]), ExchangeInfo("train", {}, len(x), 0))
    near(sizes @ torch.stack([r.up["w"] for r in ours]), x.sum(0), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_attacks(byzfl: ModuleType, seed: int) -> None:
    x = vectors(seed)
    near(LittleIsEnough(z=1.5).forge(x, 3), byzfl.ALittleIsEnough(tau=1.5)(x))
    for epsilon in (0.5, 10.0):
        near(InnerProductManipulation(epsilon=epsilon).forge(x, 3), byzfl.InnerProductManipulation(tau=epsilon)(x))
    ours = Mimic().forge(x, 3)
    assert any(torch.equal(ours, byzfl.Mimic(epsilon=i)(x)) for i in range(len(x)))
