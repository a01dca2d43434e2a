"""Every decoder of what others wrote, as a function of bytes: it returns, or raises one of its declared errors.

The corpus (`tests/system/corpus/<decoder>/`) has valid files and files that once broke a decoder. A new finding belongs
there, as a file of its own.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError

import fedrecall as fr
from fedrecall.core.privacy import PrivacyLedger
from fedrecall.data.partition import Partition
from fedrecall.data.tabular import from_table
from fedrecall.files import tensors_from_bytes
from fedrecall.flower.codec import EncodedTensor, InvalidMessage, decode
from fedrecall.runs.checkpoints import CLIENT_STATE_FOLDER, Checkpoints, _manifest_checksum
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.inference import DeployedModel
from fedrecall.runs.predictions import PREDICTIONS_FILE, load_predictions
from fedrecall.runs.setup import load_weights, prepare_run
from fedrecall.studies.results import read_json, read_records
from fedrecall.studies.study import Study
from fedrecall.studies.tuning.trials import SEARCH_FILE, TRIALS_FILE, SearchFolder
from support.tiny_federation import flat, server

CORPUS = Path(__file__).parents[1] / "system" / "corpus"
Decoder = Callable[[bytes, Path], object]


def read_message(content: bytes, folder: Path) -> None:
    """Decode a payload whose parts are written as JSON: name -> [dtype, shape, bytes in hex]."""
    try:
        fields = {str(k): (str(a), tuple(int(n) for n in b), bytes.fromhex(c)) for k, (a, b, c) in _json(content)}
    except (ValueError, TypeError, RecursionError, AttributeError, OverflowError):
        return  # the transport delivers dtype, shape and bytes
    with suppress(InvalidMessage):
        for t in decode({name: EncodedTensor(*part) for name, part in fields.items()}).values():
            t.isfinite().all()


def _json(content: bytes) -> list[tuple[str, list[object]]]:
    return list(json.loads(content).items())


def read_tensors(content: bytes, folder: Path) -> None:
    with suppress(SafetensorError):
        tensors_from_bytes(content)


def read_model(content: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with suppress(fr.UserError):
        load_weights(torch.nn.Linear(2, 2), folder / "model.safetensors")


def read_checkpoint(content: bytes, folder: Path) -> None:
    """Restore a checkpoint with these tensors, and checksums that fit: a forger can compute them."""
    manifest = {"round": 1, "tensors": sha256(content).hexdigest(), "memories": {}, "record": {}, "clients": {}}
    _restore(manifest, content, folder)


def read_manifest(content: bytes, folder: Path) -> None:
    """Restore a checkpoint with this manifest, signed."""
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        manifest = None
    _restore(
        manifest if isinstance(manifest, dict) else content, (CORPUS / "checkpoint" / "valid").read_bytes(), folder
    )


def _restore(manifest: dict[str, object] | bytes, tensors: bytes, folder: Path) -> None:
    checkpoints = folder / "checkpoints"
    (checkpoints / CLIENT_STATE_FOLDER).mkdir(parents=True, exist_ok=True)
    (checkpoints / "round-000001.safetensors").write_bytes(tensors)
    if isinstance(manifest, dict):
        manifest["checksum"] = _manifest_checksum(manifest)
        manifest = json.dumps(manifest).encode()
    (checkpoints / "round-000001.json").write_bytes(manifest)
    saved, fresh = Checkpoints(checkpoints).latest(), server(flat(), fr.Method())
    if saved is not None and saved.matches(fresh):
        saved.restore_server(fresh)


def read_file(name: str, read: Callable[[Path], object]) -> Decoder:
    """Return the decoder of a file that is read by its path in a folder."""

    def decoder(content: bytes, folder: Path) -> None:
        (folder / name).write_bytes(content)
        with suppress(fr.UserError):
            read(folder / name)

    return decoder


def read_partition(manifest: bytes, rows: bytes, folder: Path) -> None:
    (folder / "partition.json").write_bytes(manifest)
    (folder / "partition.safetensors").write_bytes(rows)
    with suppress(fr.UserError):
        Partition.load(folder)


def read_image(content: bytes, folder: Path) -> None:
    for name in ("cat", "dog"):
        (folder / name).mkdir(exist_ok=True)
        for i in range(2):
            (folder / name / f"{i}.png").write_bytes((CORPUS / "image" / "valid-png").read_bytes())
    (folder / "cat" / "1.png").write_bytes(content)
    with suppress(fr.UserError):
        fr.from_folder(folder)


def read_preprocessing(content: bytes, folder: Path) -> None:
    (folder / "preprocess.json").write_bytes(content)
    with suppress(fr.UserError):
        DeployedModel.load(folder, fr.Experiment(model={"name": "mlp"}))


def read_environment(content: bytes, folder: Path) -> None:
    """Open the directory of an interrupted run, and of a finished one."""
    directory = RunDirectory(folder)
    (folder / "environment.json").write_bytes(content)
    for read in (
        lambda: directory.differences(SETUP),
        lambda: directory.num_forced_resumes,
        directory.state_file,
    ):
        with suppress(fr.UserError):
            read()


def read_search(content: bytes, folder: Path) -> None:
    (folder / SEARCH_FILE).write_text("trials = 1\n")
    (folder / TRIALS_FILE).write_bytes(content)
    with suppress(fr.UserError):
        SearchFolder(folder).open({"trials": 1})


SETUP = prepare_run(fr.Experiment())

DECODERS: dict[str, Decoder] = {
    "message": read_message,
    "tensors": read_tensors,
    "model": read_model,
    "checkpoint": read_checkpoint,
    "manifest": read_manifest,
    "config": read_file("config.toml", fr.Experiment.load),
    "study": read_file("study.toml", lambda path: Study.load(path.parent)),
    "rounds": read_file("rounds.jsonl", read_records),
    "summary": read_file("summary.json", read_json),
    "partition": lambda content, folder: read_partition(content, (CORPUS / "rows" / "valid").read_bytes(), folder),
    "rows": lambda content, folder: read_partition((CORPUS / "partition" / "valid").read_bytes(), content, folder),
    "csv": read_file("table.csv", lambda path: from_table(path, "kind")),
    "parquet": read_file("table.parquet", lambda path: from_table(path, "kind")),
    "image": read_image,
    "preprocess": read_preprocessing,
    "predictions": read_file(PREDICTIONS_FILE, lambda path: load_predictions(path.parent)),
    "ledger": read_file("privacy.jsonl", lambda path: PrivacyLedger.load(path).epsilon(1e-5)),
    "environment": read_environment,
    "trials": read_search,
}

EDITS = ("flip", "put", "cut", "repeat", "shorten")


def edited(content: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    """Return a file with bytes flipped, replaced, removed, repeated or the rest cut off."""
    out = bytearray(content)
    for kind, place, new in changes:
        at = place % (len(out) + 1)
        if kind == "flip" and at < len(out):
            out[at] ^= 1 << (place % 8)
        elif kind == "put":
            out[at : at + len(new)] = new
        elif kind == "cut":
            del out[at : at + 1 + len(new)]
        elif kind == "repeat":
            out[at:at] = out[max(0, at - 16) : at] * (1 + len(new))
        elif kind == "shorten":
            del out[at:]
    return bytes(out)
