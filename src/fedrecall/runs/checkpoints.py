"""Checkpoints: all that a run needs to go on, so that it ends with the bits it would have ended with.

A checkpoint is a file of tensors, the files of the clients' memories that changed since the one before, and a manifest
that names them with their checksums, and those of the record so far, which grows beside them. The manifest is written
last: a checkpoint that has one is complete. The last two are kept; one that was damaged since is passed over for the
one before it.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.types import Payload, Server
from fedrecall.files import fsync_path, tensors_from_bytes, tensors_to_bytes, write_atomic

KEEP_LAST = 2

CHECKPOINT_FOLDER = "checkpoints"

CLIENT_STATE_FOLDER = "memories"  # in it: what clients remember

log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """A checkpoint, read back."""

    tensors: Payload
    client_state_files: dict[int, str]  # the clients' memories, by file
    manifest: dict[str, Any]

    def restore_server(self, fresh: Server) -> Server:
        """The server as it was, put into one that has been set up anew."""
        own, moments = self._part("server"), self._part("moments")
        extra = fresh.extra | self._part("extra")  # of another method, by force, there may be less than it needs
        t = self.manifest["round"]
        return replace(
            fresh, w=own["w"], b=own["b"], int_buffers=own["counters"], optimiser_state=moments, extra=extra, t=t
        )

    def matches(self, fresh: Server) -> bool:
        """Whether it is of the same model."""
        own, now = self._part("server"), {"w": fresh.w, "b": fresh.b, "counters": fresh.int_buffers}
        return {name: t.shape for name, t in own.items()} == {name: t.shape for name, t in now.items()}

    def _part(self, part: str) -> Payload:
        return {name.removeprefix(f"{part}."): t for name, t in self.tensors.items() if name.startswith(f"{part}.")}


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path

    @property
    def client_state_folder(self) -> Path:
        """Where the clients' memories are."""
        return self.folder / CLIENT_STATE_FOLDER

    def save(self, server: Server, memories: ClientStateStore, logs: Iterable[Path], extra: Mapping[str, Any]) -> None:
        """Keep the state after round server.t.

        `record` are the files, beside the folder, to which lines are added; `notes` is what else the run wants to know
        when it goes on.
        """
        self.folder.mkdir(exist_ok=True)
        filed = memories.flush()
        before = self._recent_manifests(KEEP_LAST - 1)
        known = before[0]["memories"] if before else {}  # files never change, and are not hashed again
        content = tensors_to_bytes(_tensors(server))
        write_atomic(self._file(server.t, "safetensors"), content)
        lines = {path: path.read_bytes() for path in logs}
        for path in [*lines, *([self.client_state_folder] if filed else [])]:
            fsync_path(path)
        manifest: dict[str, Any] = {
            "round": server.t,
            "tensors": sha256(content).hexdigest(),
            "memories": {
                name: known.get(name) or _checksum(self.client_state_folder / name) for name in filed.values()
            },
            "record": {
                str(path.relative_to(self.folder.parent)): [len(text), sha256(text).hexdigest()]
                for path, text in lines.items()
            },
            "clients": {str(client): name for client, name in filed.items()},
            **extra,
        }
        manifest["checksum"] = _manifest_checksum(manifest)
        write_atomic(self._file(server.t, "json"), json.dumps(manifest).encode())
        fsync_path(self.folder)  # before anything older goes
        kept = [manifest, *before]
        memories.pin({name for m in kept for name in m["memories"]})
        rounds = {m["round"] for m in kept}
        for path in self.folder.glob("round-*"):
            if _round(path) not in rounds:
                path.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """The last checkpoint that is whole."""
        for path in sorted(self.folder.glob("round-*.json"), key=_round, reverse=True):
            reason = ""
            try:
                manifest = json.loads(path.read_text())
                content = path.with_suffix(".safetensors").read_bytes()
                reason = self._integrity_error(manifest, content)
                if not reason:
                    filed = {int(client): name for client, name in manifest["clients"].items()}
                    return Checkpoint(tensors_from_bytes(content), filed, manifest)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
                reason = str(error)
            log.warning("skip the damaged checkpoint of round %s: %s", _round(path), reason)
        return None

    def oldest_round(self) -> int:
        """The round of the oldest one: what may still be needed is what was there then, and later."""
        return min(map(_round, self.folder.glob("round-*.json")), default=0)

    def discard_newer(self, saved: Checkpoint | None) -> None:
        """Forget what is newer than this checkpoint, or all; and what a process left behind that was killed."""
        last = saved.manifest["round"] if saved else -1
        for path in self.folder.glob("round-*"):
            if _round(path) > last:
                path.unlink()
        needed = {name for manifest in self._recent_manifests(KEEP_LAST) for name in manifest["memories"]}
        for path in [*self.folder.glob(".round-*"), *self.client_state_folder.glob("*")]:
            if path.name not in needed:
                path.unlink()

    def _integrity_error(self, manifest: dict[str, Any], content: bytes) -> str:
        """What is not as it was written; an empty text if all is."""
        if manifest.get("checksum") != _manifest_checksum(manifest):
            return "its manifest was altered"
        if sha256(content).hexdigest() != manifest["tensors"]:
            return "its tensors were altered"
        if not {*manifest["clients"].values()} <= manifest["memories"].keys():
            return "it names memories that it does not have"
        for name, checksum in manifest["memories"].items():
            if Path(name).name != name:  # whoever made it wants another file read, or removed
                return f"it names a file that is not its own: {name}"
            if _checksum(self.client_state_folder / name) != checksum:
                return f"the memory {name} was altered"
        for name, (size, checksum) in manifest["record"].items():
            file = self.folder.parent / ("probes" if name.startswith("probes/") else "") / Path(name).name
            if sha256(file.read_bytes()[:size]).hexdigest() != checksum:
                return f"{file} was altered"
        return ""

    def _recent_manifests(self, number: int) -> list[dict[str, Any]]:
        """The manifests of the last checkpoints, newest first; without those that were damaged since."""
        found = []
        for path in sorted(self.folder.glob("round-*.json"), key=_round, reverse=True):
            with suppress(OSError, ValueError):
                manifest = json.loads(path.read_text())
                if isinstance(manifest, dict) and manifest.get("checksum") == _manifest_checksum(manifest):
                    found.append(manifest)
        return found[:number]

    def _file(self, number: int, kind: str) -> Path:
        return self.folder / f"round-{number:06}.{kind}"


def _tensors(server: Server) -> Payload:
    """The server's state under names that tell its parts."""
    own = {"server.w": server.w, "server.b": server.b, "server.counters": server.int_buffers}
    moments = {f"moments.{name}": t for name, t in server.optimiser_state.items()}
    return own | moments | {f"extra.{name}": t for name, t in server.extra.items()}


def _manifest_checksum(manifest: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in manifest.items() if k != "checksum"}, sort_keys=True)
    return sha256(text.encode()).hexdigest()


def _checksum(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))
