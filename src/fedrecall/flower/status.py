"""State of a federation: the coordinator writes it to the run directory, `fedrecall flower status` reads it."""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from fedrecall.core.failures import ClientFailure
from fedrecall.errors import UserError, printable
from fedrecall.files import parse_json, write_atomic
from fedrecall.flower.nodes import NodeRegistry
from fedrecall.runs.directory import STATUS_FILE, RunDirectory
from fedrecall.runs.records import RoundRecord

WRITE_INTERVAL = 1.0  # seconds between two writes while replies arrive

STALE = 60.0  # seconds without a write after which a running coordinator is reported as silent

log = logging.getLogger("flwr.fedrecall")


@dataclass
class StatusFile:
    """The coordinator's status.json. A status that cannot be written does not stop the run."""

    directory: Path
    rounds: int
    show_sizes: bool = True  # False with server.privacy: nothing about single clients is shown
    state: str = "waiting for clients"
    _clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    _error: dict[str, Any] | None = None
    _waiting_for: list[int] = field(default_factory=list)
    _written: float = 0.0

    def registry_changed(self, nodes: NodeRegistry) -> None:
        """Record which clients are connected, and why the others are not."""
        for client in range(nodes.population):
            member, problem = nodes.members.get(client), nodes.problem(client)
            connected = member is not None and member.node in nodes.online
            entry: dict[str, Any] = {"connected": connected}
            if member is not None:
                entry["node"] = str(member.node)
                if self.show_sizes:
                    entry["examples"] = member.n
            if not connected:
                entry |= {"code": problem.code, "reason": str(problem)}
                if problem.code != "reply.not_connected":
                    self._error = {"client": client, "code": problem.code, "reason": str(problem), "time": _now()}
            self._clients[str(client)] = entry
        self._write()

    def exchange(self, t: int, task: str, waiting_for: Sequence[int]) -> None:
        """Record the clients whose replies to a task of round t have not arrived."""
        self.state, self._waiting_for = f"round {t + 1}, task {task}", sorted(waiting_for)
        if not waiting_for or time.monotonic() - self._written >= WRITE_INTERVAL:
            self._write()

    def failed(self, failure: ClientFailure) -> None:
        """Record a lost reply."""
        reason = printable(failure.error)
        self._error = {"round": failure.t + 1, "client": failure.client, "code": failure.code, "reason": reason}
        self._error["time"] = _now()
        self._write()

    def end(self, error: UserError | None = None) -> None:
        """Record the end of the run."""
        self.state, self._waiting_for = "finished" if error is None else "failed", []
        if error is not None:
            self._error = {"code": error.code, "reason": printable(error), "time": _now()}
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        content = {
            "state": self.state,
            "rounds": self.rounds,
            "updated": _now(),
            "waiting_for": self._waiting_for,
            "clients": self._clients,
            "error": self._error,
        }
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(self.directory / STATUS_FILE, (json.dumps(content, indent=2) + "\n").encode())
        except OSError as error:
            log.warning("%s: cannot be written: %s", self.directory / STATUS_FILE, error.strerror)


class FederationStatus(NamedTuple):
    """Status of a federation, with the records of its rounds."""

    name: str
    content: dict[str, Any]  # of status.json
    records: list[RoundRecord]

    @property
    def age(self) -> float:
        """Seconds since the coordinator wrote the status."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.content["updated"])).total_seconds()

    @property
    def missing(self) -> dict[int, str]:
        """The clients that are not connected, or whose reply is awaited, and why."""
        out = {int(c): e["reason"] for c, e in self.content["clients"].items() if not e["connected"]}
        return dict.fromkeys(self.content["waiting_for"], "its reply has not arrived") | out

    def counts(self) -> tuple[Counter[int], Counter[int]]:
        """Return the number of accepted and of lost or rejected replies by client."""
        sampled: Counter[int] = Counter(client for record in self.records for client in record["clients"])
        lost: Counter[int] = Counter()
        for record in self.records:
            lost.update({x["client"] for key in ("lost", "refused") for x in record.get(key, ())})
        return sampled - lost, lost

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        content, (replies, lost) = self.content, self.counts()
        age = "" if content["state"] in ("finished", "failed") else f", written {self.age:.0f} s ago"
        silent = " (no update for more than a minute: is the coordinator running?)" if age and self.age > STALE else ""
        yield f"{self.name}: {len(self.records)} of {content['rounds']} rounds done, {content['state']}{age}{silent}"
        accuracies = [record["accuracy"] for record in self.records if record["accuracy"] is not None]
        if accuracies:
            yield f"accuracy {100 * accuracies[-1]:.2f} %"
        for client, entry in content["clients"].items():
            examples = f", {entry['examples']} examples" if "examples" in entry else ""
            node = f"node {entry['node']}" if "node" in entry else "no node yet"
            state = "connected" if entry["connected"] else "missing"
            number = int(client)
            yield f"client {client}: {state}, {node}{examples}, {replies[number]} replies, {lost[number]} lost"
        for client, reason in self.missing.items():
            yield f"missing: client {client}: {reason}"
        if error := content["error"]:
            where = "".join(f"{key} {error[key]}, " for key in ("round", "client") if key in error)
            yield f"last error: {where}{error['time']}: {error['reason']} [{error['code']}]"

    def prometheus(self) -> str:
        """Return metrics in Prometheus' text format."""
        content, clients, (replies, lost) = self.content, self.content["clients"], self.counts()
        last = self.records[-1] if self.records else {}
        one: dict[str, tuple[str, float | None]] = {
            "rounds_done": ("Rounds that are complete.", len(self.records)),
            "rounds": ("Rounds of the run.", content["rounds"]),
            "finished": ("1 if the run is finished.", content["state"] == "finished"),
            "failed": ("1 if the run has failed.", content["state"] == "failed"),
            "clients": ("Clients of the federation.", len(clients)),
            "clients_connected": ("Clients that are connected.", sum(e["connected"] for e in clients.values())),
            "replies_awaited": ("Replies of the current task that have not arrived.", len(content["waiting_for"])),
            "accuracy": ("Accuracy after the last evaluated round.", last.get("accuracy")),
            "round_seconds": ("Duration of the last round.", last.get("seconds")),
            "bytes_received": ("Bytes of all replies.", sum(r["bytes_up"] * r["replies"] for r in self.records)),
            "bytes_sent": ("Bytes sent.", sum(r["bytes_down"] * len(r["clients"]) for r in self.records)),
            "updated_timestamp_seconds": ("Time of the coordinator's last message.", time.time() - self.age),
        }
        by_client: dict[str, tuple[str, dict[str, float]]] = {
            "client_connected": ("1 if the client is connected.", {c: e["connected"] for c, e in clients.items()}),
            "client_replies": ("Accepted replies.", {c: replies[int(c)] for c in clients}),
            "client_lost_replies": ("Lost or rejected replies.", {c: lost[int(c)] for c in clients}),
        }
        run = self.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        lines = []
        for name, (text, value) in one.items():
            if value is not None:
                lines += [*_described(name, text), f'fedrecall_{name}{{run="{run}"}} {float(value):.17g}']
        for name, (text, values) in by_client.items():
            lines += _described(name, text)
            lines += [f'fedrecall_{name}{{run="{run}",client="{c}"}} {float(v):.17g}' for c, v in values.items()]
        return "\n".join(lines) + "\n"


def _described(name: str, text: str) -> list[str]:
    return [f"# HELP fedrecall_{name} {text}", f"# TYPE fedrecall_{name} gauge"]


def read_status(directory: Path) -> FederationStatus:
    """Read the status of the federation in a run directory."""
    path = directory / STATUS_FILE
    try:
        content = parse_json(path.read_text())
        if not isinstance(content, dict) or not isinstance(content.get("clients"), dict):
            raise ValueError("it has no clients")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            "flower.no_status",
            f"{path}: no status of a federation ({reason})",
            str(directory),
            "name the run directory of a run on Flower, which is on the machine of the SuperLink",
        ) from None
    return FederationStatus(directory.resolve().name, content, RunDirectory(directory).records())


def metrics_server(directory: Path, host: str, port: int) -> ThreadingHTTPServer:
    """Return an HTTP server that answers GET /metrics with the metrics of the federation in a run directory."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                code, text = (200, read_status(directory).prometheus()) if self.path == "/metrics" else (404, "")
            except UserError as error:
                code, text = 503, f"{error}\n"
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no line per request."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UserError(
            "flower.port_in_use",
            f"--serve = {host}:{port}: cannot listen: {error.strerror}",
            "--serve",
            "choose another port",
        ) from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
