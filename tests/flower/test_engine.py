"""FlowerEngine without Flower's processes: the bits of `serial`, and every kind of loss."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

from flwr.app import ConfigRecord, Error, Message
from safetensors.torch import load_file

from fedrecall import METHODS, UserError
from fedrecall.flower.messages import from_array_record, to_array_record
from support.loopback import Loopback, federate, federation, in_a_task, lines, same, serial
from support.lossy_engine import serial_without

__all__ = ["in_a_task"]  # a fixture
pytestmark = pytest.mark.flower
VARIANTS = {name: f"method.name={name}" for name in METHODS} | {
    "fedproto-personal": "method.name=fedproto method.share_weights=false",
    "fedcsd-client": "method.name=fedcsd method.teacher_at=client",
    "private-head": "method.name=fedntd federation.private=head",
    "private-body": "method.name=scaffold federation.private=body",
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_bits_of_serial(changes: str, config: Path, tmp_path: Path) -> None:
    federate(federation(tmp_path, config, changes))
    expected = serial(config, changes)
    if not (expected.experiment.method.traits.personalised or "federation.private" in changes):
        assert same(tmp_path, expected)
    for got, meant in zip(lines(tmp_path), expected.rounds, strict=True):
        for key in ("round", "accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "clients", "replies"):
            assert got[key] == meant[key], key


def test_forgetting_and_pull_are_those_of_serial(config: Path, tmp_path: Path) -> None:
    changes = 'method.name=fedntd run.local_accuracy=true run.probes=["forgotten","pull"]'
    federate(federation(tmp_path, config, changes))
    keys = ("forgotten", "forgotten_absent", "pull", "local_accuracy")
    measured = [[record[key] for key in keys] for record in serial(config, changes).rounds]
    assert all(0 < record[0] <= 1 for record in measured[1:])
    assert [[line[key] for key in keys] for line in lines(tmp_path)] == measured


def test_metrics_held_out_examples_and_training_settings_have_the_bits_of_serial(config: Path, tmp_path: Path) -> None:
    changes = (
        "data.client_test=0.2 data.validation=0.2 data.aux_per_class=0 local.optimiser=adamw local.clip=0.5 "
        "local.class_weights=balanced local.schedule.name=cosine run.stop.patience=9 "
        'run.metrics=["macro_f1","auroc","log_loss","confusion"]'
    )
    federate(federation(tmp_path, config, changes))
    expected = serial(config, changes)
    assert same(tmp_path, expected)
    for got, meant in zip(lines(tmp_path), expected.rounds, strict=True):
        for key in ("accuracy", "metrics", "confusion", "client_test", "validation"):
            assert got[key] == meant[key], key
    assert (tmp_path / "run" / "best.safetensors").exists()


def test_states_stay_on_their_nodes_and_old_versions_are_removed(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=scaffold run.rounds=6")
    federate(grid)
    for client in range(3):
        (folder,) = (tmp_path / f"state-{client}").iterdir()
        assert len(list((folder / f"client-{client}").iterdir())) <= 4
    assert not list((tmp_path / "run").rglob("memory*")), "none is at the server"


def test_a_lost_reply_is_rolled_back(config: Path, tmp_path: Path) -> None:
    """The node has stored its state, the server has received no reply: the result is that without the client."""
    changes = "method.name=scaffold engine.min_replies=2"
    grid, requests = federation(tmp_path, config, changes), [0]

    def drop_one(node: int, reply: Message) -> Message | None:
        requests[0] += 1
        return None if requests[0] == 3 + 3 + 2 else reply  # hellos, the first round, and in the second one

    grid.fate = drop_one
    grid.run_config["set"] = "engine.timeout=1"
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 3]
    (note,) = (tmp_path / "run" / "failures").iterdir()
    assert note.name.startswith("round-2-client-")
    assert note.read_text().startswith("reply.timeout: ")
    assert "engine.timeout = 1" in note.read_text()
    lost = int(note.stem.rpartition("-")[2])
    assert same(tmp_path, serial_without(config, changes, {(2, lost, "train")}))


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ("up", "w"),
        ("up", "dc"),
        ("report", "loss"),
    ],
)
def test_a_rejected_reply_is_rolled_back(record: str, name: str, config: Path, tmp_path: Path) -> None:
    """The node returns to the state that the server acknowledged: the result is that without the client."""
    changes = "method.name=scaffold engine.min_replies=2"
    grid, requests = federation(tmp_path, config, changes), [0]

    def corrupt_one(node: int, reply: Message) -> Message:
        requests[0] += 1
        if requests[0] == 3 + 3 + 2:  # hellos, the first round, and in the second one
            sent = from_array_record(reply.content, record)
            reply.content[record] = to_array_record({**sent, name: sent[name] * torch.nan})
        return reply

    grid.fate = corrupt_one
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 3]
    (rejection,) = lines(tmp_path)[1]["refused"]
    assert f"{name} is not finite" in rejection["reason"]
    assert same(tmp_path, serial_without(config, changes, {(2, rejection["client"], "train")}))


def test_an_absent_node_is_recorded_and_returns_with_its_state(config: Path, tmp_path: Path) -> None:
    changes = "method.name=scaffold engine.min_replies=2 run.rounds=4"
    grid = federation(tmp_path, config, changes)
    rounds = iter(range(100))

    def registered_clients() -> list[int]:
        return sorted(grid.online - ({101} if next(rounds) == 2 else set()))  # gathering, round 1, round 2

    grid.get_node_ids = registered_clients
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 3, 3]
    note = (tmp_path / "run" / "failures" / "round-2-client-1.txt").read_text()
    assert note.startswith("reply.not_connected: ")
    assert same(tmp_path, serial_without(config, changes, {(2, 1, "train")}))


def test_a_client_that_raises_is_skipped_and_its_traceback_stored(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=scaffold engine.min_replies=2")
    (tmp_path / "state-1").write_text("a file where a folder should be")
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2, 2, 2]
    assert "NotADirectoryError" in (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()


def test_without_min_replies_a_failure_ends_the_run_which_can_be_resumed(config: Path, tmp_path: Path) -> None:
    changes = "method.name=scaffold run.rounds=4"
    grid = federation(tmp_path, config, changes)
    requests = [0]

    def break_in_round_3(node: int, reply: Message) -> Message:
        requests[0] += 1
        return Message(Error(5, "node unavailable"), reply_to=grid.sent[-1]) if requests[0] == 3 + 6 + 1 else reply

    grid.fate = break_in_round_3
    with pytest.raises(UserError) as error:
        federate(grid)
    assert error.value.code == "reply.transport_error"
    for fact in ("round 3", "error 5", "node unavailable"):
        assert fact in str(error.value)
    assert len(lines(tmp_path)) == 2
    grid.fate = lambda node, reply: reply
    federate(grid)
    assert same(tmp_path, serial(config, changes)), "with the client_states of the checkpoint"
    with pytest.raises(UserError) as error:
        federate(grid)
    assert error.value.code == "run.finished"


def test_a_lost_state_is_an_error(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=scaffold engine.min_replies=2")
    requests = [0]

    def clean(node: int, reply: Message) -> Message:
        requests[0] += 1
        if requests[0] == 6:
            (tmp_path / "state-2").rename(tmp_path / "elsewhere")
        return reply

    grid.fate = clean
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 2]
    note = (tmp_path / "run" / "failures" / "round-2-client-2.txt").read_text()
    assert note.startswith("run.missing_client_state: ")
    assert "round 1, exchange 1" in note


def test_two_nodes_of_one_client_are_an_error(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    grid.nodes[102]["client"] = 1
    with pytest.raises(UserError) as error:
        federate(grid)
    assert (error.value.code, error.value.key) == ("flower.duplicate_client", "node-config")
    assert "client = 1" in str(error.value)


def test_a_second_node_of_a_client_that_registers_later_is_an_error(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    grid.run_config["set"] = "engine.timeout=0.5"
    grid.nodes[102]["client"] = 1
    polls = iter(range(100))
    grid.get_node_ids = lambda: [100, 101] if next(polls) == 0 else [100, 101, 102]
    with pytest.raises(UserError) as error:
        federate(grid)
    assert (error.value.code, error.value.key) == ("flower.too_few_clients", "engine.timeout")
    for fact in ("missing: 2;", "node 102: client = 1", "node 101"):
        assert fact in str(error.value)


def test_no_node_takes_the_place_of_a_connected_one(config: Path, tmp_path: Path) -> None:
    """Node 103 claims to be client 1 from the second round on: node 101 goes on as client 1."""
    grid = federation(tmp_path, config)
    grid.nodes[103] = {"client": 1, "state": str(tmp_path / "state-3")}
    grid.online.add(103)
    polls = iter(range(100))
    grid.get_node_ids = lambda: [100, 101, 102] if next(polls) < 2 else [100, 101, 102, 103]
    federate(grid)
    assert same(tmp_path, serial(config, ""))
    tasks = [(m.metadata.dst_node_id, m.content.config_records["order"]["task"]) for m in grid.sent]
    assert (103, "hello") in tasks
    assert (103, "train") not in tasks


def test_two_claims_of_one_client_do_not_end_a_run_that_has_started(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2")
    grid.nodes |= {node: {"client": 1, "state": str(tmp_path / f"state-{node}")} for node in (103, 104)}
    grid.online |= {103, 104}
    polls = iter(range(100))
    grid.get_node_ids = lambda: [100, 101, 102] if next(polls) < 2 else [100, 102, 103, 104]
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 2]


def test_the_number_of_examples_is_fixed_at_registration(config: Path, tmp_path: Path) -> None:
    """Node 101 leaves, and comes back with other rows: it is left out from then on."""
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=4")
    for client in range(3):
        (tmp_path / f"rows-{client}").write_text(" ".join(map(str, range(30 * client, 30 * client + 30))))
        grid.nodes[100 + client]["index"] = str(tmp_path / f"rows-{client}")
    polls = iter(range(100))

    def registered_clients() -> list[int]:
        look = next(polls)
        if look == 2:
            (tmp_path / "rows-1").write_text(" ".join(map(str, range(90))))
        return [100, 102] if look == 2 else [100, 101, 102]

    grid.get_node_ids = registered_clients
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 2, 2, 2]


def test_a_lost_registration_is_sent_again(config: Path, tmp_path: Path) -> None:
    grid, requests = federation(tmp_path, config), iter(range(100))
    grid.run_config["set"] = "engine.timeout=5"
    grid.fate = lambda node, reply: None if next(requests) == 1 else reply
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 3, 3]


def test_a_client_that_never_registers_is_an_error(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    grid.run_config["set"] = "engine.timeout=0.5"
    grid.online -= {102}
    grid.nodes[101]["clint"] = 1
    with pytest.raises(UserError) as error:
        federate(grid)
    assert (error.value.code, error.value.key) == ("flower.too_few_clients", "engine.timeout")
    for fact in ("1 of 3 clients", "0.5 s", "3 are needed", "missing: 1, 2;", "node 101: ", "clint"):
        assert fact in str(error.value)


def test_a_node_with_local_data(config: Path, tmp_path: Path) -> None:
    """Every node has a table; the server's data are for the test and for auxiliary examples."""
    grid = federation(tmp_path, config, "method.name=fedssd")
    lines_of_table = (config.parent / "data.csv").read_text().splitlines()
    for client in range(3):
        mine = [
            line
            for i, line in enumerate(lines_of_table[1:])
            if i % 3 == client and not (client == 2 and line.endswith("a"))
        ]
        (tmp_path / f"own-{client}.csv").write_text("\n".join([lines_of_table[0], *mine]))
        grid.nodes[100 + client]["table"] = str(tmp_path / f"own-{client}.csv")
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [3, 3, 3]
    assert json.loads((tmp_path / "run" / "partition.json").read_text())["law"] == {"name": "nodes"}
    del grid.nodes[101]["table"]
    grid.run_config["out"] = str(tmp_path / "other")
    with pytest.raises(UserError) as error:
        federate(grid)
    assert (error.value.code, error.value.key) == ("flower.mixed_data", "node-config")
    assert "0, 2" in str(error.value), "the clients with data of their own"


def test_two_exchanges_a_round(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=fedcsd run.rounds=1")
    federate(grid)
    tasks = [message.content.config_records["order"]["task"] for message in grid.sent]
    assert tasks == ["hello"] * 3 + ["prototype"] * 3 + ["train"] * 3


def claim_many(grid: Loopback) -> None:
    """Give every node rows of its own, and let node 101 claim 10^9 of them, from its registration on."""
    for client in range(3):
        (grid.folder / f"rows-{client}").write_text(" ".join(map(str, range(30 * client, 30 * client + 30))))
        grid.nodes[100 + client]["index"] = str(grid.folder / f"rows-{client}")

    def claim(node: int, reply: Message) -> Message:
        if node == 101:
            reply.content["answer"] = ConfigRecord({**reply.content.config_records["answer"], "n": 10**9})
        return reply

    grid.fate = claim


@pytest.mark.parametrize(
    ("changes", "owned"),
    [("", True), ("server.robust=median", False), ("federation.max_examples_ratio=2", False)],
)
def test_who_claims_many_examples_owns_the_mean_only_without_a_limit(
    changes: str, owned: bool, config: Path, tmp_path: Path
) -> None:
    grid = federation(tmp_path, config, f"run.rounds=1 {changes}")
    sent = {}
    claim_many(grid)
    claim = grid.fate

    def watch(node: int, reply: Message) -> Message:
        if "w" in reply.content.array_records["up"]:
            sent[node] = from_array_record(reply.content, "up")["w"]
        return claim(node, reply)

    grid.fate = watch
    federate(grid)
    final = torch.cat([t.flatten() for t in load_file(tmp_path / "run" / "model.safetensors").values()])
    assert torch.allclose(final.sort().values, sent[101].sort().values, atol=1e-5) is owned, "tensors in any order"


def test_max_examples_rejects_an_impossible_claim(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=2 federation.max_examples=1000")
    claim_many(grid)
    federate(grid)
    refused = [[(x["client"], "1000000000" in x["reason"]) for x in line["refused"]] for line in lines(tmp_path)]
    assert refused == [[(1, True)]] * 2
