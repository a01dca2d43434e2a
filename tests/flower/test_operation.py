"""Files to run the daemons with: the proxy, separate processes and own code in a real federation; units and compose."""

import json
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

import fedrecall as fr
from fedrecall.flower.app_template import OPERATION_TEMPLATES, write_app
from fedrecall.flower.certificates import make_certificates
from fedrecall.flower.processes import CONNECTION_NAME, LocalDeployment, free_port, is_listening
from support.own_code import Calm
from support.processes import until

pytestmark = pytest.mark.flower
NGINX = shutil.which("nginx")
METHOD = "my_packed_method:Calm"


class Separate(LocalDeployment):
    """Deployment whose SuperLink does not start processes itself: a SuperExec does."""

    def start_superlink(self, *more: object) -> None:
        super().start_superlink("--isolation", "process", *more)
        certificate = ["--root-certificates", self.keys / "ca.crt"]
        self.start("superexec", "flower-superexec", "--runtime-api-address", f"127.0.0.1:{self.port}", *certificate)


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Separate]:
    """Start a SuperLink behind the nginx of `fedrecall flower new --with nginx`, with its paths and ports changed."""
    if NGINX is None:
        pytest.skip("needs nginx")
    write_app(tmp_path / "files", None, [], (), ["nginx"])
    folder, port = tmp_path / "federation", free_port()
    make_certificates(folder / "keys", ["127.0.0.1", "fl.example.org"], 2)
    text = (tmp_path / "files" / "operation" / "nginx.conf").read_text()
    with Separate(folder, 2, database=True) as daemons:
        for old, new in {
            "listen 443": f"listen 127.0.0.1:{port}",
            "127.0.0.1:8000": f"127.0.0.1:{daemons.port}",
            "/etc/fedrecall": str(daemons.keys),
            "/run/fedrecall-nginx.pid": str(tmp_path / "nginx.pid"),
            "/var/tmp/fedrecall-nginx": str(tmp_path / "bodies"),
        }.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "nginx.conf").write_text(text)
        nginx = subprocess.Popen([NGINX, "-c", tmp_path / "nginx.conf", "-g", "daemon off;"])
        try:
            until(lambda: is_listening(port), 60)
            daemons.node_port = port
            yield daemons
        finally:
            nginx.terminate()
            nginx.wait()


def test_nodes_come_through_the_proxy_and_nothing_else_does(proxied: Separate, tmp_path: Path) -> None:
    """Two nodes through nginx, one of them with a SuperExec of its own, with own code that the app brings along."""
    source = Path(sys.modules[Calm.__module__].__file__ or "").read_text()
    (tmp_path / "my_packed_method.py").write_text(source)
    settings = ["federation.clients=2", "run.rounds=2", "local.epochs=1", f"method.name={METHOD}"]
    write_app(tmp_path / "trial", None, settings, [tmp_path / "my_packed_method.py"])
    code = f'code="{METHOD}"'
    proxied.start_supernode(0, code)
    port = free_port()
    keys = proxied.keys
    proxied.start(
        "supernode-1", "flower-supernode", "--superlink", f"127.0.0.1:{proxied.node_port}", "--port", port,
        "--root-certificates", keys / "ca.crt", "--auth-supernode-private-key", keys / "node-1",
        "--isolation", "process", "--host", "127.0.0.1",
        "--ssl-certfile", keys / "server.pem", "--ssl-keyfile", keys / "server.key",
        "--ssl-ca-certfile", keys / "ca.crt",
        "--node-config", f'client=1 state="{proxied.folder / "state-1"}" {code}',
    )  # fmt: skip
    until(lambda: is_listening(port), 120)
    certificate = ["--root-certificates", keys / "ca.crt"]
    proxied.start("node-superexec", "flower-superexec", "--runtime-api-address", f"127.0.0.1:{port}", *certificate)
    context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    for port, reached in ((proxied.node_port, False), (proxied.port, True)):
        with closing(HTTPSConnection("127.0.0.1", port, context=context, timeout=60)) as connection:
            connection.request("POST", "/v1/control/register-node")
            with connection.getresponse() as answer:
                assert (answer.status != 404) is reached, "the control path is there, and the proxy does not pass it"
    process = proxied.start_run(tmp_path / "trial", f'out="{tmp_path / "run"}"')
    assert process.stdout is not None
    output = process.stdout.read().decode(errors="replace")
    summary = tmp_path / "run" / "summary.json"
    assert summary.exists(), output[-4000:]
    assert json.loads(summary.read_text())["rounds"] == 2
    settings[-1] = "method.name=support.own_code:Calm"
    expected = fr.run({"engine": {"name": "serial"}}, overrides=settings).model().state_dict()
    got = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    nodes = json.loads(proxied.run_flwr("supernode", "list", CONNECTION_NAME, "--format", "json"))["nodes"]
    assert sum(node["status"] == "online" for node in nodes) == 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "study"
    write_app(folder, None, ["federation.clients=3"], (), list(OPERATION_TEMPLATES))
    return folder / "operation"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("name", ["fedrecall-superlink.service", "fedrecall-supernode@.service"])
def test_units_are_valid(name: str, files: Path, tmp_path: Path) -> None:
    """Paths are replaced by ones that exist here, so that every other remark of systemd is an error."""
    text = re.sub(r"/opt/fedrecall/bin/[\w-]+", "/bin/true", (files / name).read_text())
    unit = tmp_path / name.replace("@", "@1")
    unit.write_text(text.replace("User=fedrecall", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=120, check=False)
    remarks = [line for line in done.stderr.splitlines() if unit.stem in line]
    assert not remarks, remarks


def test_the_compose_file_has_the_services_and_exposes_no_control_path(files: Path) -> None:
    content = yaml.safe_load((files / "compose.yaml").read_text())
    assert set(content["services"]) == {"superlink", "node"}
    assert content["services"]["superlink"]["ports"] == ["127.0.0.1:8000:8000"]
    assert "ports" not in content["services"]["node"]
    for service in content["services"].values():
        assert service["restart"] == "always"
        assert service["environment"]["FLWR_TELEMETRY_ENABLED"] == "0"
