"""Simulated attacks and robust rules, with every method."""

import json
import re
from pathlib import Path

import pytest
import torch

import fedrecall as fr
from fedrecall.core.robust import AGGREGATION_RULES
from fedrecall.simulation import SerialEngine
from fedrecall.simulation.attacks import ATTACKS, LabelFlip, Scaling, SignFlip
from fedrecall.testing.federation import CLASSES, model, simulated_clients
from support.errors import refused
from support.markdown import script

PAGE = script("make_robustness")
SMALL = {
    "local": {"epochs": 1, "batch": 100},
    "data": {"aux_per_class": 4},
    "engine": {"name": "serial"},
    "run": {"rounds": 2},
}


def tables(method: str, rule: object, attack: str = "sign-flip", engine: str = "serial") -> dict[str, object]:
    federation = {"clients": 7, "attack": {"name": attack, "share": 0.3}, "partition": {"name": "iid"}}
    return SMALL | {
        "federation": federation,
        "method": {"name": method},
        "server": {"robust": rule},
        "engine": {"name": engine},
    }


@pytest.mark.parametrize("method", fr.METHODS)
@pytest.mark.parametrize("rule", AGGREGATION_RULES)
def test_every_rule_runs_with_every_method_that_does_not_exclude_it(method: str, rule: str) -> None:
    excluded = fr.METHODS[method]().traits.excludes
    assert set(excluded) <= {"federation.private", "server.robust", *(f"server.robust.{r}" for r in AGGREGATION_RULES)}
    if {"server.robust", f"server.robust.{rule}"} & set(excluded):
        refused(lambda: fr.run(tables(method, rule)), "config.conflict", "server.robust")
        return
    result = fr.run(tables(method, rule))
    assert torch.isfinite(result.server.state).all()
    assert [line["replies"] for line in result.rounds] == [7, 7]
    assert fr.Experiment(**result.experiment.to_tables()) == result.experiment


MIXED = {"robust": {"name": "trimmed-mean"}, "preaggregation": {"name": "nearest-neighbours", "attackers": 2}}
BUCKETS = {"robust": "median", "preaggregation": "bucketing"}


@pytest.mark.parametrize(
    ("attack", "server"),
    [(attack, {"robust": "clip"}) for attack in ATTACKS]
    + [("sign-flip", {"robust": rule}) for rule in AGGREGATION_RULES]
    + [("mimic", MIXED), ("mimic", BUCKETS)],
)
def test_the_same_bits_on_the_pool(attack: str, server: dict[str, object]) -> None:
    config = tables("scaffold", None, attack) | {"server": server}
    serial, pool = (fr.run(config | {"engine": {"name": engine}}) for engine in ("serial", "pool"))
    assert torch.equal(serial.server.state, pool.server.state)
    assert torch.equal(serial.server.extra["c"], pool.server.extra["c"])


def sent(attack: object) -> dict[int, torch.Tensor]:
    """Return each client's update."""
    w, f = simulated_clients(fr.Method(), attack=attack), model()
    with SerialEngine(w, f) as engine:
        return {r.client: r.up["w"] - f.w for r in engine.cohort(0, range(5)).run("train", {"w": f.w})}


@pytest.mark.parametrize(
    ("attack", "factor"), [(SignFlip(0.4), -1.0), (SignFlip(0.4, 3.0), -3.0), (Scaling(0.4), 10.0)]
)
def test_malicious_clients_change_their_updates_and_benign_ones_do_not(
    attack: SignFlip | Scaling, factor: float
) -> None:
    benign, poisoned = sent(None), sent(attack)
    malicious = simulated_clients(fr.Method(), attack=attack).malicious
    assert len(malicious) == 2
    for client, update in benign.items():
        if client in malicious:
            torch.testing.assert_close(poisoned[client], factor * update, rtol=1e-3, atol=1e-5)
        else:
            assert torch.equal(poisoned[client], update)


def test_labels_are_flipped_for_malicious_clients_only() -> None:
    w = simulated_clients(fr.Method(), attack=LabelFlip(0.4))
    before = w.train.labels.clone()
    flipped = LabelFlip().poison_data(w.train, CLASSES)
    assert torch.equal(flipped.y, CLASSES - 1 - w.train.y)
    assert torch.equal(w.train.labels, before), "the store is everyone's"
    benign, poisoned = sent(None), sent(w.attack)
    assert {k for k in benign if not torch.equal(benign[k], poisoned[k])} <= w.malicious


def test_malicious_clients_are_drawn_by_the_seed() -> None:
    picks = [simulated_clients(fr.Method(), attack=SignFlip(0.4), seed=seed).malicious for seed in range(6)]
    assert picks[0] == simulated_clients(fr.Method(), attack=Scaling(0.4), seed=0).malicious, "not of the attack"
    assert len(set(picks)) > 1


def test_the_mean_fails_under_attack_and_the_robust_rules_do_not() -> None:
    def accuracy(rule: str) -> float:
        return PAGE.measure(PAGE.experiment(rule, "sign flip", "IID", 0))["accuracy"]

    assert accuracy("none") < 0.3
    assert accuracy("median") > 0.9


@pytest.mark.parametrize(
    ("change", "problem", "key", "fact"),
    [
        ({"server": {"robust": {"name": "krum", "attackers": 4}}}, "conflict", "server.robust", "11 clients"),
        (
            {"server": {"robust": {"name": "trimmed-mean", "share": 0.5}}},
            "invalid_value",
            "server.robust.share",
            "0.5",
        ),
        ({"server": {"robust": "mdian"}}, "unknown_name", "server.robust", '"median"'),
        ({"server": {"robust": {}}}, "missing_key", "server.robust.name", ""),
        (
            {"federation": {"attack": {"name": "sign-flip", "share": 1.5}}},
            "invalid_value",
            "federation.attack.share",
            "1.5",
        ),
        ({"federation": {"attack": "sign"}}, "unknown_name", "federation.attack", '"sign-flip"'),
        (
            {"federation": {"attack": {"name": "scaling", "scale": float("nan")}}},
            "invalid_value",
            "federation.attack.scale",
            "finite",
        ),
        (
            {"federation": {"clients": 9, "attack": {"name": "scaling", "share": 0.05}}},
            "conflict",
            "federation.attack.share",
            "0.05",
        ),
    ],
)
def test_invalid_settings_are_errors(change: dict[str, object], problem: str, key: str, fact: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.Experiment(**tables("fedavg", "median") | change)
    assert (error.value.code, error.value.key) == (f"config.{problem}", key)
    assert fact in str(error.value)


def test_a_setting_on_the_command_line_replaces_the_rule() -> None:
    lines = ["server.robust.name=trimmed-mean", "server.robust.share=0.1", "federation.attack.name=scaling"]
    tables = fr.Experiment.load(None, lines).to_tables()
    assert tables["server"]["robust"] == {"name": "trimmed-mean", "share": 0.1}
    assert tables["federation"]["attack"] == {"name": "scaling", "share": 0.2, "scale": 10.0}


RECORDS = json.loads(PAGE.RECORDS.read_text())


@pytest.mark.parametrize("partition", PAGE.PARTITIONS)
def test_the_page_has_the_table_of_the_records(partition: str) -> None:
    assert PAGE.table(RECORDS, partition) in PAGE.PAGE.read_text()


def test_the_records_show_what_the_page_states() -> None:
    def percent(attack: str, rule: str, what: str = "accuracy") -> float:
        return 100 * PAGE.averages(RECORDS, "Dirichlet 0.3", attack, rule, what)

    assert len(RECORDS) == len(list(PAGE.cells()))
    assert percent("sign flip", "none") < 30
    assert percent("IPM 0.5", "multi-krum") < percent("IPM 0.5", "none") - 10
    assert percent("backdoor", "clip", "success") > 90


@pytest.mark.slow
@pytest.mark.parametrize("partition", PAGE.PARTITIONS)
def test_the_records_are_reproduced(partition: str) -> None:
    for rule, attack, where, seed in PAGE.cells():
        if where == partition and seed == 0:
            stored = RECORDS[f"{partition} / {attack} / {rule} / {seed}"]
            assert PAGE.measure(PAGE.experiment(rule, attack, partition, seed)) == pytest.approx(stored, abs=0.03)


def test_too_long_updates_are_rejected_and_recorded(tmp_path: Path) -> None:
    config = tables("fedavg", None, "scaling") | {"server": {}, "engine": {"name": "pool", "min_replies": 5}}
    config["federation"] = {"clients": 7, "attack": {"name": "scaling", "share": 0.3, "scale": 1e6}, "max_norm": 10.0}
    result = fr.run(config, out=tmp_path / "a")
    malicious = sorted(rejection["client"] for rejection in result.rounds[0]["refused"])
    lines = [json.loads(line) for line in (tmp_path / "a" / "rounds.jsonl").read_text().splitlines()]
    assert len(malicious) == 2
    for line in lines:
        assert line["replies"] == 5
        assert sorted(rejection["client"] for rejection in line["refused"]) == malicious
        assert all(re.search(r"\b10\b", rejection["reason"]) for rejection in line["refused"]), "the limit"
    with pytest.raises(fr.UserError) as error:
        fr.run(config | {"engine": {"name": "serial", "min_replies": 6}})
    assert (error.value.code, error.value.key) == ("round.too_few_replies", "engine.min_replies")
    assert "5 of the 7" in str(error.value)
    assert "2 rejected" in str(error.value)
    assert "reply.norm_too_large" in str(error.value)
