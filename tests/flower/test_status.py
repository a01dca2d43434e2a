"""`fedrecall flower status`: lines, JSON, Prometheus' text format, and metrics over HTTP."""

import re
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

from fedrecall import UserError
from fedrecall.flower.status import metrics_server, read_status
from support.command import call
from support.loopback import federate, federation, in_a_task

__all__ = ["in_a_task"]  # a fixture
pytestmark = pytest.mark.flower
SAMPLE = re.compile(r'fedrecall_[a-z_]+\{run="run"(,client="\d+")?\} [-+0-9.e]+')


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Path:
    """Return the directory of a run of two rounds that client 2 took no part in."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    folder = tmp_path_factory.mktemp("status")
    grid = federation(folder, config, "engine.min_replies=2 run.rounds=2")
    grid.run_config["set"] = "engine.timeout=1"
    grid.online -= {102}
    federate(grid)
    return folder / "run"


def test_the_lines_name_nodes_rounds_the_missing_client_and_the_last_error(run: Path) -> None:
    lines = list(read_status(run).lines())
    assert lines[0].startswith("run: 2 of 2 rounds done, finished")
    assert any(line.startswith("client 0: connected, node 100, ") and "2 replies, 0 lost" in line for line in lines)
    assert "client 2: missing, no node yet, 0 replies, 2 lost" in lines
    assert any(line.startswith("missing: client 2: ") for line in lines)
    assert "[reply.not_connected]" in lines[-1]


@pytest.mark.parametrize(
    ("form", "expected"),
    [("text", "client 2: missing"), ("json", '"state": "finished"'), ("prometheus", 'rounds_done{run="run"} 2\n')],
)
def test_the_command_prints_all_forms(
    form: str, expected: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(monkeypatch, capsys, "flower", "status", run, "--format", form)
    assert code == 0
    assert expected in out


def test_metrics_are_valid_and_served(run: Path) -> None:
    with metrics_server(run, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with urlopen(f"{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        with pytest.raises(HTTPError):
            urlopen(f"{address}/other", timeout=30)
        server.shutdown()
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    assert 'fedrecall_clients_connected{run="run"} 2' in samples
    assert 'fedrecall_client_lost_replies{run="run",client="2"} 2' in samples


def test_a_folder_without_a_federation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_status(tmp_path)
    assert (error.value.code, error.value.key) == ("flower.no_status", str(tmp_path))
