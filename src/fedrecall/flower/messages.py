"""Orders and answers, as Flower messages: numbers and words in a ConfigRecord, tensors in ArrayRecords."""

import re
from typing import Any, NamedTuple, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedrecall.core.types import Payload
from fedrecall.flower.client_state import StateVersion
from fedrecall.flower.codec import EncodedTensor, InvalidMessage, decode, encode

PROTOCOL_VERSION = 1  # of these messages: both sides must speak the same

ARRAY_FORMAT = "fedrecall.little-endian"  # how an array's bytes are to be read

MESSAGE_TYPE = "train"  # Flower's kind of message; there is one handler, which looks at the task

REGISTER = "hello"  # the task of saying who one is

TASK_FAILED = "reply.task_failed"  # code of a node's error that has none

CODE = re.compile(r"[a-z]{1,20}\.[a-z_]{1,40}")

T = TypeVar("T")


class TaskRequest(NamedTuple):
    """What a client is to do."""

    task: str
    client: int = -1
    version: StateVersion = StateVersion(0, 0)  # of the memory that it writes
    acknowledged: StateVersion | None = None  # the memory that it is to begin with
    oldest: int = 0  # the round of the oldest checkpoint that the server may go back to
    run: str = ""  # the key of the run, over all restarts
    classes: tuple[str, ...] = ()  # names of the labels, for a node with data of its own


class TaskReply(NamedTuple):
    """What a client did."""

    client: int
    n: int  # examples
    has_own_data: bool  # its data are its own, not a part of the configured data set
    saved_state: bool  # it has written a memory
    up: Payload
    report: Payload


class TaskFailed(Exception):
    """A client that could not perform its task: the text of its error, with the error's code and key."""

    def __init__(self, code: str, message: str, key: str | None = None) -> None:
        super().__init__(code, message, key)
        self.code, self.message, self.key = code, message, key

    def __str__(self) -> str:
        return self.message


def to_array_record(payload: Payload) -> ArrayRecord:
    """A payload as a record; it is checked on the way."""
    parts = encode(payload).items()
    return ArrayRecord({name: Array(part.dtype, part.shape, ARRAY_FORMAT, part.data) for name, part in parts})


def from_array_record(content: RecordDict, name: str) -> Payload:
    """The payload in a message's record."""
    record = content.array_records.get(name)
    if record is None:
        raise InvalidMessage("reply.missing_record", f'the message has no arrays "{name}"')
    parts = {}
    for key, array in record.items():
        if array.stype != ARRAY_FORMAT:
            what = f"{str(key)[:80]} is encoded as {str(array.stype)[:40]!r}, expected {ARRAY_FORMAT!r}"
            raise InvalidMessage("reply.wrong_encoding", what)
        parts[key] = EncodedTensor(array.dtype, tuple(array.shape), array.data)
    return decode(parts)


def request_message(order: TaskRequest, down: ArrayRecord, node: int, seconds: float) -> Message:
    """An order to a node. It is void after so many seconds."""
    said = {
        "protocol": PROTOCOL_VERSION,
        "task": order.task,
        "client": order.client,
        "version": list(order.version),
        "acknowledged": [] if order.acknowledged is None else list(order.acknowledged),
        "oldest": order.oldest,
        "run": order.run,
        "classes": list(order.classes),
    }
    content = RecordDict({"order": ConfigRecord(said), "down": down})
    return Message(content=content, dst_node_id=node, message_type=MESSAGE_TYPE, ttl=seconds)


def parse_request(message: Message) -> tuple[TaskRequest, Payload]:
    """What a node is asked to do."""
    said = _config(message, "order")
    kept = _int_list(said, "acknowledged")
    order = TaskRequest(
        task=_field(said, "task", str),
        client=_field(said, "client", int),
        version=_version(_int_list(said, "version")),
        acknowledged=_version(kept) if kept else None,
        oldest=_field(said, "oldest", int),
        run=_field(said, "run", str),
        classes=tuple(map(str, _field(said, "classes", list))),
    )
    return order, from_array_record(message.content, "down")


def reply_message(answer: TaskReply, order: Message) -> Message:
    """A client's answer."""
    said = {"client": answer.client, "n": answer.n, "own": answer.has_own_data, "remembers": answer.saved_state}
    records = {"up": to_array_record(answer.up), "report": to_array_record(answer.report)}
    content = RecordDict({"answer": ConfigRecord({"protocol": PROTOCOL_VERSION, **said}), **records})
    return Message(content=content, reply_to=order)


def failure_message(reason: str, order: Message, code: str = TASK_FAILED, key: str | None = None) -> Message:
    """Return the reply of a client that could not perform its task, with the code and the key of its error."""
    said = {"protocol": PROTOCOL_VERSION, "declined": reason, "code": code, "key": key or ""}
    return Message(content=RecordDict({"answer": ConfigRecord(said)}), reply_to=order)


def parse_reply(message: Message) -> TaskReply:
    """What a node answered; Declined if it could not do it, Malformed if it makes no sense."""
    if message.has_error():
        reason = " ".join(str(message.error.reason).split())
        raise TaskFailed("reply.transport_error", f"Flower reports error {message.error.code}: {reason}")
    said = _config(message, "answer")
    if "declined" in said:
        raise _declined(said)
    n = _field(said, "n", int)
    if n < 1:
        raise InvalidMessage("reply.invalid_example_count", f"number of examples = {n}: it must be at least 1")
    up, report = (from_array_record(message.content, name) for name in ("up", "report"))
    client, own, remembers = _field(said, "client", int), _field(said, "own", bool), _field(said, "remembers", bool)
    return TaskReply(client, n, own, remembers, up, report)


def _config(message: Message, name: str) -> dict[str, Any]:
    record = message.content.config_records.get(name)
    if record is None:
        raise InvalidMessage("reply.missing_record", f'the message has no record "{name}"')
    said = dict(record)
    if said.get("protocol") != PROTOCOL_VERSION:
        raise InvalidMessage(
            "reply.wrong_protocol",
            f"the message has protocol version {str(said.get('protocol'))[:40]}, expected {PROTOCOL_VERSION}: "
            "install the same fedrecall on all machines",
        )
    return said


def _declined(said: dict[str, Any]) -> TaskFailed:
    """Return the error that a node sent; a code or key from another machine that is not a plain name is ignored."""
    code, key = said.get("code"), said.get("key")
    return TaskFailed(
        code if isinstance(code, str) and CODE.fullmatch(code) else TASK_FAILED,
        " ".join(_field(said, "declined", str).split())[:1000],
        " ".join(key.split())[:200] if isinstance(key, str) and key else None,
    )


def _field(said: dict[str, Any], name: str, kind: type[T]) -> T:
    value = said.get(name)
    if type(value) is not kind:
        raise InvalidMessage("reply.invalid_field", f'the field "{name}" is missing or not of type {kind.__name__}')
    return value


def _int_list(said: dict[str, Any], name: str) -> list[int]:
    values = _field(said, name, list)
    if not all(type(value) is int and 0 <= value < 10**9 for value in values):
        raise InvalidMessage("reply.invalid_field", f'the field "{name}" must be whole numbers from 0 to 999999999')
    return values


def _version(pair: list[int]) -> StateVersion:
    if len(pair) != 2:
        raise InvalidMessage("reply.invalid_field", f"a version must be two numbers, not {len(pair)}")
    return StateVersion(*pair)
