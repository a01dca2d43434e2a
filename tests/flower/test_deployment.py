"""Flower's processes on loopback: the bits of `serial`, authentication, and recovery from failures."""

import csv
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

import fedrecall as fr
from fedrecall import METHODS
from fedrecall.flower.certificates import make_certificates
from fedrecall.flower.processes import CONNECTION_NAME, LocalDeployment, free_port
from support.federation import FAILED, LONG, Federation, at_work, command_line, is_running, processes
from support.lossy_engine import serial_without
from support.processes import until
from support.tiny_transformer import make_texts, save_transformer

pytestmark = pytest.mark.flower
# Methods that need auxiliary data, and some with client states. test_own_data_deployment.py has all others.
NEEDS_AUXILIARY = [name for name, method in METHODS.items() if method().traits.needs_auxiliary_data]
ON_COMMON_DATA = ["fedavg", "scaffold", "fedcsd", "ditto", *NEEDS_AUXILIARY]
UNKNOWN = r"code: 2004\] Failed to activate SuperNode"
UNTRUSTED = r"(?i)certificate verify failed|self.signed certificate|CERTIFICATE_VERIFY_FAILED"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Iterator[Federation]:
    with LocalDeployment(tmp_path_factory.mktemp("federation"), 3) as daemons:
        for client in range(3):
            daemons.start_supernode(client)
        yield Federation(daemons, config)


@pytest.mark.parametrize("method", ON_COMMON_DATA)
def test_methods_end_with_the_weights_of_serial(method: str, trial: Federation) -> None:
    changes = f"method.name={method} run.rounds=2"
    run = trial.start(method, changes)
    assert trial.rounds(run, method) == 2, "".join(run.heard[-40:])
    assert not run.missing
    assert trial.same(method, serial_without(trial.config, changes, ()))


def test_the_commands_of_the_report_repeat_the_run(trial: Federation, tmp_path: Path) -> None:
    daemons = trial.daemons
    assert trial.rounds(trial.start("first", "run.rounds=1"), "first") == 1
    page, *_ = fr.report(daemons.folder / "first", tmp_path / "report.html")
    (commands,) = re.findall(r">(fedrecall flower new.*?)</code>", page.read_text(), re.S)
    script = html.unescape(commands).replace("CONNECTION", CONNECTION_NAME, 1)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=daemons.environment("run"), timeout=LONG, check=True)
    first, again = (load_file(daemons.folder / out / "model.safetensors") for out in ("first", "runs/first-again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_adapters_of_a_transformer_end_with_the_weights_of_serial(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra text")
    base, file = save_transformer(tmp_path / "base"), tmp_path / "notes.csv"
    with file.open("w", newline="") as f:
        csv.writer(f).writerows([("note", "topic", "site"), *zip(*make_texts(), strict=True)])
    config = tmp_path / "adapters.toml"
    config.write_text(
        f'''
        data = {{ name = "table", path = "{file}", label = "topic", client = "site", text = "note" }}
        model = {{ name = "huggingface", path = "{base}", lora = {{ targets = ["query"] }} }}
        local = {{ epochs = 1, batch = 8 }}
        method = {{ name = "fedlmd" }}
        '''
    )
    with LocalDeployment(tmp_path, 3) as daemons:
        for client in range(3):
            daemons.start_supernode(client)
        federation = Federation(daemons, config)
        run = federation.start("adapters", "run.rounds=2")
        assert federation.rounds(run, "adapters") == 2, "".join(run.heard[-40:])
        expected = serial_without(config, "run.rounds=2", ())
        got = load_file(tmp_path / "adapters" / "model.safetensors")
        meant = expected.model().state_dict()
        assert sum(t.numel() for t in got.values()) == len(expected.server.w)  # only what is trained
        assert all(torch.equal(got[name], meant[name]) for name in got)


def online(daemons: LocalDeployment) -> int:
    """Return the number of nodes that the SuperLink has accepted."""
    listed = json.loads(daemons.run_flwr("supernode", "list", CONNECTION_NAME, "--format", "json"))
    return sum(node["status"] == "online" for node in listed["nodes"])


def is_rejected(daemons: LocalDeployment, reason: str | None, **changes: Path) -> bool:
    """True if a node with these settings exits for this reason; without a reason, if it stays unregistered."""
    before = daemons.log("supernode-0").stat().st_size if daemons.log("supernode-0").exists() else 0
    name, output, end = daemons.start_supernode(0, **changes), "", time.monotonic() + (60 if reason else 20)
    while not (reason and re.search(reason, output)) and time.monotonic() < end:
        output = daemons.log(name).read_text(errors="replace")[before:]
        time.sleep(0.5)
    nodes = online(daemons)
    daemons.stop(name)
    return nodes == 0 and "SuperNode ID" not in output and (reason is None or re.search(reason, output) is not None)


def test_unauthenticated_nodes_are_rejected(tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_certificates(other, ["127.0.0.1"], 1)
    with LocalDeployment(tmp_path / "federation", 1) as daemons:
        assert is_rejected(daemons, UNKNOWN, key=other / "node-0"), "a key that nobody registered"
        assert is_rejected(daemons, UNTRUSTED, authority=other / "ca.crt"), (
            "a server with another authority's certificate"
        )
        daemons.secure = False
        assert is_rejected(daemons, None), "a node without encryption"
        daemons.secure = True
        with pytest.raises((HTTPException, OSError)):  # noqa: PT012 (a connection, then a question)
            plain = HTTPConnection("127.0.0.1", daemons.port, timeout=10)
            plain.request("GET", "/")
            plain.getresponse()
        daemons.start_supernode(0)
        until(lambda: online(daemons) == 1, 120)


@pytest.mark.parametrize("method", ["scaffold", "fedcsd"])
def test_a_killed_node_returns_with_its_state(method: str, tmp_path: Path, config: Path) -> None:
    changes = f"method.name={method} run.rounds=7 engine.min_replies=2 engine.timeout=240 local.epochs=500"
    with LocalDeployment(tmp_path, 3) as daemons:
        trial = Federation(daemons, config)
        names = [daemons.start_supernode(client) for client in range(3)]
        run = trial.start("run", changes)
        assert run.until(r"round 1/7\b"), "".join(run.heard[-40:])
        until(lambda: at_work(daemons, names[1]), 120)
        daemons.stop(names[1], signal.SIGKILL)
        assert run.until(FAILED.pattern.replace(r"client (\d+)", "client 1")), "".join(run.heard[-40:])
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:  # refused, and ended, until Flower has noticed that the old one is gone
            daemons.start_supernode(1)
            time.sleep(15)
            if is_running(daemons, names[1]):
                break
            daemons.stop(names[1])
        assert trial.rounds(run, "run") == 7, "".join(run.heard[-40:])
        missing = run.missing
        assert missing
        assert {client for _, client, _ in missing} == {1}
        assert max(number for number, *_ in missing) < 7, "it is back"
        assert trial.same("run", serial_without(config, changes.replace("engine.timeout=240", ""), missing))


def test_the_run_resumes_after_a_superlink_is_killed_and_restarted(tmp_path: Path, config: Path) -> None:
    changes = "method.name=scaffold run.rounds=4 local.epochs=300"
    with LocalDeployment(tmp_path, 3, database=True) as daemons:
        trial = Federation(daemons, config)
        for client in range(3):
            daemons.start_supernode(client)
        run = trial.start("run", changes)
        assert run.until(r"round 2/4\b"), "".join(run.heard[-40:])
        daemons.stop("superlink", signal.SIGKILL)
        daemons.stop("run")
        daemons.start_superlink()
        run = trial.start("run", changes)
        assert trial.rounds(run, "run") == 4, "".join(run.heard[-40:])
        assert not any(re.search(r"round 1/4\b", line) for line in run.heard), "it resumed"
        assert trial.same("run", serial_without(config, changes, ()))


def test_the_demo_leaves_no_process_behind(tmp_path: Path, config: Path) -> None:
    command = [sys.executable, "-m", "fedrecall", "flower", "demo", config, "--set", "run.rounds=2", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^round (\d)/2\b", done.stdout, re.M) == ["1", "2"]
    assert (tmp_path / "run" / "model.safetensors").exists()
    port = re.search(r"port (\d+)", done.stdout)
    assert port is not None
    assert not [pid for pid in processes() if f":{port[1]}" in command_line(pid)]


def test_the_documented_sequence(tmp_path: Path) -> None:
    """Run FedCSD and SCAFFOLD on three authenticated nodes over TLS, as in docs/deployment.md."""
    text = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    script = re.findall(r"```sh\n(.*?)```", text.partition("## The same by hand")[2], re.S)[0]
    script = script.replace("8000", str(free_port())).replace("9094 + i", f"{free_port()} + i")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, start_new_session=True
    )
    try:
        shell.wait(LONG)
        for method, out in (("fedcsd", "runs/trial"), ("scaffold", "runs/scaffold")):
            changes = f"method.name={method} federation.clients=3 engine.min_replies=2 run.rounds=2"
            expected = serial_without(None, changes, ()).model().state_dict()
            got = load_file(tmp_path / out / "model.safetensors")
            assert all(torch.equal(got[name], expected[name]) for name in expected)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


LIES = '''
from functools import partial
from flwr.app import Array, ArrayRecord, ConfigRecord
from fedrecall.flower import messages

honest = messages.reply_message

def lie(reply, request):
    """Send another malformed reply in every round."""
    message, t = honest(reply, request), request.content.config_records["order"]["version"][0]
    if not reply.report:
        return message
    if t == 0:
        report = {**reply.report, "loss": reply.report["loss"].double()}
        message.content["report"] = messages.to_array_record(report)
    elif t == 1:
        huge = Array("float32", (0, *[2**31 - 2**20] * 3), messages.ARRAY_FORMAT, b"")
        message.content["up"] = ArrayRecord({"w": huge})
    elif t == 2:
        text = "\\x1b[2J" * 10**6
        message.content["answer"] = ConfigRecord({"protocol": messages.PROTOCOL_VERSION, "declined": text})
    elif t == 3:
        fields = message.content.config_records["answer"]
        message.content["answer"] = ConfigRecord({**fields, "n": 10**9})
    else:
        message.deflate = partial(with_foreign_id, message)
    return message

def with_foreign_id(message):
    """Return the bytes of a reply to another request; the SuperLink reads the id outside of them, which is right."""
    fields, name = message.metadata.__dict__, "_reply_to_message_id"
    own, fields[name] = fields[name], "0" * 64
    content = type(message).deflate(message)
    fields[name] = own
    return content

messages.reply_message = lie
'''

# Only once the module is there: a process that imports torch before it starts loses its task on a busy machine.
AFTER_MESSAGES = '''
import importlib.util
import sys

class Finder:
    """Finder of one module, after whose import the lies are imported."""

    def find_spec(self, name, path, target=None):
        if name != "fedrecall.flower.messages":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), __import__("lies"))
        return spec

sys.meta_path.insert(0, Finder())
'''


class WithHostileNode(LocalDeployment):
    """Deployment whose node of client 1 runs other code than the others."""

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment, in which the hostile node imports `LIES`."""
        found = super().environment(name)
        if name != "supernode-1":
            return found
        folder = self.folder / "lies"
        folder.mkdir(exist_ok=True)
        (folder / "lies.py").write_text(LIES)
        (folder / "sitecustomize.py").write_text(AFTER_MESSAGES)
        return {**found, "PYTHONPATH": os.pathsep.join([str(folder), found.get("PYTHONPATH", "")])}


def test_no_reply_of_a_hostile_node_ends_the_run(tmp_path: Path, config: Path) -> None:
    """TLS and keys: the node is registered, and sends another malformed reply in each of five rounds."""
    with WithHostileNode(tmp_path / "federation", 3) as daemons:
        for client in range(3):
            daemons.start_supernode(client)
        federation = Federation(daemons, config)
        run = federation.start("run", "engine.min_replies=2 run.rounds=5")
        assert federation.rounds(run, "run") == 5, "".join(run.heard[-40:])
        records = federation.records("run")
    assert [record["replies"] for record in records] == [2] * 5
    assert [(x["client"], "float64" in x["reason"]) for x in records[0]["refused"]] == [(1, True)]
    assert {(t, 1, "train") for t in (2, 3, 4, 5)} <= run.missing
    codes = ["reply.invalid_shape", "reply.task_failed", "reply.invalid_example_count", "reply.foreign_id"]
    assert [[(x["client"], x["code"]) for x in record["lost"]] for record in records[1:]] == [[(1, c)] for c in codes]
    assert max(map(len, run.heard)) < 2000
