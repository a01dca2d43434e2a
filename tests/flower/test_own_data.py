"""Nodes with their own data, without Flower's processes: schema, statistics and evaluation are those of `serial`."""

import json
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

from fedrecall import METHODS, UserError
from fedrecall.flower.messages import from_array_record
from support.loopback import Loopback, app, federate, in_a_task, lines, same, serial
from support.lossy_engine import serial_without
from support.own_tables import COLUMNS, make_rows, write_federation, write_table

__all__ = ["in_a_task"]  # a fixture
pytestmark = pytest.mark.flower
NO_AUXILIARY = [name for name, method in METHODS.items() if not method().traits.needs_auxiliary_data]
EXACT = ("round", "accuracy", "loss", "train_loss", "clients", "replies", "client_test", "validation")


def own_federation(folder: Path, changes: str = "") -> Loopback:
    config, tables = write_federation(folder)
    grid = Loopback.of(folder, 3, app(folder, config, changes))
    for client, table in enumerate(tables):
        grid.nodes[100 + client]["table"] = str(table)
    return grid


def assert_equal_rounds(folder: Path, expected: list[dict[str, object]]) -> None:
    for got, meant in zip(lines(folder), expected, strict=True):
        for key in EXACT:
            assert got.get(key) == meant.get(key), key


@pytest.mark.parametrize("method", NO_AUXILIARY)
def test_without_data_at_the_coordinator_the_bits_are_those_of_serial(method: str, tmp_path: Path) -> None:
    changes = f"method.name={method} data.validation=0.2 run.rounds=2"
    federate(own_federation(tmp_path, changes))
    expected = serial(tmp_path / "simulation.toml", changes)
    assert_equal_rounds(tmp_path, expected.rounds)
    if not expected.experiment.method.traits.personalised:
        assert same(tmp_path, expected)
    scores = lines(tmp_path)[-1]["client_test"]
    assert scores["clients"] == [0, 1, 2]
    assert scores["examples"] == [10, 13, 15]
    assert scores["accuracy"].keys() == {"mean", "weighted", "worst", "worst_tenth", "undefined", "by_client"}
    assert scores["accuracy"]["worst"] == min(scores["accuracy"]["by_client"])


def read_json(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())


def test_the_statistics_are_those_of_all_nodes_and_are_exchanged_once(tmp_path: Path) -> None:
    grid = own_federation(tmp_path)
    federate(grid)
    expected = serial(tmp_path / "simulation.toml", "").preprocessing.to_json()
    got = read_json(tmp_path / "run" / "preprocess.json")
    assert got == json.loads(json.dumps(expected))
    assert read_json(tmp_path / "run" / "schema.json")["columns"] == got["columns"]
    assert [column["categories"] for column in got["columns"]] == [None, None, ["former", "no", "yes"], None]
    tasks = [message.content.config_records["order"]["task"] for message in grid.sent]
    assert tasks == ["hello"] * 3 + (["train"] * 3 + ["evaluate"] * 3) * 3


def test_no_data_of_single_rows_is_sent(tmp_path: Path) -> None:
    """The description has names, categories and sums; an evaluation numbers and, if requested, the confusion matrix."""
    grid, replies = own_federation(tmp_path), []
    grid.fate = lambda node, reply: replies.append(reply) or reply
    federate(grid)
    described = json.loads(replies[0].content.config_records["answer"]["description"])
    assert described.keys() == {"classes", "shapes", "types", "columns", "vocabulary"}
    assert all(column.keys() == {"name", "categories", "flag", "sums"} for column in described["columns"])
    evaluation = replies[-1].content.array_records["up"]
    assert {name: array.shape for name, array in evaluation.items()} == {"client_test": (3,), "confusion": (3, 3)}


def test_fixed_statistics_need_no_sums(tmp_path: Path) -> None:
    config, tables = write_federation(tmp_path)
    columns = """[data.columns]
weight = { mean = 150, std = 70 }
smoker = ["no", "yes", "former"]
age = { mean = 60, std = 20 }
"""
    for name in ("federation.toml", "simulation.toml"):
        text = (tmp_path / name).read_text()
        text = text.replace("[data]\n", '[data]\nlabels = ["well", "unclear", "ill"]\n')
        (tmp_path / name).write_text(f"{text}\n{columns}")
    grid, replies = Loopback.of(tmp_path, 3, app(tmp_path, config, "")), []
    for client, table in enumerate(tables):
        grid.nodes[100 + client]["table"] = str(table)
    grid.fate = lambda node, reply: replies.append(reply) or reply
    federate(grid)
    assert not any(c["sums"] for c in json.loads(replies[1].content.config_records["answer"]["description"])["columns"])
    expected = serial(tmp_path / "simulation.toml", "")
    assert_equal_rounds(tmp_path, expected.rounds)
    assert same(tmp_path, expected)
    found = read_json(tmp_path / "run" / "preprocess.json")
    assert found["classes"] == ["well", "unclear", "ill"]
    assert [(c["name"], c["center"]) for c in found["columns"]] == [("age", 60), ("smoker", 0.0), ("weight", 150)]


def rewrite(table: Path, change: str) -> None:
    """Spoil the table of a node."""
    header, *rows = table.read_text().splitlines()
    if change == "one class":
        rows = [row for row in rows if ",ill" in row]
    elif change == "no label":
        header = header.replace("outcome", "result")
    elif change == "another column":
        header = header.replace("weight", "mass")
    elif change == "text instead of numbers":
        rows[3] = rows[3].replace(rows[3].split(",")[1], "high")
    elif change == "no example":
        rows = []
    elif change == "another class":
        rows[0] = rows[0].rpartition(",")[0] + ",recovered"
    table.write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.parametrize(
    ("change", "code", "fact"),
    [
        ("one class", "data.one_class", "ill"),
        ("no label", "data.missing_column", "outcome"),
        ("no example", "data.empty", "no rows"),
        ("another column", "data.missing_column", "weight"),
        ("text instead of numbers", "data.invalid_inputs", "pressure"),
        ("another class", "data.unknown_class", "recovered"),
    ],
)
def test_a_node_whose_data_does_not_fit_is_refused_and_the_round_goes_on(
    change: str, code: str, fact: str, tmp_path: Path
) -> None:
    config, tables = write_federation(tmp_path)
    labels = "[data]\n" if change != "another class" else '[data]\nlabels = ["ill", "unclear", "well"]\n'
    config.write_text(config.read_text().replace("[data]\n", labels))
    grid = Loopback.of(tmp_path, 3, app(tmp_path, config, "engine.min_replies=2 run.rounds=2"))
    rewrite(tables[0], change)
    for client, table in enumerate(tables):
        grid.nodes[100 + client]["table"] = str(table)
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2, 2]
    assert lines(tmp_path)[-1]["client_test"]["clients"] == [1, 2]
    note = (tmp_path / "run" / "failures" / "round-1-client-0.txt").read_text()
    assert note.startswith(f"{code}: ")
    assert fact in note
    assert "site-0.csv" not in note


def test_a_missing_value_is_refused_unless_a_rule_is_set(tmp_path: Path) -> None:
    config, tables = write_federation(tmp_path)
    config.write_text(config.read_text().replace('missing = "mean"\n', ""))
    grid = Loopback.of(tmp_path, 3, app(tmp_path, config, "engine.min_replies=2 run.rounds=1"))
    for client, table in enumerate(tables):
        grid.nodes[100 + client]["table"] = str(table)
    federate(grid)
    note = (tmp_path / "run" / "failures" / "round-1-client-2.txt").read_text()
    assert note.startswith("data.missing_value: ")
    assert "1 of 60 rows" in note


def test_the_coordinators_data_is_scaled_by_the_statistics_of_the_nodes(tmp_path: Path) -> None:
    """The coordinator's table is for the test and for auxiliary examples; its rows are in no statistic."""
    grid = own_federation(tmp_path)
    server = write_table(tmp_path / "server.csv", make_rows(0, 60), COLUMNS)
    grid.run_config["set"] = f"data.path={server} method.name=fedssd data.aux_per_class=4"
    federate(grid)
    expected = serial(tmp_path / "simulation.toml", "").preprocessing.to_json()["columns"]
    assert read_json(tmp_path / "run" / "preprocess.json")["columns"] == json.loads(json.dumps(expected))
    assert all(line["loss"] is not None and line["client_test"]["clients"] == [0, 1, 2] for line in lines(tmp_path))


def test_a_method_with_auxiliary_examples_needs_data_at_the_coordinator(tmp_path: Path) -> None:
    grid = own_federation(tmp_path, "method.name=fedssd")
    with pytest.raises(UserError) as error:
        federate(grid)
    assert (error.value.code, error.value.key) == ("config.conflict", "data.path")
    assert not grid.sent


PRIVATE = (
    "server.privacy.noise=1 server.privacy.clip=1 server.privacy.source=system server.weights=uniform "
    "data.client_test=0 run.metrics=[] run.rounds=1"
)
STATED = {
    "age": "{mean=60,std=20}",
    "pressure": "{mean=130,std=15}",
    "smoker": '["no","yes","former"]',
    "weight": "{mean=150,std=70}",
}


def stated_columns(**changed: str) -> str:
    columns = STATED | changed
    return "data.columns={" + ",".join(f"{name}={value}" for name, value in columns.items()) + "}"


@pytest.mark.parametrize("columns", ["", stated_columns(weight='"number"')])
def test_a_private_run_sends_no_sums(columns: str, tmp_path: Path) -> None:
    grid, replies = own_federation(tmp_path, f"{PRIVATE} {columns}"), []
    grid.fate = lambda node, reply: replies.append(reply) or reply
    with pytest.raises(UserError) as error:
        federate(grid)
    assert error.value.code == "flower.too_few_clients"
    assert "privacy.not_covered" in str(error.value)
    assert all("description" not in reply.content.config_records.get("answer", {}) for reply in replies)


def test_a_private_run_with_stated_statistics(tmp_path: Path) -> None:
    grid, replies = own_federation(tmp_path, f"{PRIVATE} {stated_columns()}"), []
    grid.fate = lambda node, reply: replies.append(reply) or reply
    federate(grid)
    assert lines(tmp_path)[0]["epsilon"] > 0
    described = json.loads(replies[0].content.config_records["answer"]["description"])
    assert not any(column["sums"] for column in described["columns"])


@pytest.mark.parametrize("data", ["a share of the configured table", "rows of the configured table"])
def test_a_private_run_on_a_table_that_all_nodes_have_is_refused(data: str, tmp_path: Path) -> None:
    write_federation(tmp_path)
    grid = Loopback.of(tmp_path, 3, app(tmp_path, tmp_path / "simulation.toml", f"{PRIVATE} data.test=0.2"))
    if data == "rows of the configured table":
        (tmp_path / "rows.txt").write_text("\n".join(map(str, range(40))))
        for node in grid.nodes.values():
            node["index"] = str(tmp_path / "rows.txt")
    with pytest.raises(UserError) as error:
        federate(grid)
    assert (error.value.code, error.value.key) == ("privacy.not_covered", "server.privacy")
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_a_resumed_run_keeps_its_schema(tmp_path: Path) -> None:
    """The run ends in round 2. When it is resumed, a node that is there late has no influence on the statistics."""
    grid, requests = own_federation(tmp_path, "method.name=scaffold"), iter(range(1000))
    grid.run_config["set"] = "engine.timeout=2"
    grid.fate = lambda node, reply: None if next(requests) == 11 else reply
    with pytest.raises(UserError):
        federate(grid)
    before = (tmp_path / "run" / "schema.json").read_text()
    grid.fate = lambda node, reply: reply
    federate(grid)
    assert (tmp_path / "run" / "schema.json").read_text() == before
    expected = serial(tmp_path / "simulation.toml", "method.name=scaffold")
    assert_equal_rounds(tmp_path, expected.rounds)
    assert same(tmp_path, expected)


LOST = re.compile(r"\(task (\w+)\)")


@pytest.mark.parametrize("method", ["fedlmd", "scaffold", "fedcsd"])
def test_a_node_that_was_away_is_back_with_the_bits_of_serial_in_every_round(method: str, tmp_path: Path) -> None:
    changes = f"method.name={method} engine.min_replies=2 run.rounds=6"
    grid = own_federation(tmp_path, changes)

    def connected() -> list[int]:
        finished = len(lines(tmp_path)) if (tmp_path / "run" / "rounds.jsonl").exists() else 0
        return sorted(grid.online - ({101} if 1 <= finished < 4 else set()))

    grid.get_node_ids = connected
    federate(grid)
    records = lines(tmp_path)
    assert [record["replies"] for record in records] == [3, 2, 2, 2, 3, 3]
    lost = [(record["round"], x["client"], x["reason"]) for record in records for x in record.get("lost", ())]
    missing = {(number, client, LOST.search(reason)[1]) for number, client, reason in lost}
    assert {client for _, client, _ in missing} == {1}
    weights: list[torch.Tensor] = []
    expected = serial_without(tmp_path / "simulation.toml", changes, missing, weights)
    orders = [(m.content.config_records["order"]["task"], m) for m in grid.sent]
    sent = {m.content.config_records["order"]["version"][0]: m for task, m in orders if task == "evaluate"}
    assert len(sent) == len(weights) == 6
    for number, message in sent.items():
        assert torch.equal(from_array_record(message.content, "down")["w"], weights[number - 1]), number
    assert_equal_rounds(tmp_path, expected.rounds)
    assert same(tmp_path, expected)
