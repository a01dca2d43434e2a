"""The federation's own code, without Flower's processes: the bits of `serial`, and every way to lose something."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedrecall import METHODS, UserError, run
from fedrecall.engines.flower.wire import Order, order_message, packed, read_answer
from fedrecall.experiment.config import Experiment
from fedrecall.experiment.flower import server
from fedrecall.experiment.flower.client import handle
from fedrecall.experiment.flower.new import new
from fedrecall.experiment.run import Result
from support.loopback import Loopback
from support.lossy import serial_without

pytestmark = pytest.mark.flower
VARIANTS = {name: f"method.name={name}" for name in METHODS} | {
    "fedproto-personal": "method.name=fedproto method.share_weights=false",
    "fedcsd-client": "method.name=fedcsd method.teacher_at=client",
}


@pytest.fixture(autouse=True)
def _in_a_task() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's processes have them


def app(folder: Path, config: Path, changes: str) -> dict[str, str]:
    """The app's configuration, as `flwr run` hands it out."""
    new(folder / "app", config, changes.split())
    project = tomllib.loads((folder / "app" / "pyproject.toml").read_text())
    return project["tool"]["flwr"]["app"]["config"] | {"out": str(folder / "run")}


def federation(folder: Path, config: Path, changes: str = "") -> Loopback:
    return Loopback.of(folder, 3, app(folder, config, changes))


def federate(grid: Loopback) -> None:
    server.main(grid, Context(0, 0, {}, RecordDict(), grid.run_config))


def model(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "run" / "model.safetensors")


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]


def serial(config: Path, changes: str) -> Result:
    return run(Experiment.load(config, changes.split()))


def same(folder: Path, expected: Result) -> bool:
    got, meant = model(folder), expected.model().state_dict()
    return got.keys() == meant.keys() and all(torch.equal(got[name], meant[name]) for name in got)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_bits_of_serial(changes: str, config: Path, tmp_path: Path) -> None:
    federate(federation(tmp_path, config, changes))
    expected = serial(config, changes)
    if not expected.experiment.method.personal:
        assert same(tmp_path, expected)
    for got, meant in zip(lines(tmp_path), expected.rounds, strict=True):
        for key in ("round", "accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "clients", "replies"):
            assert got[key] == meant[key], key


def test_memories_stay_on_their_nodes_and_do_not_pile_up(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=scaffold run.rounds=6")
    federate(grid)
    for client in range(3):
        (folder,) = (tmp_path / f"state-{client}").iterdir()
        assert len(list((folder / f"client-{client}").iterdir())) <= 4
    assert not list((tmp_path / "run").rglob("memory*")), "none is at the server"


def test_a_lost_reply_is_rolled_back(config: Path, tmp_path: Path) -> None:
    """The node has trained and remembered, the server has not heard of it: as if it had not taken part."""
    changes = "method.name=scaffold engine.min_replies=2"
    grid, asked = federation(tmp_path, config, changes), [0]

    def lose_one(node: int, reply: Message) -> Message | None:
        asked[0] += 1
        return None if asked[0] == 3 + 3 + 2 else reply  # hellos, the first round, and in the second one

    grid.fate = lose_one
    grid.run_config["set"] = "engine.timeout=1"
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 3]
    (note,) = (tmp_path / "run" / "failures").iterdir()
    assert note.name.startswith("round-2-client-")
    assert "no answer within 1 s (engine.timeout)" in note.read_text()
    lost = int(note.stem.rpartition("-")[2])
    assert same(tmp_path, serial_without(config, changes, {(2, lost, "train")}))


def test_a_node_that_is_away_is_noted_and_comes_back_with_its_memory(config: Path, tmp_path: Path) -> None:
    changes = "method.name=scaffold engine.min_replies=2 run.rounds=4"
    grid = federation(tmp_path, config, changes)
    rounds = iter(range(100))

    def roll() -> list[int]:
        return sorted(grid.online - ({101} if next(rounds) == 2 else set()))  # gathering, round 1, round 2

    grid.get_node_ids = roll
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 3, 3]
    assert "its node is not connected" in (tmp_path / "run" / "failures" / "round-2-client-1.txt").read_text()
    assert same(tmp_path, serial_without(config, changes, {(2, 1, "train")}))


def test_a_client_that_raises_is_left_out_and_its_reason_kept(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=scaffold engine.min_replies=2")
    (tmp_path / "state-1").write_text("a file where a folder should be")
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2, 2, 2]
    assert "NotADirectoryError" in (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()


def test_without_min_replies_a_failure_ends_the_run_which_can_go_on(config: Path, tmp_path: Path) -> None:
    changes = "method.name=scaffold run.rounds=4"
    grid = federation(tmp_path, config, changes)
    asked = [0]

    def break_in_round_3(node: int, reply: Message) -> Message:
        asked[0] += 1
        return Message(Error(5, "node unavailable"), reply_to=grid.sent[-1]) if asked[0] == 3 + 6 + 1 else reply

    grid.fate = break_in_round_3
    with pytest.raises(UserError, match=r"round 3: client \d failed: Flower reports error 5: node unavailable"):
        federate(grid)
    assert len(lines(tmp_path)) == 2
    grid.fate = lambda node, reply: reply
    federate(grid)
    assert same(tmp_path, serial(config, changes)), "with the memories of the checkpoint"
    with pytest.raises(UserError, match="is finished"):
        federate(grid)


def test_a_memory_that_is_gone_is_noticed(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=scaffold engine.min_replies=2")
    asked = [0]

    def clean(node: int, reply: Message) -> Message:
        asked[0] += 1
        if asked[0] == 6:
            (tmp_path / "state-2").rename(tmp_path / "elsewhere")
        return reply

    grid.fate = clean
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 2]
    why = (tmp_path / "run" / "failures" / "round-2-client-2.txt").read_text()
    assert "the memory of round 1, exchange 1 is not on this node" in why


def test_two_nodes_of_one_number_are_refused(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    grid.nodes[102]["client"] = 1
    with pytest.raises(UserError, match="two nodes say that they hold client 1"):
        federate(grid)


def test_a_client_that_never_comes_is_named(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    grid.run_config["set"] = "engine.timeout=0.5"
    grid.online -= {102}
    grid.nodes[101]["clint"] = 1
    with pytest.raises(
        UserError, match=r"1 of 3 clients came within 0.5 s, 3 are needed; missing: 1, 2; node 101: .*clint"
    ):
        federate(grid)


def test_a_node_of_data_of_its_own(config: Path, tmp_path: Path) -> None:
    """Every node has a table; what the server has is for the test and for auxiliary examples."""
    grid = federation(tmp_path, config, "method.name=fedssd")
    whole = (config.parent / "data.csv").read_text().splitlines()
    for client in range(3):
        mine = [
            line for i, line in enumerate(whole[1:]) if i % 3 == client and not (client == 2 and line.endswith("a"))
        ]
        (tmp_path / f"own-{client}.csv").write_text("\n".join([whole[0], *mine]))
        grid.nodes[100 + client]["table"] = str(tmp_path / f"own-{client}.csv")
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 3, 3]
    assert json.loads((tmp_path / "run" / "partition.json").read_text())["law"] == {"name": "nodes"}
    del grid.nodes[101]["table"]
    grid.run_config["out"] = str(tmp_path / "other")
    with pytest.raises(UserError, match="some nodes have data of their own and others"):
        federate(grid)


def test_two_exchanges_a_round(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=fedcsd run.rounds=1")
    federate(grid)
    tasks = [message.content.config_records["order"]["task"] for message in grid.sent]
    assert tasks == ["hello"] * 3 + ["prototype"] * 3 + ["train"] * 3


@pytest.mark.parametrize("task", ["memory", "__class__", "prototype", "init", "", "x" * 500])
def test_no_other_task_is_ever_run(task: str, config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    said = Order(task, client=0, run="0" * 32)
    message = order_message(said, packed({"w": torch.zeros(3)}), 100, 60)
    context = Context(0, 100, grid.nodes[100], RecordDict(), grid.run_config)
    message.content["down"] = packed(first_weights(config))
    with pytest.raises(Exception, match=r'Method has no task ".*": it has train'):
        read_answer(handle(message, context))


def first_weights(config: Path) -> dict[str, Tensor]:
    from fedrecall.experiment.setup import setup

    return {"w": setup(Experiment.load(config)).server.w}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"down": ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", bytes(12))})},
            "written as 'numpy.ndarray'",
        ),
        ({"down": packed({"w": torch.zeros(3)})}, r"w is float32 \[3\], but must be float32"),
        ({"order": ConfigRecord({"protocol": 0})}, "install the same fedrecall"),
        ({"order": ConfigRecord({"protocol": 1, "task": 5})}, '"acknowledged" of the message is missing'),
        ({"order": ConfigRecord()}, "speaks version None"),
    ],
)
def test_orders_that_make_no_sense_are_declined(
    change: dict[str, object], message: str, config: Path, tmp_path: Path
) -> None:
    grid = federation(tmp_path, config)
    order = order_message(Order("train", client=0, run="0" * 32), packed(first_weights(config)), 100, 60)
    for name, record in change.items():
        order.content[name] = record
    with pytest.raises(Exception, match=message):
        read_answer(handle(order, Context(0, 100, grid.nodes[100], RecordDict(), grid.run_config)))
    assert not (tmp_path / "state-0").exists()


def bent(change: dict[str, object]):
    """What becomes of client 1's replies."""

    def fate(node: int, reply: Message) -> Message:
        if node == 101 and "loss" in reply.content.array_records.get("report", {}):
            for name, record in change.items():
                reply.content[name] = record
        return reply

    return fate


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"up": ArrayRecord({"w": Array("float32", (9,), "fedrecall.little-endian", bytes(8))})},
            "should have 36 bytes",
        ),
        ({"up": ArrayRecord({"w": Array("float32", (9,), "pickle", bytes(36))})}, "written as 'pickle'"),
        (
            {"answer": ConfigRecord({"protocol": 1, "client": 0, "n": 5, "own": False, "remembers": False})},
            "client 0 answ",
        ),
        (
            {"answer": ConfigRecord({"protocol": 1, "client": 1, "n": -5, "own": False, "remembers": False})},
            "-5 examples",
        ),
        ({"answer": ConfigRecord({"protocol": 1, "client": 1})}, '"n" of the message is missing'),
    ],
)
def test_answers_that_make_no_sense_are_left_out(
    change: dict[str, object], reason: str, config: Path, tmp_path: Path
) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=1")
    grid.fate = bent(change)
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2]
    assert reason in (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()


def test_a_reply_of_another_form_is_refused_even_if_all_are_needed(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    grid.fate = bent({"up": packed({"w": torch.zeros(9), "more": torch.zeros(1)})})
    with pytest.raises(UserError, match="the reply of client 1 is refused: it carries more, which nobody asked for"):
        federate(grid)
