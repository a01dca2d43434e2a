"""Metrics, clients' held-out examples, early stopping and the best model, in whole runs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import f1_score

import fedrecall as fr
from fedrecall.config.experiment import Experiment
from fedrecall.runs.early_stopping import Monitor
from support.own_code import blobs, brier, share_of_first

# every key of [local] that clients train with, beside held-out examples and metrics
TABLES: dict[str, Any] = {
    "data": {"client_test": 0.2, "validation": 0.2, "aux_per_class": 0},
    "federation": {"clients": 4, "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 8}},
    "model": {"name": "mlp", "hidden": [6]},
    "local": {
        "epochs": 1, "batch": 8, "optimiser": "adamw", "lr": 0.02, "weight_decay": 0.1, "clip": 0.5, "prox": 0.01,
        "class_weights": "balanced", "schedule": {"name": "warmup", "rounds": 2},
    },
    "engine": {"name": "serial"},
    "run": {"rounds": 4, "metrics": ["accuracy", "macro_f1", "auroc", "log_loss", "confusion"]},
}  # fmt: skip
METRICS = ("accuracy", "macro_f1", "auroc", "log_loss")


def tables(**sections: dict[str, Any]) -> dict[str, Any]:
    return TABLES | {name: TABLES.get(name, {}) | section for name, section in sections.items()}


def untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fr.Result:
    return fr.run(TABLES, data=blobs(per_class=60), out=tmp_path_factory.mktemp("evaluation") / "run")


def test_records_and_summary_have_the_metrics(result: fr.Result) -> None:
    assert result.directory is not None
    written = [json.loads(line) for line in (result.directory / "rounds.jsonl").read_text().splitlines()]
    assert written == result.rounds
    for record in result.rounds:
        assert tuple(record["metrics"]) == METRICS
        assert record["metrics"]["accuracy"] == record["accuracy"]
        assert record["metrics"]["log_loss"] == pytest.approx(record["loss"], rel=1e-5)
        confusion = torch.tensor(record["confusion"])
        assert confusion.diagonal().sum() / confusion.sum() == pytest.approx(record["accuracy"])
        clients = record["client_test"]
        assert clients["model"] == "global"
        for name in METRICS:
            assert {"mean", "weighted", "worst", "worst_tenth", "undefined", "by_client"} == clients[name].keys()
        assert [sum(map(sum, counts)) for counts in clients["confusion"]] == clients["examples"]
        assert set(record["validation"]) == {"examples", *METRICS}
    summary = json.loads((result.directory / "summary.json").read_text())
    assert summary["metrics"]["macro_f1"]["final"] == result.rounds[-1]["metrics"]["macro_f1"]
    expected = sum(record["metrics"]["macro_f1"] for record in result.rounds) / 4
    assert summary["metrics"]["macro_f1"]["last10"] == pytest.approx(expected)
    assert summary["client_test"] == result.rounds[-1]["client_test"]
    assert summary["validation"]["final"] == result.rounds[-1]["validation"]["accuracy"]


def test_the_metric_on_the_test_set_is_that_of_the_final_model(result: fr.Result) -> None:
    data = blobs(per_class=60)
    with torch.no_grad():
        predicted = result.model()(data.test_x)[1].argmax(1)
    expected = f1_score(data.test_y, predicted, average="macro")
    assert result.rounds[-1]["metrics"]["macro_f1"] == pytest.approx(expected)


def test_held_out_examples_are_not_trained_on(result: fr.Result) -> None:
    clients, validation = result.rounds[0]["client_test"], result.rounds[0]["validation"]
    assert result.directory is not None
    partition = json.loads((result.directory / "partition.json").read_text())
    trained = sum(map(sum, partition["counts"]))
    assert trained + sum(clients["examples"]) + validation["examples"] == len(blobs(per_class=60).train_y)
    share = sum(clients["examples"]) / len(blobs(per_class=60).train_y)
    assert share == pytest.approx(0.2, abs=0.04)


def test_the_best_model_by_validation_is_kept(result: fr.Result) -> None:
    assert result.directory is not None
    curve = {record["round"]: record["validation"]["accuracy"] for record in result.rounds}
    best = min(number for number, value in curve.items() if value == max(curve.values()))
    assert result.summary["validation"]["best_round"] == best
    assert result.summary["validation"]["best"] == max(curve.values())
    kept = load_file(result.directory / "best.safetensors")
    shorter = fr.run(tables(run={"rounds": best}), data=blobs(per_class=60))
    for name, t in shorter.model().state_dict().items():
        assert torch.equal(kept[name], t), "the bits of a run that ends with that round"
        assert torch.equal(result.model(best=True).state_dict()[name], t)
        assert torch.equal(fr.load(result.directory).model(best=True).state_dict()[name], t)
    plain = fr.run(tables(data={"validation": 0.0}, run={"rounds": 1}), data=blobs(per_class=60))
    with pytest.raises(fr.UserError) as error:
        plain.model(best=True)
    assert (error.value.code, error.value.key) == ("study.no_model", "best")


@pytest.mark.parametrize("workers", [1, 3])
def test_the_pool_has_the_records_of_serial(result: fr.Result, workers: int) -> None:
    pool = fr.run(tables(engine={"name": "pool", "workers": workers}), data=blobs(per_class=60))
    assert untimed(pool.rounds) == untimed(result.rounds)
    assert torch.equal(pool.server.state, result.server.state)


def test_an_interrupted_run_resumes_to_the_same_files(result: fr.Result, tmp_path: Path) -> None:
    def cut(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    assert result.directory is not None
    with pytest.raises(KeyboardInterrupt):
        fr.run(TABLES, data=blobs(per_class=60), out=tmp_path / "run", watch=cut)
    resumed = fr.run(TABLES, data=blobs(per_class=60), out=tmp_path / "run", resume=True)
    assert untimed(resumed.rounds) == untimed(result.rounds)
    for name in ("model.safetensors", "best.safetensors", "predictions.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (result.directory / name).read_bytes(), name


def test_more_rounds_keep_the_best_model_of_the_first_ones(tmp_path: Path) -> None:
    steep = tables(local={"lr": 0.3, "schedule": {"name": "constant"}}, run={"rounds": 2})
    fr.run(steep, data=blobs(per_class=60), out=tmp_path / "run")
    longer = steep | {"run": steep["run"] | {"rounds": 5}}
    extended = fr.run(longer, data=blobs(per_class=60), out=tmp_path / "run", resume=True)
    whole = fr.run(longer, data=blobs(per_class=60), out=tmp_path / "whole")
    assert untimed(extended.rounds) == untimed(whole.rounds)
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == (
        tmp_path / "whole" / "best.safetensors"
    ).read_bytes()
    assert extended.best_model.keys() == whole.best_model.keys()


def test_a_function_and_its_name_are_the_same_metric(tmp_path: Path) -> None:
    by_name = {"rounds": 2, "metrics": ["support.own_code:share_of_first", "support.own_code:brier"]}
    named = fr.run(tables(run=by_name), data=blobs(), out=tmp_path / "run")
    passed = fr.run(tables(run={"rounds": 2, "metrics": [share_of_first, brier]}), data=blobs())
    assert untimed(named.rounds) == untimed(passed.rounds)
    assert named.experiment.to_tables()["run"]["metrics"] == by_name["metrics"]
    final = named.rounds[-1]
    assert 0 <= final["metrics"]["share_of_first"] <= 1
    worst = max(value for value in final["client_test"]["brier"]["by_client"])
    assert final["client_test"]["brier"]["worst_tenth"] == worst, "smaller is better"


def test_metrics_by_name_are_code_of_a_directory(tmp_path: Path) -> None:
    def cut(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    code = tables(
        data={"name": "support.own_code:blobs"}, run={"rounds": 2, "metrics": ["support.own_code:share_of_first"]}
    )
    with pytest.raises(KeyboardInterrupt):
        fr.run(code, out=tmp_path / "run", watch=cut)
    with pytest.raises(fr.UserError) as error:
        fr.run(out=tmp_path / "run", resume=True)
    assert error.value.code == "config.untrusted_code"
    assert "support.own_code:share_of_first" in str(error.value)
    resumed = fr.run(out=tmp_path / "run", resume=True, trust_code=True)
    assert resumed.summary["metrics"]["share_of_first"]["final"] == resumed.rounds[-1]["metrics"]["share_of_first"]


@pytest.mark.parametrize(
    ("changes", "code", "key", "near"),
    [
        ({"run": {"metrics": ["macro_f2"]}}, "config.unknown_name", "run.metrics", "macro_f1"),
        ({"run": {"metrics": ["top5"]}}, "config.conflict", "run.metrics", None),
        ({"run": {"metrics": ["support.own_code:Nothing"]}}, "config.unknown_name", "run.metrics", None),
        ({"run": {"metrics": ["support.own_cod:brier"]}}, "config.cannot_import", "run.metrics", "support.own_code"),
        ({"run": {"metrics": ["support.own_code:np"]}}, "config.invalid_value", "run.metrics", None),
        ({"run": {"stop": {"metric": "acuracy", "patience": 1}}}, "config.unknown_name", "run.stop.metric", "accuracy"),
        ({"run": {"stop": {"metric": "accuracy"}}}, "config.conflict", "run.stop", None),
        ({"run": {"stop": {"patience": 0}}}, "config.invalid_value", "run.stop.patience", None),
        ({"run": {"stop": {"pateince": 1}}}, "config.unknown_key", "run.stop.pateince", "patience"),
        ({"data": {"client_test": -0.1}}, "config.invalid_value", "data.client_test", None),
        ({"data": {"validation": 1.0}}, "config.invalid_value", "data.validation", None),
        ({"local": {"clip": -1.0}}, "config.invalid_value", "local.clip", None),
        ({"local": {"optimiser": "adanw"}}, "config.unknown_name", "local.optimiser", "adamw"),
        ({"local": {"schedule": {"name": "cosin"}}}, "config.unknown_name", "local.schedule.name", "cosine"),
        ({"local": {"precision": "bf17"}}, "config.unknown_name", "local.precision", "bf16"),
        ({"local": {"class_weights": [1.0, 2.0]}}, "config.conflict", "local.class_weights", None),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_the_nearest_choice(
    changes: dict[str, Any], code: str, key: str, near: str | None
) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(**changes), data=blobs())
    assert (error.value.code, error.value.key) == (code, key)
    assert near is None or f'"{near}"' in str(error.value.hint)
    assert "\n" not in str(error.value)


def monitor(metric: str, **stop: Any) -> Monitor:
    run = {"metrics": [metric], "stop": {"metric": metric, **stop}}
    return Monitor(Experiment(run=run), "validation")


def records(metric: str, *values: float) -> list[dict[str, Any]]:
    return [{"round": i, "validation": {metric: value}} for i, value in enumerate(values, 1)]


def test_patience_counts_evaluations_without_a_better_value() -> None:
    patient = monitor("accuracy", patience=2)
    values = (0.5, 0.6, 0.6, 0.55)
    reasons = [patient.stop_reason(records("accuracy", *values[:n])) for n in range(1, 5)]
    assert reasons == [None, None, None, "patience"]
    lower = monitor("log_loss", patience=1)
    assert [lower.stop_reason(records("log_loss", *v)) for v in ((2, 1), (1, 2))] == [None, "patience"]


def test_a_target_is_reached_from_either_side() -> None:
    for metric, reached, missed in (("accuracy", 0.9, 0.89), ("log_loss", 0.5, 0.51)):
        target = monitor(metric, target=0.9 if metric == "accuracy" else 0.5)
        assert target.stop_reason(records(metric, reached)) == "target"
        assert target.stop_reason(records(metric, missed)) is None


def test_a_round_that_was_not_evaluated_does_not_stop_a_run() -> None:
    patient = monitor("accuracy", patience=1)
    later = [*records("accuracy", 0.6, 0.5), {"round": 3}]
    assert patient.stop_reason(later) is None


def test_a_run_that_stops_early_is_finished(tmp_path: Path) -> None:
    early = tables(run={"rounds": 30, "stop": {"metric": "macro_f1", "target": 0.2}})
    stopped = fr.run(early, data=blobs(per_class=60), out=tmp_path / "run")
    assert len(stopped.rounds) < 30
    assert stopped.summary["stopped"] == {
        "round": len(stopped.rounds), "reason": "target", "metric": "macro_f1", "on": "validation",
    }  # fmt: skip
    assert stopped.rounds[-1]["validation"]["macro_f1"] >= 0.2
    assert all(record["validation"]["macro_f1"] < 0.2 for record in stopped.rounds[:-1])
    assert fr.load(tmp_path / "run").runs[0].summary["rounds"] == len(stopped.rounds)


def test_without_validation_the_test_set_is_monitored_and_no_best_model_is_kept(tmp_path: Path) -> None:
    plain = tables(data={"client_test": 0.0, "validation": 0.0}, run={"rounds": 9, "stop": {"patience": 1}})
    stopped = fr.run(plain, data=blobs(per_class=60), out=tmp_path / "run")
    assert stopped.summary.get("stopped", {}).get("on", "test") == "test"
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_a_run_that_stops_before_the_methods_last_step_says_so(tmp_path: Path) -> None:
    ccvr = tables(method={"name": "ccvr"}, run={"rounds": 4})
    whole = fr.run(ccvr, data=blobs(per_class=60))
    assert "inactive" not in whole.summary
    stopped = fr.run(ccvr, data=blobs(per_class=60), watch=lambda record: record["round"] == 2)
    assert "round 4" in stopped.summary["inactive"]


def test_a_personal_model_is_scored_with_the_learning_rate_of_its_round() -> None:
    fedbabu = tables(method={"name": "fedbabu"}, run={"rounds": 2}, local={"schedule": {"name": "cosine", "rounds": 2}})
    result = fr.run(fedbabu, data=blobs(per_class=60))
    last = result.rounds[-1]
    scores = [last[part]["log_loss"]["weighted"] for part in ("client_test", "client_test_personal")]
    assert scores[0] != scores[1], "the schedule is 0 after the last round"


def test_watch_stops_a_run_cleanly(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(record: dict[str, Any]) -> bool:
        seen.append(record["round"])
        return record["round"] == 2

    stopped = fr.run(TABLES, data=blobs(per_class=60), out=tmp_path / "run", watch=watch)
    assert seen == [1, 2]
    assert stopped.summary["stopped"] == {"round": 2, "reason": "watch"}
    assert (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(fr.UserError) as error:
        fr.run(TABLES, data=blobs(per_class=60), out=tmp_path / "run")
    assert error.value.code == "run.directory_not_empty"
    continued = fr.run(TABLES, data=blobs(per_class=60), out=tmp_path / "run", resume=True)
    assert [record["round"] for record in continued.rounds] == [1, 2, 3, 4]


def test_a_personal_method_has_scores_of_both_models(tmp_path: Path) -> None:
    ditto = tables(method={"name": "ditto"}, run={"rounds": 2, "metrics": ["macro_f1"]})
    both = fr.run(ditto, data=blobs(per_class=60), out=tmp_path / "run")
    scores = both.summary["client_test_personal"]
    assert scores["clients"] == both.summary["client_test"]["clients"]
    assert scores["macro_f1"]["by_client"] != both.summary["client_test"]["macro_f1"]["by_client"]
    table = fr.load(tmp_path / "run").to_dict()["ditto"]
    assert table["macro_f1, personal: mean"]["mean"] == scores["macro_f1"]["mean"]
    assert table["macro_f1: worst tenth"]["mean"] == both.summary["client_test"]["macro_f1"]["worst_tenth"]
    only = fr.run(tables(method={"name": "fedproto", "share_weights": False}, run={"rounds": 1}), data=blobs())
    assert only.summary["client_test"]["model"] == "personal"


def test_an_undefined_metric_is_null_and_counted() -> None:
    one_class = tables(
        federation={"clients": 3, "partition": {"name": "labels", "k": 1}}, data={"validation": 0.0}, run={"rounds": 1}
    )
    found = fr.run(one_class, data=blobs()).summary["client_test"]["auroc"]
    assert (found["undefined"], found["mean"], found["by_client"]) == (3, None, [None] * 3)


def test_tables_report_and_plots_have_the_metrics(result: fr.Result, tmp_path: Path) -> None:
    side = fr.compare(
        ["fedavg", "fedprox:mu=1"], config=TABLES, data=blobs(per_class=60), rounds=2, seeds=2, out=tmp_path / "study",
    )  # fmt: skip
    table = side.to_dict()["fedprox:mu=1"]
    finals = [run.summary["metrics"]["macro_f1"]["final"] for run in side.runs if run.cell.row == "fedprox:mu=1"]
    assert table["macro_f1"]["mean"] == pytest.approx(sum(finals) / 2)
    tenth = [run.summary["client_test"]["auroc"]["worst_tenth"] for run in side.runs if run.cell.row == "fedprox:mu=1"]
    assert table["auroc: worst tenth"]["mean"] == pytest.approx(sum(tenth) / 2)
    assert "macro_f1" in str(side)
    page = side.report(tmp_path / "report.html").read_text()
    assert "Held-out examples of the clients" in page
    assert "worst tenth" in page
    assert any("clients-" in path.name for path in tmp_path.rglob("*.csv"))
    assert side.plot("macro_f1").axes[0].get_ylabel() == "macro_f1"
    assert result.plot("macro_f1").axes[0].get_ylabel() == "macro_f1"


def test_a_damaged_summary_is_one_line(result: fr.Result, tmp_path: Path) -> None:
    assert result.directory is not None
    whole = json.loads((result.directory / "summary.json").read_text())
    for name in ("config.toml", "rounds.jsonl"):
        (tmp_path / name).write_bytes((result.directory / name).read_bytes())
    for key, value in (
        ("metrics", []), ("metrics", {"macro_f1": 1}), ("metrics", {"macro_f1": {"final": "x"}}),
        ("client_test", 3), ("client_test", {"accuracy": {"mean": []}}),
    ):  # fmt: skip
        (tmp_path / "summary.json").write_text(json.dumps(whole | {key: value}))
        with pytest.raises(fr.UserError) as error:
            fr.load(tmp_path).to_dict()
        assert error.value.code == "run.damaged_file"


def test_a_server_without_a_test_set_reports_the_accuracy_on_the_clients(tmp_path: Path) -> None:
    data = fr.from_arrays(blobs(per_class=60).train_x, blobs(per_class=60).train_y, test=0)
    alone = fr.run(tables(run={"rounds": 2, "metrics": []}), data=data)
    assert alone.summary["accuracy_on"] == "client_test"
    assert alone.summary["final"] == alone.rounds[-1]["client_test"]["accuracy"]["weighted"]
    assert math.isfinite(alone.summary["final"])
