"""Checkpoints: the state of a run, from which it is resumed to the same bits as without an interruption.

A checkpoint is a file of tensors, the client state files that changed since the previous checkpoint, and a manifest
with their checksums and those of the logs so far. The manifest is written last: a checkpoint that has one is complete.
The last two checkpoints are kept; if the last one is damaged, the one before it is used.
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

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.types import Payload, Server
from fedrecall.files import fsync_path, parse_json, tensors_from_bytes, tensors_to_bytes, write_atomic

KEEP_LAST = 2  # checkpoints: one may be damaged

MAX_ROUND = 10**9  # of a manifest

CHECKPOINT_FOLDER = "checkpoints"

CLIENT_STATE_FOLDER = "memories"  # client states, inside CHECKPOINT_FOLDER

log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """A checkpoint that was read from its files."""

    tensors: Payload
    client_state_files: dict[int, str]  # client -> file name
    manifest: dict[str, Any]

    def restore_server(self, fresh: Server) -> Server:
        """Return a newly set up server with the state of the checkpoint."""
        own, moments = self.part("server"), self.part("moments")
        extra = fresh.extra | self.part("extra")  # after --force with another method, entries may be missing
        t = self.manifest["round"]
        return replace(
            fresh, w=own["w"], b=own["b"], int_buffers=own["counters"], optimiser_state=moments, extra=extra, t=t
        )

    def matches(self, fresh: Server) -> bool:
        """Return True if the checkpoint is of the same model."""
        own, now = self.part("server"), {"w": fresh.w, "b": fresh.b, "counters": fresh.int_buffers}
        return {name: t.shape for name, t in own.items()} == {name: t.shape for name, t in now.items()}

    def part(self, part: str) -> Payload:
        """Return the tensors with this prefix, without it."""
        return {name.removeprefix(f"{part}."): t for name, t in self.tensors.items() if name.startswith(f"{part}.")}


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path

    @property
    def client_state_folder(self) -> Path:
        """Folder of the client states."""
        return self.folder / CLIENT_STATE_FOLDER

    def save(
        self,
        server: Server,
        client_state: ClientStateStore,
        logs: Iterable[Path],
        extra: Mapping[str, Any],
        tensors: Payload | None = None,
    ) -> None:
        """Save the state after round server.t.

        `logs` are the files of the run directory to which every round appends; `extra` is added to the manifest, and
        `tensors`, whose names have a part as prefix, to the server's.
        """
        self.folder.mkdir(exist_ok=True)
        files = client_state.flush()
        previous = self._recent_manifests(KEEP_LAST - 1)
        known = previous[0]["memories"] if previous else {}  # files never change: their checksums are reused
        content = tensors_to_bytes(_tensors(server) | (tensors or {}))
        write_atomic(self._file(server.t, "safetensors"), content)
        lines = {path: path.read_bytes() for path in logs}
        for path in [*lines, *([self.client_state_folder] if files else [])]:
            fsync_path(path)
        manifest: dict[str, Any] = {
            "round": server.t,
            "tensors": sha256(content).hexdigest(),
            "memories": {
                name: known.get(name) or _checksum(self.client_state_folder / name) for name in files.values()
            },
            "record": {
                str(path.relative_to(self.folder.parent)): [len(text), sha256(text).hexdigest()]
                for path, text in lines.items()
            },
            "clients": {str(client): name for client, name in files.items()},
            **extra,
        }
        manifest["checksum"] = _manifest_checksum(manifest)
        write_atomic(self._file(server.t, "json"), json.dumps(manifest).encode())
        fsync_path(self.folder)  # before older checkpoints are removed
        kept = [manifest, *previous]
        client_state.pin({name for m in kept for name in m["memories"]})
        rounds = {m["round"] for m in kept}
        for path in self.folder.glob("round-*"):
            if _round(path) not in rounds:
                path.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """Return the last undamaged checkpoint; None if there is none."""
        for path in sorted(self.folder.glob("round-*.json"), key=_round, reverse=True):
            reason = ""
            try:
                manifest = parse_json(path.read_text())
                content = path.with_suffix(".safetensors").read_bytes()
                reason = self._integrity_error(manifest, content)
                if not reason:
                    files = {int(client): name for client, name in manifest["clients"].items()}
                    return Checkpoint(tensors_from_bytes(content), files, manifest)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
                reason = str(error)
            log.warning("skip the damaged checkpoint of round %s: %s", _round(path), reason)
        return None

    def oldest_round(self) -> int:
        """Return the round of the oldest checkpoint; state of earlier rounds is no longer needed."""
        return min(map(_round, self.folder.glob("round-*.json")), default=0)

    def discard_newer(self, saved: Checkpoint | None) -> None:
        """Remove checkpoints newer than `saved` (None: all), and the remains of a killed process."""
        last = saved.manifest["round"] if saved else -1
        for path in self.folder.glob("round-*"):
            if _round(path) > last:
                path.unlink()
        needed = {name for manifest in self._recent_manifests(KEEP_LAST) for name in manifest["memories"]}
        for path in [*self.folder.glob(".round-*"), *self.client_state_folder.glob("*")]:
            if path.name not in needed:
                path.unlink()

    def _integrity_error(self, manifest: dict[str, Any], content: bytes) -> str:
        """Return a description of damage to a checkpoint; an empty text if there is none."""
        if manifest.get("checksum") != _manifest_checksum(manifest):
            return "its manifest was altered"
        if type(manifest["round"]) is not int or not 0 <= manifest["round"] < MAX_ROUND:
            return "it is of no round"
        if sha256(content).hexdigest() != manifest["tensors"]:
            return "its tensors were altered"
        if not {*manifest["clients"].values()} <= manifest["memories"].keys():
            return "it names client states that it does not have"
        for name, checksum in manifest["memories"].items():
            if Path(name).name != name:  # a forged manifest must not have other files read or removed
                return f"it names a file that is not its own: {name}"
            if _checksum(self.client_state_folder / name) != checksum:
                return f"the client state {name} was altered"
        for name, (size, checksum) in manifest["record"].items():
            file = self.folder.parent / ("probes" if name.startswith("probes/") else "") / Path(name).name
            if sha256(file.read_bytes()[:size]).hexdigest() != checksum:
                return f"{file} was altered"
        return ""

    def _recent_manifests(self, number: int) -> list[dict[str, Any]]:
        """Return the manifests of the last checkpoints, newest first, without damaged ones."""
        found = []
        for path in sorted(self.folder.glob("round-*.json"), key=_round, reverse=True):
            with suppress(OSError, ValueError):
                manifest = parse_json(path.read_text())
                if isinstance(manifest, dict) and manifest.get("checksum") == _manifest_checksum(manifest):
                    found.append(manifest)
        return found[:number]

    def _file(self, number: int, kind: str) -> Path:
        return self.folder / f"round-{number:06}.{kind}"


def _tensors(server: Server) -> Payload:
    """Return the server's state as named tensors, with the part as prefix."""
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
