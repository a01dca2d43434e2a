"""Client state on the client's node: one file per version, named by the exchange that wrote it.

Every request contains the version that the server has acknowledged. Only this version is read: a state whose reply was
lost is never used, and a missing state is an error. A version is on disk before its reply is sent, and is kept until no
checkpoint of the server needs it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.files import fsync_path, tensors_from_bytes, tensors_to_bytes, write_atomic

RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")  # strict: the server sends it, and it becomes the name of a folder

STATE_FILE_PATTERN = re.compile(r"(\d+)-(\d+)\.safetensors")


class StateVersion(NamedTuple):
    """Version of a client state: the exchange that wrote it."""

    t: int  # round, from 0
    exchange: int  # exchange in the round, from 0

    def __str__(self) -> str:
        return f"round {self.t + 1}, exchange {self.exchange + 1}"


@dataclass(frozen=True)
class NodeStateStore:
    """Client states of one client in one run."""

    folder: Path

    @classmethod
    def for_client(cls, root: Path, run: str, client: int) -> "NodeStateStore":
        """Return the store of a client and run under a node's state folder."""
        if not RUN_ID_PATTERN.fullmatch(run):
            text = f"run = {run[:40]!r}: not a valid run key"
            raise UserError("flower.invalid_run_key", text, "run", "use the fedrecall version of the server")
        return cls(root / run / f"client-{client}")

    def read(self, version: StateVersion | None) -> Payload | None:
        """Read the acknowledged version; None if the server has acknowledged none."""
        if version is None:
            return None
        try:
            return tensors_from_bytes(self._path(version).read_bytes())
        except FileNotFoundError:
            stored = ", ".join(map(str, self.versions())) or "nothing"
            raise UserError(
                "run.missing_client_state",
                f"{self.folder}: the client state of {version} is not on this node, the folder has {stored}",
                str(self.folder),
                "set state in its node-config to the folder used before, or start a new run",
            ) from None
        except (OSError, SafetensorError, ValueError) as error:
            path = self._path(version)
            raise UserError(
                "run.unreadable_client_state",
                f"{path}: the client state cannot be read ({error})",
                str(path),
                "restore the file, or start a new run",
            ) from None

    def write(self, version: StateVersion, memory: Payload) -> None:
        """Store a client state. It is on disk when this returns. An empty state has no file."""
        if not memory:
            self._path(version).unlink(missing_ok=True)
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: learned from this node's data
        write_atomic(self._path(version), tensors_to_bytes(memory))
        fsync_path(self.folder)  # the file's entry in the folder

    def prune(self, acknowledged: StateVersion | None, oldest: int) -> None:
        """Remove versions after the acknowledged one, and versions that no checkpoint since round `oldest` needs."""
        versions = self.versions()
        needed = max((v for v in versions if v.t < oldest), default=None)  # the state at that checkpoint
        for version in versions:
            is_rejected = acknowledged is None or version > acknowledged
            if is_rejected or (needed is not None and version < needed):
                self._path(version).unlink(missing_ok=True)

    def versions(self) -> list[StateVersion]:
        """Return all stored versions, the oldest first."""
        names = (STATE_FILE_PATTERN.fullmatch(path.name) for path in self.folder.glob("*.safetensors"))
        return sorted(StateVersion(int(name[1]), int(name[2])) for name in names if name)

    def _path(self, version: StateVersion) -> Path:
        return self.folder / f"{version.t:06}-{version.exchange:02}.safetensors"
