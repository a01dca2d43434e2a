"""Central differential privacy: clipping, noise, accounting, and settings without guarantee."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fedrecall as fr
from fedrecall.core import seeds
from fedrecall.core.dry_run import DryRun
from fedrecall.core.optim import ServerSGD
from fedrecall.core.privacy import (
    GaussianMechanism,
    PrivacyLedger,
    PrivateAggregation,
    Release,
    epsilon_after,
)
from fedrecall.core.robust import ExchangeInfo
from fedrecall.core.rounds import RoundSchedule, run_rounds
from fedrecall.core.types import Cohort, Payload, Reply, Server, average_replies
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
PERSONALISED = {"fedrep"}  # without a global model that could be protected


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


def noised(
    updates: torch.Tensor,
    privacy: GaussianMechanism,
    *,
    sampled: int | None = None,
    t: int = 0,
    number: int = 0,
    ledger: PrivacyLedger | None = None,
) -> list[Reply]:
    w = torch.zeros(updates.shape[1])
    replies = [Reply({"w": w + u}, 100 + i, {}, {}, i) for i, u in enumerate(updates)]
    return list(
        PrivateAggregation(privacy, seed=0, population=20, ledger=ledger or PrivacyLedger()).apply(
            iter(replies), ExchangeInfo("train", {"w": w}, sampled or len(replies), t, number)
        )
    )


def test_the_mean_of_clipped_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateAggregation, "_normal", lambda _, n, __: torch.zeros(n))
    updates = torch.zeros(4, 50_000)
    updates[:, 0] = torch.tensor([0.1, 0.2, 300.0, -1e6])
    out = noised(updates, GaussianMechanism(clip=1.0))
    assert len(out) == 4
    assert all(r.n == 1 for r in out), "no client weighs more than another"
    assert average_replies(out)["w"][0].item() == pytest.approx((0.1 + 0.2 + 1 - 1) / 4, abs=1e-6)
    few = noised(updates[:2], GaussianMechanism(clip=1.0), sampled=4)
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


def test_no_two_releases_have_the_same_noise_and_all_are_accounted() -> None:
    none, privacy, ledger = torch.zeros(2, 100), GaussianMechanism(noise=4.0), PrivacyLedger()
    first, second = (noised(none, privacy, number=number, ledger=ledger)[0].up["w"] for number in (0, 1))
    ledger.attempt = 1
    again = noised(none, privacy, ledger=ledger)[0].up["w"]
    assert not any(torch.equal(a, b) for a, b in ((first, second), (first, again), (second, again)))
    assert [(r.t, r.exchange, r.attempt) for r in ledger.releases] == [(0, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert ledger.epsilon(1e-5) == epsilon_after(privacy, 20, 2, 3)


def test_a_repeated_round_is_one_release_only_if_its_noise_is_the_same() -> None:
    none = torch.zeros(2, 100)
    for source, releases in (("seed", 1), ("system", 2)):
        privacy, ledger = GaussianMechanism(noise=4.0, source=source), PrivacyLedger()
        for _ in range(2):
            noised(none, privacy, ledger=ledger)
        assert ledger.epsilon(1e-5) == epsilon_after(privacy, 20, 2, releases)


def test_a_method_receives_nothing_of_a_client() -> None:
    w = torch.zeros(3)
    replies = [Reply({"w": w}, 100, {"state": w}, {"loss": w.sum()}, client) for client in range(2)]
    rule = PrivateAggregation(GaussianMechanism(), seed=0, population=2)
    out = list(rule.apply(iter(replies), ExchangeInfo("train", {"w": w}, 2, 0)))
    assert [(r.n, r.memory, r.metrics, r.client, r.b) for r in out] == [(1, {}, {}, None, None)] * 2


@dataclass(frozen=True)
class TwoExchanges(fr.Method):
    """Trains the cohort twice in a round."""

    def round(self, server: Server, cohort: Cohort) -> Server:
        return super().round(super().round(server, cohort), cohort)


def test_a_method_with_two_exchanges_pays_for_both(tmp_path: Path) -> None:
    result = fr.run({k: v for k, v in tables().items() if k != "method"}, method=TwoExchanges(), out=tmp_path / "a")
    mechanism = GaussianMechanism(clip=1.0, noise=1.0, delta=1e-3)
    assert [r["epsilon"] for r in result.rounds] == [epsilon_after(mechanism, 20, 5, 2 * t) for t in (1, 2, 3)]
    assert (tmp_path / "a" / "privacy.jsonl").read_text().count("\n") == 6


def interrupt_after(rounds: int) -> Callable[[dict[str, object]], None]:
    def stop(record: dict[str, object]) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    return stop


def test_a_forced_resume_with_other_noise_accumulates(tmp_path: Path) -> None:
    low = {"weights": "uniform", "privacy": {"clip": 1.0, "noise": 0.1, "delta": 1e-3}}
    high = {"weights": "uniform", "privacy": {"clip": 1.0, "noise": 8.0, "delta": 1e-3}}
    run = {"run": {"rounds": 3, "checkpoint_every": 1}}
    with pytest.raises(KeyboardInterrupt):
        fr.run(tables() | run | {"server": low}, out=tmp_path / "a", watch=interrupt_after(2))
    resumed = fr.run(tables() | run | {"server": high}, out=tmp_path / "a", resume=True, force=True)
    spent = [r["epsilon"] for r in resumed.rounds]
    assert spent[2] > spent[1] > 100
    ledger = PrivacyLedger.load(tmp_path / "a" / "privacy.jsonl")
    assert [r.noise for r in ledger.releases].count(0.1) == 2
    assert ledger.epsilon(1e-3) == spent[2]


def test_rounds_without_privacy_make_epsilon_infinite(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = {"run": {"rounds": 3, "checkpoint_every": 1}}
    with pytest.raises(KeyboardInterrupt):
        fr.run(tables() | run | {"server": {"weights": "uniform"}}, out=tmp_path / "a", watch=interrupt_after(2))
    resumed = fr.run(tables() | run, out=tmp_path / "a", resume=True, force=True)
    assert resumed.rounds[-1]["epsilon"] is None
    assert "infinite" in caplog.text
    json.loads((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()[-1], parse_constant=pytest.fail)


def test_weights_of_another_run_on_the_same_clients_are_accounted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def epsilons(seed: int, start: str | None) -> list[float | None]:
        run = {"rounds": 1, "seed": seed} | ({} if start is None else {"start": tmp_path / start})
        return [r["epsilon"] for r in fr.run(tables() | {"run": run}, out=tmp_path / f"{seed}-{start}").rounds]

    plain = {k: v for k, v in tables().items() if k != "server"}
    fr.run(plain | {"run": {"rounds": 1}}, out=tmp_path / "plain")
    assert epsilons(0, "plain") == [None]
    assert "run.start" in caplog.text
    (alone,) = epsilons(0, None)
    mechanism = GaussianMechanism(clip=1.0, noise=1.0, delta=1e-3)
    assert alone == epsilon_after(mechanism, 20, 5, 1)
    assert epsilons(1, "0-None") == [epsilon_after(mechanism, 20, 5, 2)]
    assert epsilons(0, "0-None") == [None], "the same noise twice"
    (tmp_path / "public").mkdir()
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "public")
    assert epsilons(2, "public") == [alone], "weights of no run are public"


def test_an_infinite_epsilon_stays_infinite(tmp_path: Path) -> None:
    """However the run is resumed, and for runs that start from its model."""
    plain = {k: v for k, v in tables().items() if k != "server"}
    small = {"rounds": 3, "checkpoint_every": 1}
    fr.run(plain | {"run": {"rounds": 1}}, out=tmp_path / "plain")

    def last_epsilon(
        out: str, *, config: dict[str, object] | None = None, resume: bool = True, **run: object
    ) -> object:
        tables_of_run = (config or tables()) | {"run": small | run}
        return fr.run(tables_of_run, out=tmp_path / out, resume=resume, force=resume).rounds[-1].get("epsilon")

    with pytest.raises(KeyboardInterrupt):
        fr.run(tables() | {"run": small | {"start": tmp_path / "plain"}}, out=tmp_path / "a", watch=interrupt_after(1))
    assert last_epsilon("a", start=tmp_path / "plain") is None, "a resume does not forget the initial weights"
    assert last_epsilon("b", start=tmp_path / "a", resume=False, seed=1) is None, "nor does a run that starts from it"

    with pytest.raises(KeyboardInterrupt):  # round 2 is private, then repeated without privacy
        fr.run(tables() | {"run": small | {"checkpoint_every": 2}}, out=tmp_path / "c", watch=interrupt_after(2))
    shutil.rmtree(tmp_path / "c" / "checkpoints")
    with pytest.raises(KeyboardInterrupt):
        fr.run(plain | {"run": small}, out=tmp_path / "c", watch=interrupt_after(2), resume=True, force=True)
    assert last_epsilon("c") is None
    assert PrivacyLedger.load(tmp_path / "c" / "privacy.jsonl").unbounded is not None


def test_noise_of_an_earlier_run_is_not_used_again(tmp_path: Path) -> None:
    """Seeds 0, 1, 0: the third run would add the noise of the first to other sums."""

    def epsilon(seed: int, start: int | None, out: int) -> object:
        run = {"rounds": 1, "seed": seed} | ({} if start is None else {"start": tmp_path / str(start)})
        return fr.run(tables() | {"run": run}, out=tmp_path / str(out)).rounds[-1]["epsilon"]

    mechanism = GaussianMechanism(clip=1.0, noise=1.0, delta=1e-3)
    assert epsilon(0, None, 1) == epsilon_after(mechanism, 20, 5, 1)
    assert epsilon(1, 1, 2) == epsilon_after(mechanism, 20, 5, 2)
    assert epsilon(0, 2, 3) is None
    assert epsilon(2, 2, 4) == epsilon_after(mechanism, 20, 5, 3)


def test_the_guarantee_is_in_the_summary_the_card_and_the_result(tmp_path: Path) -> None:
    small = {"run": {"rounds": 1}}
    result = fr.run(tables() | small, out=tmp_path / "private")
    epsilon = result.rounds[-1]["epsilon"]
    assert json.loads((tmp_path / "private" / "summary.json").read_text())["privacy"] == {
        "epsilon": epsilon,
        "delta": 1e-3,
    }
    for text in (str(result), (tmp_path / "private" / "card.md").read_text()):
        assert f"epsilon {epsilon:.3g} at delta 0.001" in text
    plain = fr.run({k: v for k, v in tables().items() if k != "server"} | small, out=tmp_path / "plain")
    assert "privacy" not in plain.summary
    assert "privacy" not in str(plain)
    started = fr.run(tables() | {"run": {"rounds": 1, "start": tmp_path / "plain"}})
    assert started.summary["privacy"]["epsilon"] is None
    assert "epsilon is infinite" in str(started)


def test_a_damaged_ledger_is_an_error(tmp_path: Path) -> None:
    release = Release(0, 0, 0, 1.0, 20, 5, "seed", 0)
    wrong = [{"t": 0}, [], "unbounded", *(asdict(release) | change for change in ({"t": "0"}, {"noise": 0.0}))]
    for line in wrong:
        (tmp_path / "privacy.jsonl").write_text(json.dumps(line) + "\n")
        with pytest.raises(fr.UserError) as error:
            PrivacyLedger.load(tmp_path / "privacy.jsonl")
        assert error.value.code == "privacy.damaged_ledger"
    (tmp_path / "cut.jsonl").write_text(json.dumps(asdict(release)) + '\n{"t": 1, "exch')
    cut = PrivacyLedger.load(tmp_path / "cut.jsonl")
    assert cut.releases == [release]
    cut.add(replace(release, t=1))
    assert PrivacyLedger.load(tmp_path / "cut.jsonl").releases == [release, replace(release, t=1)]


def audited_epsilon(noise: float, delta: float, runs: int = 30_000) -> float:
    """Return a lower bound of epsilon, of 99.9 % confidence, from runs of the mechanism on neighbouring clients.

    The only client's update is +clip or -clip. The bound is of the event that the released mean is above a threshold,
    by the confidence intervals of Clopper and Pearson (Jagielski, Ullman, Oprea; NeurIPS 2020). The threshold is chosen
    on other runs than those that are counted.
    """
    mechanism = GaussianMechanism(clip=1.0, noise=noise)

    def released(update: float, first: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        means = [
            noised(torch.tensor([[update]]), mechanism, t=first + i)[0].up["w"].item()  # another seed for each
            for i in range(runs)
        ]
        return np.array(means)

    high, low = released(1.0, 0), released(-1.0, runs)
    half = runs // 2
    thresholds = np.quantile(low[:half], 1 - np.array([30, 60, 120, 240, 480, 960]) / half)

    def bound(threshold: float, part: slice) -> float:
        hits, false = int((high[part] > threshold).sum()), int((low[part] > threshold).sum())
        least = stats.beta.ppf(0.0005, hits, half - hits + 1) if hits else 0.0
        most = stats.beta.ppf(0.9995, false + 1, half - false)
        return float(np.log(max(least - delta, 1e-300) / most))

    best = max(thresholds, key=lambda threshold: bound(threshold, slice(half)))
    return bound(best, slice(half, None))


@pytest.mark.faults
def test_an_audit_by_sampling_stays_below_the_accounted_epsilon() -> None:
    """It rises above it if the noise is half of what is accounted: the test can fail."""
    accounted = epsilon_after(GaussianMechanism(noise=2.5, delta=1e-2), population=1, sample=1, rounds=1)
    assert 0.3 * accounted < audited_epsilon(2.5, 1e-2) < accounted
    assert audited_epsilon(1.25, 1e-2) > accounted


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


@pytest.mark.parametrize("method", PERSONALISED)
def test_methods_without_a_global_model_are_errors(method: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(method))
    assert (error.value.code, error.value.key) == ("config.conflict", "method")


def test_every_method_is_one_or_the_other() -> None:
    for name in set(fr.METHODS) - set(MORE) - PERSONALISED:
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
        *(
            (
                {"server": {"weights": "uniform", "privacy": {"noise": noise}}},
                "invalid_value",
                "server.privacy.noise",
                "0.01",
            )
            for noise in (1e-300, 1e-160, 0.009)
        ),
        (
            {"engine": {"name": "flower"}},
            "conflict",
            "server.privacy.source",
            '"system"',
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


def test_inputs_scaled_by_statistics_of_all_clients_are_an_error() -> None:
    x, y = np.random.default_rng(0).normal(size=(400, 4)), [0, 1] * 200
    small = {k: v for k, v in tables().items() if k != "data"} | {"run": {"rounds": 1}}
    with pytest.raises(fr.UserError) as error:
        fr.run(small, data=fr.from_arrays(x, y, standardise=True))
    assert (error.value.code, error.value.key) == ("privacy.not_covered", "server.privacy")
    assert fr.run(small, data=fr.from_arrays(x, y)).rounds[0]["epsilon"] > 0


def write_small_table(folder: Path) -> Path:
    rows = [f"{i % 7},{i % 3},{'xyz'[i % 3]},{'ab'[i % 2]}" for i in range(400)]
    (folder / "t.csv").write_text("\n".join(["p,q,place,kind", *rows]) + "\n")
    return folder / "t.csv"


FIXED = {"p": {"mean": 3, "std": 2}, "q": {"mean": 1, "std": 1}, "place": ["x", "y", "z"]}


def test_a_table_with_fixed_statistics_is_covered(tmp_path: Path) -> None:
    data = {"name": "table", "path": str(write_small_table(tmp_path)), "label": "kind"}
    small = tables() | {"run": {"rounds": 1}}
    fitted: list[dict[str, object]] = [
        {},
        {"columns": FIXED | {"q": "number"}},
        {"missing": "mean"},
        {"categorical": "integers"},
        {"drop": ["q"], "missing": "category"},
    ]
    for keys in fitted:
        with pytest.raises(fr.UserError) as error:
            fr.run(small | {"data": data | keys})
        assert (error.value.code, error.value.key) == ("privacy.not_covered", "server.privacy")
    for keys in ({}, {"missing": "category"}, {"categorical": "integers"}):
        assert fr.run(small | {"data": data | {"columns": FIXED} | keys}).rounds[0]["epsilon"] > 0
    assert fr.run(small | {"data": data | {"text": "place"}}).rounds[0]["epsilon"] > 0, "tokens have no statistics"


def test_a_table_that_python_or_own_code_has_fitted_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_small_table(tmp_path)
    small = tables() | {"run": {"rounds": 1}}
    with pytest.raises(fr.UserError) as error:
        fr.run(small | {"data": {}}, data=fr.from_table(table, label="kind"))
    assert (error.value.code, error.value.key) == ("privacy.not_covered", "server.privacy")
    (tmp_path / "fitted_data.py").write_text(
        "import fedrecall as fr\n\n\ndef load(file):\n    return fr.from_table(file, label='kind')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for columns in ({}, {"columns": FIXED}):  # which own code does not use
        with pytest.raises(fr.UserError) as error:
            fr.run(small | {"data": {"name": "fitted_data:load", "file": str(table)} | columns})
        assert (error.value.code, error.value.key) == ("privacy.not_covered", "server.privacy")


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
