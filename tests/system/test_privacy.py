"""Central differential privacy: clipping, noise, accounting, and settings without guarantee."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import fedrecall as fr
from fedrecall.core import seeds
from fedrecall.core.dry_run import DryRun
from fedrecall.core.optim import ServerSGD
from fedrecall.core.privacy import GaussianMechanism, PrivateAggregation, epsilon_after
from fedrecall.core.robust import ExchangeInfo
from fedrecall.core.rounds import RoundSchedule, run_rounds
from fedrecall.core.types import Payload, Reply, Server, average_replies
from fedrecall.testing.federation import examples, model, simulated_clients

COVERED = ("fedavg", "fedprox", "fedavgm", "moon", "fedlsd", "fedntd", "fedrs", "fedgkd", "fedlmd", "feddyn")
MORE = {
    "scaffold": "dc",
    "fednova": "a",
    "fedcurv": "u, v",
    "fedproto": "G",
    "ccvr": "count, covariance, mean",
    "fedcsd": "P, has",
}  # what their replies carry beside the weights


def tables(method: str = "fedavg", **server: object) -> dict[str, object]:
    privacy = {"clip": 1.0, "noise": 1.0, "delta": 1e-3}
    return {
        "federation": {"clients": 20, "sample": 5, "partition": {"name": "dirichlet", "alpha": 0.5}},
        "data": {"aux": "holdout", "aux_per_class": 4},
        "local": {"epochs": 1},
        "method": {"name": method},
        "server": {"weights": "uniform", "privacy": privacy} | server,
        "engine": {"name": "serial"},
        "run": {"rounds": 3},
    }


def noised(updates: torch.Tensor, privacy: GaussianMechanism, *, sampled: int | None = None, t: int = 0) -> list[Reply]:
    w = torch.zeros(updates.shape[1])
    replies = [Reply({"w": w + u}, 100 + i, {}, {}, i) for i, u in enumerate(updates)]
    return list(
        PrivateAggregation(privacy, seed=0).apply(
            iter(replies), ExchangeInfo("train", {"w": w}, sampled or len(replies), t)
        )
    )


def test_the_mean_of_clipped_updates() -> None:
    updates = torch.zeros(4, 50_000)
    updates[:, 0] = torch.tensor([0.1, 0.2, 300.0, -1e6])
    out = noised(updates, GaussianMechanism(clip=1.0, noise=1e-9))
    assert len(out) == 4
    assert all(r.n == 1 for r in out), "no client weighs more than another"
    assert average_replies(out)["w"][0].item() == pytest.approx((0.1 + 0.2 + 1 - 1) / 4, abs=1e-6)
    few = noised(updates[:2], GaussianMechanism(clip=1.0, noise=1e-9), sampled=4)
    assert average_replies(few)["w"][0].item() == pytest.approx(0.3 / 4, abs=1e-6), (
        "the divisor does not tell who is missing"
    )


@pytest.mark.parametrize("source", ["seed", "system"])
def test_the_noise_is_as_large_as_it_is_accounted(source: str) -> None:
    w = average_replies(noised(torch.zeros(8, 100_000), GaussianMechanism(clip=3.0, noise=0.7, source=source)))["w"]
    assert w.std().item() == pytest.approx(0.7 * 3.0 / 8, rel=0.01)
    assert w.mean().item() == pytest.approx(0, abs=0.004)
    kurtosis = (w / w.std()).pow(4).mean().item()
    assert kurtosis == pytest.approx(3, abs=0.1), "Gaussian"


def test_seeded_noise_is_repeated_and_that_of_the_system_is_not() -> None:
    none = torch.zeros(2, 100)
    seeded, system = GaussianMechanism(), GaussianMechanism(source="system")
    assert torch.equal(noised(none, seeded)[0].up["w"], noised(none, seeded)[0].up["w"])
    assert not torch.equal(noised(none, seeded)[0].up["w"], noised(none, seeded, t=1)[0].up["w"])
    assert not torch.equal(noised(none, system)[0].up["w"], noised(none, system)[0].up["w"])
    assert np.isfinite(seeds.system_normal(10**6).numpy()).all()


def gaussian_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Compute epsilon from Mironov's Renyi bound and the conversion of Canonne, Kamath and Steinke."""
    best = math.inf
    for alpha in np.concatenate([np.arange(1.01, 20, 0.01), np.arange(20, 2000)]):
        rdp = rounds * alpha / (2 * (noise / 2) ** 2)  # a replaced client moves the sum by two clips
        best = min(best, rdp + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1))
    return best


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (10.0, 30), (2.0, 5)])
def test_epsilon_of_all_clients_is_that_of_the_gaussian_mechanism(noise: float, rounds: int) -> None:
    got = epsilon_after(GaussianMechanism(noise=noise, delta=1e-5), population=50, sample=50, rounds=rounds)
    assert got == pytest.approx(gaussian_epsilon(noise, rounds, 1e-5), rel=0.02)


def test_epsilon_grows_with_rounds_and_sample_and_falls_with_noise() -> None:
    def spent(noise: float = 4.0, sample: int = 10, rounds: int = 10) -> float:
        return epsilon_after(GaussianMechanism(noise=noise), 1000, sample, rounds)

    assert 0 < spent() < spent(rounds=20) < spent(rounds=100)
    assert spent() < spent(sample=100) < spent(sample=1000)
    assert spent(noise=8.0) < spent()


@pytest.mark.parametrize("method", COVERED)
def test_methods_that_send_weights_alone_run_and_record_epsilon(method: str) -> None:
    result = fr.run(tables(method))
    spent = [line["epsilon"] for line in result.rounds]
    assert spent == sorted(spent)
    assert spent[-1] == epsilon_after(GaussianMechanism(clip=1.0, noise=1.0, delta=1e-3), 20, 5, 3)


@pytest.mark.parametrize("method", MORE)
def test_methods_that_send_more_are_errors_before_anything_is_written(method: str, tmp_path: Path) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(method), out=tmp_path / "a")
    assert (error.value.code, error.value.key) == ("privacy.not_covered", "server.privacy")
    assert error.value.message.endswith(f" {MORE[method]}")
    assert not (tmp_path / "a").exists()


def test_every_method_is_one_or_the_other() -> None:
    for name in set(fr.METHODS) - set(MORE):
        assert fr.run(tables(name) | {"run": {"rounds": 1}}).rounds[-1]["epsilon"] > 0, name


def test_batch_statistics_are_an_error() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(), model=model)
    assert (error.value.code, error.value.key) == ("privacy.not_covered", "server.privacy")
    assert error.value.message.endswith(" b, counters")


def test_the_same_bits_on_the_pool_and_after_a_resume(tmp_path: Path) -> None:
    serial = fr.run(tables())
    pool = fr.run(tables() | {"engine": {"name": "pool", "workers": 2}})
    assert torch.equal(serial.server.w, pool.server.w)

    def stop(line: dict[str, object]) -> None:
        if line["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(tables(), out=tmp_path / "a", watch=stop)
    resumed = fr.run(tables(), out=tmp_path / "a", resume=True)
    assert torch.equal(resumed.server.w, serial.server.w)
    assert [r["epsilon"] for r in resumed.rounds] == [r["epsilon"] for r in serial.rounds]


@pytest.mark.parametrize(
    ("change", "problem", "key", "fact"),
    [
        ({"server": {"privacy": {}}}, "conflict", "server.weights", '"uniform"'),
        ({"federation": {"clients": 20, "dropout": 0.5}}, "conflict", "federation.dropout", "server.privacy"),
        ({"federation": {"clients": 20, "straggler": {}}}, "conflict", "federation.straggler", "server.privacy"),
        (
            {"server": {"weights": "uniform", "privacy": {}, "robust": "median"}},
            "conflict",
            "server.robust",
            "server.privacy",
        ),
        (
            {"server": {"weights": "uniform", "privacy": {"noise": 0.0}}},
            "invalid_value",
            "server.privacy.noise",
            "noise = 0.0",
        ),
        (
            {"server": {"weights": "uniform", "privacy": {"delta": 0.1}}},
            "conflict",
            "server.privacy.delta",
            "0.05",
        ),
        (
            {"server": {"weights": "uniform", "privacy": {"sigma": 1.0}}},
            "unknown_key",
            "server.privacy.sigma",
            "gaussian",
        ),
        ({"method": {"name": "fedssd"}, "data": {}}, "conflict", "data.aux", '"holdout"'),
        ({"method": {"name": "fedproto", "share_weights": False}}, "conflict", "method", "FedProto"),
    ],
)
def test_settings_without_privacy_guarantee_are_errors(
    change: dict[str, object], problem: str, key: str, fact: str
) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.Experiment(**tables() | change)
    assert (error.value.code, error.value.key) == (f"config.{problem}", key)
    assert fact in str(error.value)


def test_the_page_lists_what_leaves_a_client() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    listed = {
        name: set(re.findall(r"`(\w+)`", cells))
        for name, cells in re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|", page, re.M)
    }
    for name, make in fr.METHODS.items():
        sent: set[str] = set()

        class Spy(DryRun):
            def run(self, task: str, down: Payload) -> Iterator[Reply]:
                for reply in super().run(task, down):
                    sent.update(reply.up)  # noqa: B023 (used in this turn of the loop)
                    yield reply

        method, f = make(), model(batch_norm=True)
        start = Server(
            f, f.w, f.b, f.int_buffers, ServerSGD(), extra=method.init(f.w), auxiliary=examples([0, 1, 2], seed=2)
        )
        list(run_rounds(method, start, Spy(simulated_clients(method), f), RoundSchedule(2, 1, 1, seed=0)))
        assert sent - {"w", "b", "counters"} == listed.get(name, set()), name
    assert set(listed) == set(MORE)
