"""Ray session: a cluster that is started for one run and stopped with it, or an existing cluster."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fedrecall.errors import UserError, first_line, missing_extra
from fedrecall.simulation.devices import available_cores

ENV_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # the output of Ray's processes is in their log files
}

# Ray's ports allow running code, also to other users of this machine: a local Ray needs a token, and would write one to
# the user's home directory if none is set. One token for all runs of this process: Ray reads it once.
AUTH_TOKEN = secrets.token_hex(32)

LOGGING_OPTIONS = {"log_to_driver": False, "logging_level": "critical"}

CONNECT_TIMEOUT = 5.0  # seconds to wait for a connection to a cluster

JOIN_TIMEOUTS = {  # the address may be of no cluster, or need a token: by default Ray tries 20 times for up to 40 s
    "RAY_gcs_server_port_wait_time_s": "1",  # attempts, of 5 seconds for each of two connections
    "RAY_py_gcs_connect_timeout_s": "5",  # seconds to wait for a reply
}


@dataclass(frozen=True)
class RaySession:
    """Connection to Ray."""

    ray: ModuleType
    owned: bool  # opened by this library
    folder: str | None = None  # output folder of processes started by this library
    watcher: subprocess.Popen[bytes] | None = None  # removes the folder if this process is killed

    def close(self) -> None:
        """Disconnect from Ray; stop it if it was started here."""
        if self.owned and self.ray.is_initialized():
            self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.watcher is not None:
            self.watcher.communicate()  # it exits, because the folder is gone


def open_session(address: str | None, workers: int | None) -> RaySession:
    """Connect to Ray at an address, or start it on this machine. An existing connection of this process is used."""
    os.environ.update({name: value for name, value in ENV_DEFAULTS.items() if name not in os.environ})
    # Ray reads some of its settings when it is imported.
    with _temporary_environment({} if address is None else JOIN_TIMEOUTS):
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "ray") from error
        if ray.is_initialized():
            return RaySession(ray, owned=False)
        return _start(ray, workers or available_cores()) if address is None else _join(ray, address)


def _start(ray: ModuleType, workers: int) -> RaySession:
    # Paths of sockets must be short, and the usual folder of temporary files need not be.
    folder = tempfile.mkdtemp(prefix="fedrecall-ray-", dir="/tmp" if os.name == "posix" else None)
    watcher = _remove_when_orphaned(folder) if os.name == "posix" else None
    os.environ.setdefault("RAY_AUTH_TOKEN", AUTH_TOKEN)
    constants: Any = sys.modules["ray._private.ray_constants"]
    # As on systems where Ray supports no clusters: it then listens on loopback only. Read once, in ray.init.
    supports_clusters, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            _temp_dir=folder,
            **LOGGING_OPTIONS,
        )
    except Exception as error:
        RaySession(ray, owned=False, folder=folder, watcher=watcher).close()
        what = f"cannot start Ray on this machine ({first_line(error)})"
        hint = 'check the installation of Ray and the free memory, or use engine.name = "pool"'
        raise UserError("engine.ray_start_failed", what, "engine.name", hint) from error
    finally:
        constants.ENABLE_RAY_CLUSTER = supports_clusters
        if os.environ["RAY_AUTH_TOKEN"] == AUTH_TOKEN:  # not for other clusters
            del os.environ["RAY_AUTH_TOKEN"]
    return RaySession(ray, owned=True, folder=folder, watcher=watcher)


def _remove_when_orphaned(folder: str) -> subprocess.Popen[bytes]:
    """Start a process that removes the folder when this process has exited, even if it was killed.

    Its standard input ends with this process. Ray's own processes exit within a minute and may write until then.
    """
    wait_and_remove = 'cat; for _ in 1 2 3 4 5 6 7 8; do [ -e "$0" ] || exit; rm -rf "$0"; sleep 10; done'
    return subprocess.Popen(
        ["/bin/sh", "-c", wait_and_remove, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C does not end it
    )


def _join(ray: ModuleType, address: str) -> RaySession:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not (host and colon and port.isdecimal()):
            what = f'ray.address = "{address}": the address is not valid'
            raise UserError("config.invalid_value", what, "ray.address", 'use "auto", "HOST:PORT" or "ray://HOST:PORT"')
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                "engine.ray_unreachable",
                f'ray.address = "{address}": no Ray cluster is reachable ({first_line(error)})',
                "ray.address",
                "start one with ray start --head, or remove ray.address to start Ray for this run alone",
            ) from error
    try:
        ray.init(address=address, **LOGGING_OPTIONS)
    except Exception as error:
        raise UserError(
            "engine.ray_unreachable",
            f'ray.address = "{address}": cannot connect to the Ray cluster ({first_line(error)})',
            "ray.address",
            "check that this is Ray's port, that the cluster has the Ray version of this machine, and RAY_AUTH_TOKEN",
        ) from error
    return RaySession(ray, owned=True)


@contextmanager
def _temporary_environment(settings: dict[str, str]) -> Iterator[None]:
    """Set environment variables in a block, unless the user has set them."""
    new = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in new})
    try:
        yield
    finally:  # not for what is started later
        for name in new:
            del os.environ[name]
