"""Complete runs on Ray: every method, every wrapper of an engine, a lost node, Ctrl-C, kill -9."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedrecall as fr
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Local, Payload
from fedrecall.simulation import ENGINES, SerialEngine
from fedrecall.simulation.ray import RayEngine
from fedrecall.simulation.ray.session import AUTH_TOKEN, ENV_DEFAULTS, open_session
from fedrecall.testing.federation import SKEWED_LABELS, model, run_federation, simulated_clients
from support.interrupted_run import difference, outcome, tables
from support.processes import children, has_exited, start, until
from support.tiny_federation import accepted
from support.tiny_transformer import make_texts, save_transformer

pytestmark = pytest.mark.ray

ALL_CLIENTS = range(len(SKEWED_LABELS))


@pytest.fixture(scope="module")
def local() -> Iterator[None]:
    """Start one Ray for several runs."""
    session = open_session(None, 2)
    yield
    session.close()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("method", fr.METHODS)
def test_every_method_has_the_weights_of_serial(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "ray", partial(RayEngine, workers=1))
    built = fr.METHODS[method]()
    (*_, expected), _ = run_federation(built, batch_norm=True)
    (*_, got), _ = run_federation(built, batch_norm=True, engine="ray")
    assert torch.equal(got.server.state, expected.server.state)
    losses = [None if result.score is None else result.score.loss for result in (got, expected)]
    assert losses[0] == losses[1]
    assert (losses[0] is None) == (method == "fedrep"), "only FedRep has no global model"


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_of_a_transformer_have_the_weights_of_serial(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra text")
    base = save_transformer(tmp_path / "base")
    texts, labels, sites = make_texts()
    data = fr.from_text(texts, labels, clients=sites, tokenizer=base)
    model = {"name": "huggingface", "path": str(base), "lora": {"targets": ["query"]}, "dtype": dtype}
    config = {"model": model, "method": {"name": "fedlmd"}, "local": {"epochs": 1, "batch": 8}}
    serial, ray = (
        fr.run(config | {"engine": engine}, data=data, rounds=2, progress=False)
        for engine in ({"name": "serial"}, {"name": "ray", "workers": 2})
    )
    assert torch.equal(ray.server.w, serial.server.w)


@pytest.mark.usefixtures("local")
def test_interrupted_and_resumed_with_availability_attacks_and_privacy(tmp_path: Path) -> None:
    sections = {
        "federation": {
            "clients": 8,
            "sample": 4,
            "dropout": 0.2,
            "straggler": {"over": 1},
            "attack": {"name": "sign-flip", "share": 0.2},
        },
        "server": {"robust": {"name": "median"}},
        "run": {"rounds": 4, "probes": ["local", "confusion", "own_data", "shift"]},
    }

    def config_for(engine: str) -> dict[str, Any]:
        return tables("scaffold", engine, **sections) | {"engine": {"name": engine, "min_replies": 1}}

    expected = fr.run(config_for("serial"), out=tmp_path / "expected")

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(config_for("ray"), out=tmp_path / "a", watch=stop)
    resumed = fr.run(config_for("ray"), out=tmp_path / "a", resume=True)
    assert difference(tmp_path / "a", outcome(tmp_path / "expected")) == ""
    assert resumed.probes == expected.probes


def cluster_of(cores: list[int]) -> Any:
    """Start nodes with these numbers of cores, each with its raylet and object store, on this machine."""
    from ray.cluster_utils import Cluster

    watchful = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_timeout_ms": 1000}
    head = {"num_cpus": cores[0], "include_dashboard": False, "_system_config": watchful}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for number in cores[1:]:
        cluster.add_node(num_cpus=number)
    cluster.wait_for_nodes()
    return cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start three nodes of one core each."""
    for name, value in (ENV_DEFAULTS | {"RAY_AUTH_TOKEN": AUTH_TOKEN}).items():
        monkeypatch.setenv(name, value)
    import ray

    with suppress(Exception):
        ray.shutdown()
    cluster = cluster_of([1, 1, 1])
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def waiting(folder: Path, node: str) -> fr.Method:
    """Return a method whose first client on a node never ends, once."""

    @dataclass(frozen=True)
    class Waits(fr.Method):
        folder: str
        node: str

        @property
        def traits(self) -> Traits:
            return Traits(extra_tasks=("node_id",))

        def node_id(self, r: Local) -> Payload:
            import time

            import ray

            time.sleep(0.1)  # there is something left to do for an actor that comes late
            return {"here": torch.tensor(ray.get_runtime_context().get_node_id() == self.node)}

        def memory(self, w: Tensor) -> Payload:
            return {"last": torch.zeros_like(w)}

        def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
            import time

            token = Path(self.folder) / "token"
            if "ray" in sys.modules and token.exists():
                import ray

                if ray.is_initialized() and ray.get_runtime_context().get_node_id() == self.node:
                    token.unlink()
                    time.sleep(600)
            return {"w": w + r.memory["last"]}, {"last": w}

    return Waits(str(folder), node)


def trained(engine: RayEngine | SerialEngine) -> list[Tensor]:
    sent = {"w": model().w}
    return [r.up["w"] for t in range(3) for r in accepted(engine.cohort(t, ALL_CLIENTS), "train", sent)]


def test_a_node_lost_in_a_round(cluster: Any, tmp_path: Path) -> None:
    *_, lost_node = cluster.list_all_nodes()
    assert lost_node is not cluster.head_node
    method, token = waiting(tmp_path, lost_node.node_id), tmp_path / "token"
    expected = trained(SerialEngine(simulated_clients(method), model()))
    with RayEngine(simulated_clients(method), model(), address=cluster.address) as engine:
        assert engine.workers.size == 3

        def placed() -> bool:
            replies = list(
                engine.cohort(0, ALL_CLIENTS).run("node_id", {"w": model().w})
            )  # all, or actors would be ended
            return any(r.up["here"] for r in replies)

        until(placed, seconds=60)
        token.touch()

        def lose() -> None:
            until(lambda: not token.exists(), seconds=60)
            cluster.remove_node(lost_node, allow_graceful=False)

        thread = threading.Thread(target=lose)
        thread.start()
        got = trained(engine)
        thread.join()
        assert not token.exists(), "its actor had a client"
        assert engine.workers.size == 2
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        assert engine.workers.size == 3, "who joins is used"
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_the_command_line_on_a_cluster_leaves_it_as_it_was(cluster: Any, tmp_path: Path) -> None:
    import ray

    settings = ["run.rounds=2", "local.epochs=1"]
    fr.run(fr.Experiment.load(None, [*settings, "engine.name=serial"]), out=tmp_path / "expected")
    settings += ["engine.name=ray", f"ray.address={cluster.address}"]
    sets = [text for setting in settings for text in ("--set", setting)]
    process = start("-m", "fedrecall", "run", *sets, "--out", "a", cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert "2/2" in out
    assert "ray" not in out, "nothing of Ray's own chatter"
    assert difference(tmp_path / "a", outcome(tmp_path / "expected")) == ""
    ray.init(address=cluster.address, log_to_driver=False)
    until(lambda: ray.available_resources().get("CPU") == 3)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int], Path]]:
    """Start a run of the command line with its own Ray and wait for its first round."""
    settings = ["run.rounds=100000", "local.epochs=20", "engine.name=ray", "engine.workers=2"]
    sets = [text for setting in settings for text in ("--set", setting)]
    process = start("-m", "fedrecall", "run", *sets, "--out", "a", cwd=tmp_path)
    rounds = tmp_path / "a" / "rounds.jsonl"
    until(lambda: rounds.exists() and rounds.read_text().count("\n") >= 1, seconds=120)
    family = [pid for child in children(process.pid) for pid in (child, *children(child))]
    assert len(family) > 2
    yield process, family, rounds
    if process.poll() is None:
        process.kill()
        process.communicate()


def test_ctrl_c_ends_everything(running: tuple[subprocess.Popen[str], list[int], Path]) -> None:
    process, family, rounds = running
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert all(has_exited(pid) for pid in family)
    assert rounds.read_text().endswith("}\n")


def test_nothing_outlives_a_run_that_is_killed(running: tuple[subprocess.Popen[str], list[int], Path]) -> None:
    process, family, _ = running
    folders = {
        folder
        for pid in family
        for folder in re.findall(r"/tmp/fedrecall-ray-\w+", Path(f"/proc/{pid}/cmdline").read_text())
    }
    assert len(folders) == 1
    process.kill()
    process.communicate(timeout=30)
    until(lambda: all(has_exited(pid) for pid in family), seconds=120)  # Ray's agents wait a minute for their master
    assert not any(Path(folder).exists() for folder in folders)


def test_ray_of_a_run_listens_on_loopback_only(running: tuple[subprocess.Popen[str], list[int], Path]) -> None:
    _, family, _ = running
    sockets = {
        str(link.readlink()) for pid in family for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()
    }
    listening = {
        line.split()[1].partition(":")[0]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in sockets
    }
    # 127.0.0.1 in the byte order of the kernel, as IPv4 and as an IPv4 address in IPv6
    assert listening <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert listening


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto", "nonsense"])
def test_no_cluster_is_one_line_and_exit_code_2(address: str, tmp_path: Path) -> None:
    sets = ["--set", "engine.name=ray", "--set", f"ray.address={address}"]
    process = start("-m", "fedrecall", "run", *sets, "--out", "a", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert [path.name for path in (tmp_path / "a").iterdir()] in ([], ["run.lock"]), "nothing half-written"


def test_an_address_of_another_service_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sets = ["--set", "engine.name=ray", "--set", f"ray.address=127.0.0.1:{mute.getsockname()[1]}"]
        process = start("-m", "fedrecall", "run", *sets, "--out", "a", cwd=tmp_path)
        out, err = process.communicate(timeout=60)  # Ray itself would try for minutes
    assert (process.returncode, out) == (2, "")
    assert err.splitlines()[-1].endswith("[engine.ray_unreachable]")
