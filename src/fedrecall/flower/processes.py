"""Flower's processes on this machine: started, monitored and stopped together with their child processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from fedrecall.errors import UserError, missing_extra
from fedrecall.flower.certificates import make_certificates

LOOPBACK = "127.0.0.1"

CONNECTION_NAME = "here"  # name of the connection in Flower's configuration

FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}

STOP_TIMEOUT = 10.0  # seconds until a process that does not exit is killed

START_TIMEOUT = 60.0  # seconds for a process to start


class LocalDeployment:
    """A SuperLink and SuperNodes on loopback, with all their files in a folder; the context manager stops them.

    With `secure`, connections use TLS with a new certificate authority, and nodes authenticate by their keys.
    """

    def __init__(self, folder: Path, nodes: int, *, secure: bool = True, database: bool = False) -> None:
        self.folder, self.nodes, self.secure, self.database = folder.absolute(), nodes, secure, database
        self.port = free_port()
        self.node_port = self.port  # at which nodes reach the SuperLink; a proxy has another one
        self.keys = self.folder / "keys"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.secure:
                make_certificates(self.keys, [LOOPBACK], self.nodes)
            self._write_profile()
            self.start_superlink()
            if self.secure:
                for number in range(self.nodes):
                    self.run_flwr("supernode", "register", self.keys / f"node-{number}.pub", CONNECTION_NAME)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start_superlink(self, *more: object) -> None:
        """Start the SuperLink, with more options, and wait until it accepts connections."""
        options: list[object] = ["--insecure"]
        if self.secure:
            options = ["--ssl-ca-certfile", self.keys / "ca.crt", "--ssl-certfile", self.keys / "server.pem"]
            options += ["--ssl-keyfile", self.keys / "server.key", "--enable-supernode-auth"]
        if self.database:
            options += ["--database", self.folder / "superlink.db"]
        options += more
        self.start("superlink", "flower-superlink", "--host", LOOPBACK, "--port", self.port, *options)
        deadline = time.monotonic() + START_TIMEOUT
        while not is_listening(self.port):
            self.check_alive("superlink")
            if time.monotonic() > deadline:
                raise UserError(
                    "flower.process_failed",
                    f"superlink: did not start within {START_TIMEOUT:g} s",
                    "superlink",
                    f"see {self.log('superlink')}",
                )
            time.sleep(0.1)

    def start_supernode(
        self, client: int, settings: str = "", *, key: Path | None = None, authority: Path | None = None
    ) -> str:
        """Start a client's node; `settings` are added to its node-config. Returns the name of the process."""
        options: list[object] = ["--insecure"]
        if self.secure:
            options = ["--root-certificates", authority or self.keys / "ca.crt"]
            options += ["--auth-supernode-private-key", key or self.keys / f"node-{client}"]
        config = f'client={client} state="{self.folder / f"state-{client}"}" {settings}'.strip()
        name = f"supernode-{client}"
        ports = ["--superlink", f"{LOOPBACK}:{self.node_port}", "--port", free_port()]
        self.start(name, "flower-supernode", *ports, *options, "--node-config", config)
        return name

    def start_run(self, app: Path, run_config: str = "") -> subprocess.Popen[bytes]:
        """Start `flwr run`. The output of the process is the log of the run."""
        command = [
            flower_executable("flwr"),
            "run",
            str(app),
            CONNECTION_NAME,
            "--stream",
            *(["-c", run_config] if run_config else []),
        ]
        return self._spawn("run", command, subprocess.PIPE)

    def run_flwr(self, *args: object) -> str:
        """Run a short `flwr` command and return its output."""
        command = [flower_executable("flwr"), *map(str, args)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment("flwr"), timeout=START_TIMEOUT, check=False
        )
        if done.returncode:
            output = " ".join((done.stdout + done.stderr).split())[-300:]
            raise UserError("flower.process_failed", f"flwr {args[0]}: exit code {done.returncode}: {output}", "flwr")
        return done.stdout

    def stop(self, name: str, signal_number: signal.Signals = signal.SIGTERM) -> None:
        """Stop a process and its child processes."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with suppress(ProcessLookupError):  # remaining processes of its group
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()

    def close(self) -> None:
        """Stop all processes, the SuperLink last, so that nodes do not try to reconnect."""
        for name in sorted(self.processes, key=lambda name: name == "superlink"):
            self.stop(name)

    def check_alive(self, name: str) -> None:
        """Raise an error if a process has exited."""
        code = self.processes[name].poll()
        if code is not None:
            lines = self.log(name).read_text(errors="replace").strip().splitlines()
            raise UserError(
                "flower.process_failed",
                f"{name}: exited with code {code} ({' '.join(lines[-3:])[-300:]})",
                name,
                f"see {self.log(name)}",
            )

    def log(self, name: str) -> Path:
        """Return the path of a process's output."""
        return self.folder / f"{name}.log"

    def start(self, name: str, script: str, *args: object) -> None:
        """Start one of Flower's commands under a name; its output goes to the log of this name."""
        with self.log(name).open("ab") as out:
            self._spawn(name, [flower_executable(script), *map(str, args)], out)

    def _spawn(self, name: str, command: list[str], out: int | IO[bytes]) -> subprocess.Popen[bytes]:
        if name in self.processes:
            self.stop(name)
        # In a new session, so that its process group can be stopped.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=self.environment(name),
            cwd=self.folder,
            start_new_session=True,
        )
        self.processes[name] = process
        return process

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process: no telemetry, no installations, a separate folder for Flower's files."""
        home = "flwr" if name in ("flwr", "run") else name
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **FLOWER_ENVIRONMENT, "PATH": path, "FLWR_HOME": str(self.folder / "homes" / home)}

    def _write_profile(self) -> None:
        home = self.folder / "homes" / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        security = f'root-certificates = "{self.keys / "ca.crt"}"' if self.secure else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink.{CONNECTION_NAME}]\naddress = "{LOOPBACK}:{self.port}"\n{security}\n'
        )


def flower_executable(name: str) -> str:
    """Return the path of one of Flower's commands, in this environment or else in $PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise missing_extra("Flower", "flower")
    return found


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Return True if a process accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
