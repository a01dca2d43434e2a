"""What a client remembers, on its own node: a file a version, named by the exchange that wrote it.

The server says with every message which version it has had the reply of. That one is read and no other, so a memory
whose reply was lost is never used, and one that is not there is noticed. A version is on the disk before its reply
leaves, and stays until no checkpoint of the server can go back to it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.files import fsync_path, tensors_from_bytes, tensors_to_bytes, write_atomic

RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")  # of a run: it becomes a folder's name, and comes from another machine

STATE_FILE_PATTERN = re.compile(r"(\d+)-(\d+)\.safetensors")


class StateVersion(NamedTuple):
    """The exchange that wrote a memory."""

    t: int  # the round, from 0
    exchange: int  # in it, from 0

    def __str__(self) -> str:
        return f"round {self.t + 1}, exchange {self.exchange + 1}"


@dataclass(frozen=True)
class NodeStateStore:
    """The memories of one client in one run."""

    folder: Path

    @classmethod
    def for_client(cls, root: Path, run: str, client: int) -> "NodeStateStore":
        """The one in a node's folder."""
        if not RUN_ID_PATTERN.fullmatch(run):
            what = f"run = {run[:40]!r}: not a valid run key"
            raise UserError("flower.invalid_run_key", what, "run", "use the fedrecall version of the server")
        return cls(root / run / f"client-{client}")

    def read(self, version: StateVersion | None) -> Payload | None:
        """The memory that the server knows of: none, or exactly this version."""
        if version is None:
            return None
        try:
            return tensors_from_bytes(self._path(version).read_bytes())
        except FileNotFoundError:
            kept = ", ".join(map(str, self.versions())) or "nothing"
            raise UserError(
                "run.missing_client_state",
                f"{self.folder}: the client state of {version} is not on this node, the folder has {kept}",
                str(self.folder),
                "set state in its node-config to the folder that it had, or start a new run",
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
        """Keep a memory; when this returns, it is on the disk. One that is empty needs no file."""
        if not memory:
            self._path(version).unlink(missing_ok=True)
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # learned from this node's data: for its eyes
        write_atomic(self._path(version), tensors_to_bytes(memory))
        fsync_path(self.folder)  # the name, too

    def prune(self, acknowledged: StateVersion | None, oldest: int) -> None:
        """Remove what was written after the acknowledged version, and what no checkpoint since round `oldest` needs."""
        versions = self.versions()
        needed = max((v for v in versions if v.t < oldest), default=None)  # what a client had at that checkpoint
        for version in versions:
            lost = acknowledged is None or version > acknowledged
            if lost or (needed is not None and version < needed):
                self._path(version).unlink(missing_ok=True)

    def versions(self) -> list[StateVersion]:
        """All that are there, the oldest first."""
        names = (STATE_FILE_PATTERN.fullmatch(path.name) for path in self.folder.glob("*.safetensors"))
        return sorted(StateVersion(int(name[1]), int(name[2])) for name in names if name)

    def _path(self, version: StateVersion) -> Path:
        return self.folder / f"{version.t:06}-{version.exchange:02}.safetensors"
