"""Task requests and replies as Flower messages: plain values in a ConfigRecord, tensors in ArrayRecords."""

import re
from typing import Any, NamedTuple, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedrecall.core.failures import format_exception
from fedrecall.core.types import Payload
from fedrecall.errors import printable
from fedrecall.flower.client_state import StateVersion
from fedrecall.flower.codec import EncodedTensor, InvalidMessage, decode, encode

PROTOCOL_VERSION = 2  # version of the messages: server and nodes must have the same

ARRAY_FORMAT = "fedrecall.little-endian"  # serialisation type of the arrays

MESSAGE_TYPE = "train"  # Flower's message type; one handler runs all tasks

REGISTER = "hello"  # the task of registration

TASK_FAILED = "reply.task_failed"  # code of a node's error without a code of its own

CODE = re.compile(r"[a-z]{1,20}\.[a-z_]{1,40}")

T = TypeVar("T")


class TaskRequest(NamedTuple):
    """Request to run a task."""

    task: str
    client: int = -1
    version: StateVersion = StateVersion(0, 0)  # version of the client state that the task writes
    acknowledged: StateVersion | None = None  # version of the client state to start from; None: a new one
    oldest: int = 0  # round of the oldest checkpoint that the server may resume from
    run: str = ""  # key of the run, the same after every restart
    schema: str = ""  # form of the federation's data, for a node with its own; empty until it is fixed
    code: tuple[str, ...] = ()  # own code of the experiment, each "package.module:Class=HASH"

    def __str__(self) -> str:
        return "registration" if self.task == REGISTER else f"round {self.version.t + 1}, task {self.task}"


class TaskReply(NamedTuple):
    """Reply to a request."""

    client: int
    n: int  # examples
    has_own_data: bool  # False: the node uses a part of the configured data set
    saved_state: bool  # the node has stored a new client state
    up: Payload
    report: Payload
    description: str = ""  # form of the node's own data, in the reply to the registration


class TaskFailed(Exception):
    """Error of a client that could not run its task, with the message, code and key of the node's error.

    Message and key are texts of the node: each becomes one printable line. `client` is the number in the node-config
    of the node, or None if it has none.
    """

    def __init__(self, code: str, message: str, key: str | None = None, client: int | None = None) -> None:
        super().__init__(code, message, key, client)
        self.code, self.message, self.key = code, printable(message), printable(key, 200) if key else None
        self.client = client

    def __str__(self) -> str:
        return self.message


def to_array_record(payload: Payload) -> ArrayRecord:
    """Convert a payload to a record, and validate it."""
    parts = encode(payload).items()
    return ArrayRecord({name: Array(part.dtype, part.shape, ARRAY_FORMAT, part.data) for name, part in parts})


def from_array_record(content: RecordDict, name: str) -> Payload:
    """Read and validate the payload in a record of a message."""
    record = content.array_records.get(name)
    if record is None:
        raise InvalidMessage("reply.missing_record", f'the message has no arrays "{name}"')
    parts = {}
    for key, array in record.items():
        if array.stype != ARRAY_FORMAT:
            text = f"{str(key)[:80]} is encoded as {str(array.stype)[:40]!r}, expected {ARRAY_FORMAT!r}"
            raise InvalidMessage("reply.wrong_encoding", text)
        parts[key] = EncodedTensor(array.dtype, tuple(array.shape), array.data)
    return decode(parts)


def request_message(request: TaskRequest, down: ArrayRecord, node: int, timeout: float) -> Message:
    """Build the message of a request to a node. It expires after `timeout` seconds."""
    fields = {
        "protocol": PROTOCOL_VERSION,
        "task": request.task,
        "client": request.client,
        "version": list(request.version),
        "acknowledged": [] if request.acknowledged is None else list(request.acknowledged),
        "oldest": request.oldest,
        "run": request.run,
        "schema": request.schema,
        "code": list(request.code),
    }
    content = RecordDict({"order": ConfigRecord(fields), "down": down})
    return Message(content=content, dst_node_id=node, message_type=MESSAGE_TYPE, ttl=timeout)


def parse_request(message: Message) -> tuple[TaskRequest, Payload]:
    """Read and validate a request; returns it with the broadcast payload."""
    fields = _config(message, "order")
    acknowledged = _int_list(fields, "acknowledged")
    request = TaskRequest(
        task=_field(fields, "task", str),
        client=_field(fields, "client", int),
        version=_version(_int_list(fields, "version")),
        acknowledged=_version(acknowledged) if acknowledged else None,
        oldest=_field(fields, "oldest", int),
        run=_field(fields, "run", str),
        schema=_field(fields, "schema", str),
        code=tuple(map(str, _field(fields, "code", list))),
    )
    return request, from_array_record(message.content, "down")


def reply_message(reply: TaskReply, request: Message) -> Message:
    """Build the message of a reply."""
    fields = {
        "client": reply.client,
        "n": reply.n,
        "own": reply.has_own_data,
        "remembers": reply.saved_state,
        "description": reply.description,
    }
    records = {"up": to_array_record(reply.up), "report": to_array_record(reply.report)}
    content = RecordDict({"answer": ConfigRecord({"protocol": PROTOCOL_VERSION, **fields}), **records})
    return Message(content=content, reply_to=request)


def failure_message(
    reason: str, request: Message, code: str = TASK_FAILED, key: str | None = None, client: int | None = None
) -> Message:
    """Build the reply of a client that could not run its task, with the code and the key of its error."""
    fields = {
        "protocol": PROTOCOL_VERSION,
        "declined": printable(reason),
        "code": code,
        "key": key or "",
        "client": -1 if client is None else client,
    }
    return Message(content=RecordDict({"answer": ConfigRecord(fields)}), reply_to=request)


def parse_reply(message: Message) -> TaskReply:
    """Read and validate a reply. Raises TaskFailed if the node reports an error, InvalidMessage if it is invalid.

    Any other exception is of a reply that no node sends, and becomes InvalidMessage: no reply ends the run.
    """
    try:
        return _parse_reply(message)
    except (TaskFailed, InvalidMessage):
        raise
    except Exception as error:
        raise unreadable(error) from error


def unreadable(error: Exception) -> InvalidMessage:
    """Return the error for a reply whose reading raised an unexpected exception."""
    return InvalidMessage("reply.unreadable", f"the reply cannot be read ({format_exception(error)[0]})")


def _parse_reply(message: Message) -> TaskReply:
    if message.has_error():
        raise TaskFailed("reply.transport_error", f"Flower reports error {message.error.code}: {message.error.reason}")
    fields = _config(message, "answer")
    if "declined" in fields:
        raise _failure(fields)
    n = _field(fields, "n", int)
    if n < 1:
        raise InvalidMessage("reply.invalid_example_count", f"number of examples = {n}: it must be at least 1")
    up, report = (from_array_record(message.content, name) for name in ("up", "report"))
    client, has_own_data = _field(fields, "client", int), _field(fields, "own", bool)
    saved_state, description = _field(fields, "remembers", bool), _field(fields, "description", str)
    return TaskReply(client, n, has_own_data, saved_state, up, report, description)


def _config(message: Message, name: str) -> dict[str, Any]:
    record = message.content.config_records.get(name)
    if record is None:
        raise InvalidMessage("reply.missing_record", f'the message has no record "{name}"')
    fields = dict(record)
    if fields.get("protocol") != PROTOCOL_VERSION:
        raise InvalidMessage(
            "reply.wrong_protocol",
            f"the message has protocol version {str(fields.get('protocol'))[:40]}, expected {PROTOCOL_VERSION}: "
            "install the same fedrecall on all machines",
        )
    return fields


def _failure(fields: dict[str, Any]) -> TaskFailed:
    """Return the error that a node sent. A code that is not a dotted name is ignored."""
    code, key, client = fields.get("code"), fields.get("key"), fields.get("client")
    return TaskFailed(
        code if isinstance(code, str) and CODE.fullmatch(code) else TASK_FAILED,
        _field(fields, "declined", str),
        key if isinstance(key, str) else None,
        client if type(client) is int and client >= 0 else None,
    )


def _field(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if type(value) is not kind:
        raise InvalidMessage("reply.invalid_field", f'the field "{name}" is missing or not of type {kind.__name__}')
    return value


def _int_list(fields: dict[str, Any], name: str) -> list[int]:
    values = _field(fields, name, list)
    if not all(type(value) is int and 0 <= value < 10**9 for value in values):
        raise InvalidMessage("reply.invalid_field", f'the field "{name}" must be whole numbers from 0 to 999999999')
    return values


def _version(pair: list[int]) -> StateVersion:
    if len(pair) != 2:
        raise InvalidMessage("reply.invalid_field", f"a version must be two numbers, not {len(pair)}")
    return StateVersion(*pair)
