"""Invalid messages from either side are declined or rejected, and change nothing."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedrecall import UserError
from fedrecall.config.experiment import Experiment
from fedrecall.flower.client_app import handle_message
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.messages import (
    PROTOCOL_VERSION,
    TaskFailed,
    TaskRequest,
    from_array_record,
    parse_reply,
    request_message,
    to_array_record,
)
from fedrecall.runs.setup import prepare_run
from support.loopback import federate, federation, in_a_task, lines

__all__ = ["in_a_task"]  # a fixture
pytestmark = pytest.mark.flower
VERSION = {"protocol": PROTOCOL_VERSION}


@pytest.mark.parametrize("task", ["memory", "__class__", "prototype", "init", "", "x" * 500])
def test_no_other_task_is_ever_run(task: str, config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    request = TaskRequest(task, client=0, run="0" * 32)
    message = request_message(request, to_array_record({"w": torch.zeros(3)}), 100, 60)
    context = Context(0, 100, grid.nodes[100], RecordDict(), grid.run_config)
    message.content["down"] = to_array_record(first_weights(config))
    with pytest.raises(TaskFailed) as error:
        parse_reply(handle_message(message, context))
    assert (error.value.code, error.value.key) == ("method.unknown_task", "method")
    assert f'"{task[:40]}"' in str(error.value)


def first_weights(config: Path) -> dict[str, Tensor]:
    return {"w": prepare_run(Experiment.load(config)).server.w}


@pytest.mark.parametrize(
    ("change", "code", "fact"),
    [
        (
            {"down": ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", bytes(12))})},
            "reply.wrong_encoding",
            "'numpy.ndarray'",
        ),
        ({"down": to_array_record({"w": torch.zeros(3)})}, "reply.wrong_shape", "float32 [3]"),
        ({"order": ConfigRecord({"protocol": 0})}, "reply.wrong_protocol", "install the same fedrecall"),
        ({"order": ConfigRecord({**VERSION, "task": 5})}, "reply.invalid_field", '"acknowledged"'),
        ({"order": ConfigRecord()}, "reply.wrong_protocol", "None"),
    ],
)
def test_invalid_orders_are_declined(
    change: dict[str, object], code: str, fact: str, config: Path, tmp_path: Path
) -> None:
    grid = federation(tmp_path, config)
    order = request_message(
        TaskRequest("train", client=0, run="0" * 32), to_array_record(first_weights(config)), 100, 60
    )
    for name, record in change.items():
        order.content[name] = record
    with pytest.raises(TaskFailed) as error:
        parse_reply(handle_message(order, Context(0, 100, grid.nodes[100], RecordDict(), grid.run_config)))
    assert error.value.code == code
    assert fact in str(error.value)
    assert not (tmp_path / "state-0").exists()


# Its product is 0, and its strides overflow.
HUGE_STRIDES = ArrayRecord({"w": Array("float32", (0, *[2**31 - 2**20] * 3), "fedrecall.little-endian", b"")})


def with_replies_changed(change: dict[str, object]):
    """Run a federation whose replies of client 1 are changed."""

    def fate(node: int, reply: Message) -> Message:
        if node == 101 and "loss" in reply.content.array_records.get("report", {}):
            for name, record in change.items():
                reply.content[name] = record
        return reply

    return fate


@pytest.mark.parametrize(
    ("change", "code", "fact"),
    [
        (
            {"up": ArrayRecord({"w": Array("float32", (9,), "fedrecall.little-endian", bytes(8))})},
            "reply.wrong_byte_count",
            "36",
        ),
        (
            {"up": ArrayRecord({"w": Array("float32", (9,), "pickle", bytes(36))})},
            "reply.wrong_encoding",
            "'pickle'",
        ),
        (
            {
                "answer": ConfigRecord(
                    {**VERSION, "client": 0, "n": 5, "own": False, "remembers": False, "description": ""}
                )
            },
            "reply.wrong_client",
            "client 0",
        ),
        (
            {
                "answer": ConfigRecord(
                    {**VERSION, "client": 1, "n": -5, "own": False, "remembers": False, "description": ""}
                )
            },
            "reply.invalid_example_count",
            "-5",
        ),
        ({"answer": ConfigRecord({**VERSION, "client": 1})}, "reply.invalid_field", '"n"'),
        (
            {"answer": ConfigRecord({**VERSION, "declined": "no\nmore", "code": "run.disk_full", "key": "x"})},
            "run.disk_full",
            "no more",
        ),
        (
            {"answer": ConfigRecord({**VERSION, "declined": "no more", "code": "../x", "key": 5})},
            "reply.task_failed",
            "no more",
        ),
        (
            {"answer": ConfigRecord({**VERSION, "declined": "\x1b[2J\u202e" + "long " * 4_000_000, "code": "a.b"})},
            "a.b",
            "long",
        ),
        (
            {
                "answer": ConfigRecord(
                    {**VERSION, "client": 1, "n": 10**9, "own": False, "remembers": False, "description": ""}
                )
            },
            "reply.invalid_example_count",
            "1000000000",
        ),
        ({"up": HUGE_STRIDES}, "reply.invalid_shape", "w "),
        ({"report": HUGE_STRIDES}, "reply.invalid_shape", "w "),
    ],
)
def test_invalid_replies_are_rejected(
    change: dict[str, object], code: str, fact: str, config: Path, tmp_path: Path
) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=1")
    grid.fate = with_replies_changed(change)
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2]
    note = (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()
    assert note.startswith(f"{code}: ")
    assert fact in note
    assert note.strip().isprintable()
    assert len(note) < 1200


@pytest.mark.parametrize("name", ["loss", "local_accuracy"])
def test_a_report_of_another_type_does_not_end_the_run(name: str, config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=2 run.local_accuracy=true")

    def fate(node: int, reply: Message) -> Message:
        if node == 101 and "loss" in reply.content.array_records.get("report", {}):
            report = from_array_record(reply.content, "report")
            reply.content["report"] = to_array_record({**report, name: report[name].double()})
        return reply

    grid.fate = fate
    federate(grid)
    refused = [[(x["client"], name in x["reason"]) for x in line["refused"]] for line in lines(tmp_path)]
    assert refused == [[(1, True)]] * 2


def test_a_reply_that_raises_while_it_is_read_is_rejected(config: Path, tmp_path: Path) -> None:
    class Wicked(Message):
        """A message whose content cannot be read."""

        def __init__(self, reply: Message) -> None:
            self.__dict__.update(reply.__dict__)

        def has_error(self) -> bool:
            raise ZeroDivisionError("\x1b[31mgotcha")

    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=1")
    grid.fate = lambda node, reply: Wicked(reply) if node == 101 and len(grid.sent) > 3 else reply
    federate(grid)
    note = (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()
    assert note.startswith("reply.unreadable: ")
    assert "ZeroDivisionError" in note
    assert note.strip().isprintable()


def test_a_reply_with_the_id_of_another_request_is_rejected(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=1")

    def fate(node: int, reply: Message) -> Message:
        if node == 101 and len(grid.sent) > 3:
            reply.metadata.__dict__["_reply_to_message_id"] = "of another run"
        return reply

    grid.fate = fate
    federate(grid)
    assert (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text().startswith("reply.foreign_id: ")


def test_what_flower_cannot_read_costs_its_client_only(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=1")
    pull = grid.pull_messages

    def raises(identities: list[str]) -> list[Message]:
        if "message-5" in identities:  # of the first three, which are registrations, no one
            pull(identities)  # Flower has confirmed them
            raise ValueError("an object cannot be inflated")
        return pull(identities)

    grid.pull_messages = raises
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2]
    (note,) = (tmp_path / "run" / "failures").iterdir()
    assert note.read_text().startswith("reply.unreadable: ")


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"up": HUGE_STRIDES}, "reply.invalid_shape"),
        ({"up": to_array_record({"w": torch.zeros(3)})}, "reply.unexpected_tensor"),
        ({"answer": ConfigRecord({"protocol": "\x1b]0;x"})}, "reply.wrong_protocol"),
        ({"answer": ConfigRecord({**VERSION, "declined": "\x1b[2J" * 10**6})}, "reply.task_failed"),
        (
            {
                "answer": ConfigRecord(
                    {**VERSION, "client": 2**62, "n": 5, "own": False, "remembers": False, "description": ""}
                )
            },
            "reply.wrong_client",
        ),
    ],
)
def test_an_invalid_registration_leaves_its_node_out(
    change: dict[str, object], fact: str, config: Path, tmp_path: Path
) -> None:
    grid = federation(tmp_path, config)
    grid.run_config["set"] = "engine.timeout=0.5"

    def fate(node: int, reply: Message) -> Message:
        if node == 101:
            for name, record in change.items():
                reply.content[name] = record
        return reply

    grid.fate = fate
    with pytest.raises(UserError) as error:
        federate(grid)
    assert error.value.code == "flower.too_few_clients"
    assert "missing: 1;" in str(error.value)
    assert fact in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2000


def test_a_malformed_reply_is_rejected_even_if_all_are_needed(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config)
    grid.fate = with_replies_changed({"up": to_array_record({"w": torch.zeros(9), "more": torch.zeros(1)})})
    with pytest.raises(UserError) as error:
        federate(grid)
    assert (error.value.code, error.value.key) == ("reply.unexpected_tensor", "engine.min_replies")
    assert "client 1" in str(error.value)
    assert "more" in str(error.value)


TEXTS = ["", "w", "\x1b[2J", "\u202e", "x" * 100, "a\x00b", "../w", "train", "hello", "1", "nan"]
NUMBERS = [0, -1, 1, 2**31, -(2**63), 2**62, 10**9, 0.5, float("nan"), float("inf"), True, b"\xff"]


def random_array(rng: random.Random) -> Array:
    shape = tuple(rng.choice([0, 1, 2, 3, 2**31 - 2**20, 2**31, 2**62]) for _ in range(rng.randrange(5)))
    kind = rng.choice(["float32", "float64", "bool", "int64", "object", "", "complex64", "bfloat16"])
    return Array(
        kind, shape, rng.choice(["fedrecall.little-endian", "numpy.ndarray", ""]), rng.randbytes(rng.randrange(40))
    )


def random_fields(rng: random.Random) -> ConfigRecord:
    names = ["protocol", "client", "n", "own", "remembers", "description", "declined", "code", "key", "x"]
    honest = {**VERSION, "client": 1, "n": 5, "own": False, "remembers": True, "description": ""}
    changes = {name: rng.choice([*TEXTS, *NUMBERS, [1, 2], ["x"], []]) for name in rng.sample(names, rng.randint(1, 4))}
    return ConfigRecord(honest | changes)


def test_whatever_a_node_sends_is_a_reply_or_an_error_of_one_line(config: Path, tmp_path: Path) -> None:
    """Fields, arrays and records at random: 1000 messages."""
    rng = random.Random(0)
    request = request_message(TaskRequest("train", client=1, run="0" * 32), to_array_record({}), 100, 60)
    request.metadata.__dict__["_message_id"] = "message-1"
    outcomes, texts = set(), []
    for _ in range(1000):
        content = {"answer": random_fields(rng)}
        for name in ("up", "report"):
            content[name] = ArrayRecord({rng.choice(TEXTS): random_array(rng) for _ in range(rng.randrange(3))})
        for name in rng.sample(sorted(content), rng.choice([0, 0, 0, 1])):
            del content[name]
        try:
            reply = parse_reply(Message(content=RecordDict(content), reply_to=request))
            outcomes.add("reply")
            assert reply.n >= 1
            assert all(type(t) is Tensor for t in [*reply.up.values(), *reply.report.values()])
        except (TaskFailed, InvalidMessage) as error:
            outcomes.add(error.code)
            texts.append(str(error))
    assert all(text.isprintable() and len(text) <= 1000 for text in texts)
    assert {"reply", "reply.task_failed", "reply.invalid_shape", "reply.missing_record"} <= outcomes
    assert "reply.unreadable" not in outcomes, "every form has a reason of its own"
