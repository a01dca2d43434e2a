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

from fedrecall.errors import UserError, first_line, missing_extra
from fedrecall.simulation.processes import available_cores

ENV_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # what Ray's processes have to say is in their log files
}

# Ray's ports are open to the network, and whoever may use them may run code: a Ray of one's own wants a token, and
# would write it to the user's home if it were given none. One for all runs of this process: Ray reads it once.
AUTH_TOKEN = secrets.token_hex(32)

LOGGING_OPTIONS = {"log_to_driver": False, "logging_level": "critical"}

CONNECT_TIMEOUT = 5.0  # seconds to wait for a cluster to pick up

JOIN_TIMEOUTS = {  # the address may be of no cluster, or need a token: by default Ray tries 20 times for up to 40 s
    "RAY_gcs_server_port_wait_time_s": "1",  # attempts: 5 seconds for each of two connections, and
    "RAY_py_gcs_connect_timeout_s": "5",  # so many for an answer
}


@dataclass(frozen=True)
class RaySession:
    """A connection to Ray."""

    ray: ModuleType
    owned: bool  # made here
    folder: str | None = None  # where the processes that were started here write

    def close(self) -> None:
        """Leave Ray; if it was started here, it ends."""
        if self.owned and self.ray.is_initialized():
            self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_session(address: str | None, workers: int | None) -> RaySession:
    """Ray at an address, or a new one on this machine; a Python user's own connection is used as it is."""
    os.environ.update({name: value for name, value in ENV_DEFAULTS.items() if name not in os.environ})
    with _temporary_environment(
        {} if address is None else JOIN_TIMEOUTS
    ):  # Ray reads some of its settings when it is imported
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
    os.environ.setdefault("RAY_AUTH_TOKEN", AUTH_TOKEN)
    try:
        ray.init(address="local", num_cpus=workers, include_dashboard=False, _temp_dir=folder, **LOGGING_OPTIONS)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        what = f"cannot start Ray on this machine ({first_line(error)})"
        hint = 'check the installation of Ray and the free memory, or use engine.name = "pool"'
        raise UserError("engine.ray_start_failed", what, "engine.name", hint) from error
    finally:
        if os.environ["RAY_AUTH_TOKEN"] == AUTH_TOKEN:  # not for other clusters
            del os.environ["RAY_AUTH_TOKEN"]
    return RaySession(ray, owned=True, folder=folder)


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
    """Settings for Ray in the environment, where the user has given none."""
    new = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in new})
    try:
        yield
    finally:  # not for what is started later
        for name in new:
            del os.environ[name]
