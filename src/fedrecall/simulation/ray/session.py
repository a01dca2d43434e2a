"""Ray itself: started for one run and stopped with it, or somebody's cluster, which is left as it was."""

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from fedrecall.errors import UserError, needs_extra
from fedrecall.simulation.processes import cores

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # what Ray's processes have to say is in their log files
}

# Ray's ports are open to the network, and whoever may use them may run code: a Ray of one's own wants a token, and
# would write it to the user's home if it were given none. One for all runs of this process: Ray reads it once.
TOKEN = secrets.token_hex(32)

SILENCE = {"log_to_driver": False, "logging_level": "critical"}

PATIENCE = 5.0  # seconds to wait for a cluster to pick up

HASTE = {  # to join what may be no Ray, or want another token: Ray would try 20 times, each for up to 40 seconds
    "RAY_gcs_server_port_wait_time_s": "1",  # attempts: 5 seconds for each of two connections, and
    "RAY_py_gcs_connect_timeout_s": "5",  # so many for an answer
}


@dataclass(frozen=True)
class Session:
    """A connection to Ray."""

    ray: ModuleType
    ours: bool  # made here
    folder: str | None = None  # where the processes that were started here write

    def close(self) -> None:
        """Leave Ray; if it was started here, it ends."""
        if self.ours and self.ray.is_initialized():
            self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def connect(address: str | None, workers: int | None) -> Session:
    """Ray at an address, or a new one on this machine; a Python user's own connection is used as it is."""
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    with _advised({} if address is None else HASTE):  # Ray reads some of its settings when it is imported
        try:
            import ray
        except ImportError as error:
            raise needs_extra("ray", "ray") from error
        if ray.is_initialized():
            return Session(ray, ours=False)
        return _start(ray, workers or cores()) if address is None else _join(ray, address)


def _start(ray: ModuleType, workers: int) -> Session:
    # Paths of sockets must be short, and the usual folder of temporary files need not be.
    folder = tempfile.mkdtemp(prefix="fedrecall-ray-", dir="/tmp" if os.name == "posix" else None)
    os.environ.setdefault("RAY_AUTH_TOKEN", TOKEN)
    try:
        ray.init(address="local", num_cpus=workers, include_dashboard=False, _temp_dir=folder, **SILENCE)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        what = f"cannot start Ray on this machine ({_line(error)})"
        hint = 'check the installation of Ray and the free memory, or use engine.name = "pool"'
        raise UserError("engine.ray_start_failed", what, "engine.name", hint) from error
    finally:
        if os.environ["RAY_AUTH_TOKEN"] == TOKEN:  # not for other clusters
            del os.environ["RAY_AUTH_TOKEN"]
    return Session(ray, ours=True, folder=folder)


def _join(ray: ModuleType, address: str) -> Session:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not (host and colon and port.isdecimal()):
            what = f'ray.address = "{address}": the address is not valid'
            raise UserError("config.invalid_value", what, "ray.address", 'use "auto", "HOST:PORT" or "ray://HOST:PORT"')
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                "engine.ray_unreachable",
                f'ray.address = "{address}": no Ray cluster is reachable ({_line(error)})',
                "ray.address",
                "start one with ray start --head, or remove ray.address to start Ray for this run alone",
            ) from error
    try:
        ray.init(address=address, **SILENCE)
    except Exception as error:
        raise UserError(
            "engine.ray_unreachable",
            f'ray.address = "{address}": cannot connect to the Ray cluster ({_line(error)})',
            "ray.address",
            "check that this is Ray's port, that the cluster has the Ray version of this machine, and RAY_AUTH_TOKEN",
        ) from error
    return Session(ray, ours=True)


@contextmanager
def _advised(settings: dict[str, str]) -> Iterator[None]:
    """Settings for Ray in the environment, where the user has given none."""
    new = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in new})
    try:
        yield
    finally:  # not for what is started later
        for name in new:
            del os.environ[name]


def _line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).strip().splitlines()[0].rstrip(".")
