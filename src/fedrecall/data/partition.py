"""The partition of samples over clients: made by a partitioner of this library or of Flower, saved and verified."""

import hashlib
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as dump_tensors

from fedrecall.data.partitioners import PARTITIONERS, GroupIds, Ints, Partitioner
from fedrecall.errors import UserError, first_line, missing_extra
from fedrecall.files import parse_json, write_atomic

log = logging.getLogger(__name__)

MAX_LISTED_CLIENTS = 10_000  # with more clients the manifest has no count matrix

ROW_COLUMN = "__row__"  # row numbers in the data passed to a Flower partitioner


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows of each client, stored in two arrays, so that a million clients need only megabytes."""

    indices: Ints  # rows of the data set, client after client
    offsets: Ints  # client i has indices[offsets[i]:offsets[i+1]] [N+1]
    samples: int  # size of the data set; rows that are not in `indices` are unused
    partitioner: Mapping[str, Any]  # name and parameters
    seed: int
    notes: tuple[str, ...] = ()  # deviations from the partitioner's rule

    def __post_init__(self) -> None:
        bounds = self.offsets[0] == 0 and self.offsets[-1] == len(self.indices) and (np.diff(self.offsets) >= 0).all()
        in_range = len(self.indices) == 0 or 0 <= self.indices.min() <= self.indices.max() < self.samples
        if not (bounds and in_range and np.bincount(self.indices, minlength=1).max() <= 1):
            raise ValueError("a partition's offsets must rise from 0 to its length, and its rows be valid and distinct")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, client: int) -> Ints:
        """Return the rows of a client, as a view."""
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        """Samples of each client [N]."""
        return np.diff(self.offsets)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the rows of every client, in order; the same on every machine."""
        digest = hashlib.sha256()
        for part in (self.offsets, self.indices):
            digest.update(np.ascontiguousarray(part, dtype="<i8").data)
        return digest.hexdigest()

    def counts(self, labels: Ints, classes: int) -> Ints:
        """Count samples by client and class [N, K]."""
        if len(labels) != self.samples:
            raise UserError(
                "partition.other_data",
                f"{len(labels)} labels, but the partition is of {self.samples} samples",
                "labels",
                "use the data set that the partition was made for",
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
            raise UserError(
                "data.invalid_labels",
                f"labels are from {labels.min()} to {labels.max()}; {classes} classes have labels 0 to {classes - 1}",
                "labels",
                "correct the labels, or the number of classes",
            )
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * classes + labels[self.indices], minlength=len(self) * classes)
        return flat.reshape(len(self), classes)

    def manifest(self, labels: Ints, classes: int) -> dict[str, Any]:
        """Describe the partition as data for JSON."""
        sizes, notes = self.sizes, list(self.notes)
        counts = None
        if len(self) <= MAX_LISTED_CLIENTS:
            counts = self.counts(labels, classes).tolist()
        else:
            notes.append(f"the count matrix is omitted above {MAX_LISTED_CLIENTS} clients")
        return {
            "law": dict(self.partitioner),
            "seed": self.seed,
            "hash": self.hash,
            "clients": len(self),
            "samples": self.samples,
            "unused": self.samples - len(self.indices),
            "sizes": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
            "notes": notes,
            "counts": counts,
        }

    def save(
        self, directory: Path, labels: Ints, classes: int, names: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Write `partition.safetensors` (the rows) and `partition.json` (the manifest), each atomically.

        `names` are entries of the manifest: names of classes and clients.
        """
        directory.mkdir(parents=True, exist_ok=True)
        arrays = {"indices": self.indices, "offsets": self.offsets}
        write_atomic(directory / "partition.safetensors", dump_tensors(arrays))
        manifest = self.manifest(labels, classes) | {key: list(found) for key, found in (names or {}).items()}
        write_atomic(directory / "partition.json", json.dumps(manifest, indent=1).encode())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the files that `save` wrote; raise an error if they changed since."""
        try:
            manifest = parse_json((directory / "partition.json").read_text())
            arrays = load_tensors((directory / "partition.safetensors").read_bytes())
            partitioner, seed, notes = manifest["law"], manifest["seed"], tuple(manifest["notes"])
            partition = cls(arrays["indices"], arrays["offsets"], manifest["samples"], partitioner, seed, notes)
            intact = partition.hash == manifest["hash"]
        except OSError as e:
            raise UserError(
                "partition.unreadable_file",
                f"{directory}: cannot read the partition: {e.strerror or first_line(e)}",
                str(directory),
                "run the experiment again",
            ) from e
        except (SafetensorError, KeyError, ValueError, TypeError, IndexError) as e:
            raise UserError(
                "partition.damaged",
                f"{directory}: the files of the partition are damaged",
                str(directory),
                "restore partition.json and partition.safetensors, or run the experiment again",
            ) from e
        if not intact:
            raise UserError(
                "partition.altered",
                f"{directory}: the partition changed after it was saved (its hash differs)",
                str(directory),
                "restore partition.json and partition.safetensors",
            )
        return partition


def make_partition(
    partitioner: Partitioner,
    labels: Ints,
    groups: GroupIds | None,
    clients: int,
    *,
    rng: np.random.Generator,
    seed: int,
    shuffled: bool = True,
) -> Partition:
    """Partition the samples over the clients. `seed` is only recorded; random numbers are drawn from `rng`.

    Each client's rows are shuffled, or with `shuffled = False` in the order of the data set, as on a real node.
    """
    if clients < 1:
        raise UserError(
            "config.invalid_value", f"federation.clients = {clients}: too few", "federation.clients", "use at least 1"
        )
    if clients > len(labels):
        raise UserError(
            "partition.too_many_clients",
            f"federation.clients = {clients}: the data has {len(labels)} samples",
            "federation.clients",
            f"use at most {len(labels)} clients",
        )
    if groups is not None and len(groups) != len(labels):
        raise UserError(
            "data.length_mismatch",
            f"{len(labels)} labels but {len(groups)} groups",
            "groups",
            "pass one group for each sample",
        )
    owner, notes = partitioner.assign(labels, groups, clients, rng)
    if len(owner) != len(labels) or owner.max() >= clients:
        name = type(partitioner).__name__
        raise ValueError(f"{name} must return a client below {clients} for each of {len(labels)} samples")
    order = rng.permutation(len(labels)) if shuffled else np.arange(len(labels))
    order = order[owner[order] >= 0]
    indices = order[np.argsort(owner[order], kind="stable")]
    sizes = np.bincount(owner[order], minlength=clients)
    return _checked(indices, sizes, len(labels), _describe(partitioner), seed, notes)


def from_flower_partitioner(
    partitioner: Any, labels: Ints, groups: GroupIds | None = None, *, group: str = "group", seed: int = 0
) -> Partition:
    """Partition the samples with a partitioner of `flwr_datasets` (the extra `flower-datasets`).

    The partitioner divides by the groups if its column is named `group`, or if it is a natural-id partitioner and its
    column is not named "label"; otherwise by the labels. `seed` is only recorded: the partitioner has its own. Its
    warnings become notes.
    """
    try:
        from datasets import Dataset
        from flwr_datasets import partitioner as flower
    except ImportError as e:
        raise missing_extra("flwr-datasets", "flower-datasets") from e
    name = type(partitioner).__name__
    if not isinstance(partitioner, flower.Partitioner) or name.startswith("Vertical"):  # these divide columns
        raise UserError(
            "partition.unsupported_partitioner",
            f"{name}: not a flwr_datasets partitioner of samples",
            name,
            "pass one such as IidPartitioner(10)",
        )
    if partitioner.is_dataset_assigned():
        raise UserError(
            "partition.unsupported_partitioner",
            f"{name}: this partitioner already has a data set and divides only once",
            name,
            "pass a new one",
        )
    column = getattr(partitioner, "_partition_by", "label")
    natural = isinstance(partitioner, flower.NaturalIdPartitioner | flower.GroupedNaturalIdPartitioner)
    by_group = column == group or (natural and column != "label")
    if by_group and groups is None:
        raise UserError(
            "partition.missing_groups",
            f'{name}: the partitioner divides by "{column}", the group of each sample, and this data has no groups',
            name,
            "name the column that holds them, or use a partitioner that divides by label",
        )
    partitioner = deepcopy(partitioner)  # the caller can use its own again
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            partitioner.dataset = Dataset.from_dict(
                {column: groups if by_group else labels, ROW_COLUMN: np.arange(len(labels))}
            )
            parts = [
                np.asarray(partitioner.load_partition(client).with_format("numpy")[ROW_COLUMN][:], dtype=np.int64)
                for client in range(partitioner.num_partitions)
            ]
        raised = [w for w in caught if w.category is UserWarning]  # the others are deprecations in its libraries
        notes = tuple(dict.fromkeys(" ".join(str(w.message).split()) for w in raised))
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        return _checked(np.concatenate(parts), sizes, len(labels), _describe_flower(partitioner), seed, notes)
    except (ValueError, KeyError, TypeError, IndexError) as e:
        raise UserError(
            "partition.partitioner_failed",
            f"{name}: the partitioner cannot divide this data ({' '.join(str(e).split())})",
            name,
            "change its arguments",
        ) from e


def _checked(
    indices: Ints, sizes: Ints, samples: int, partitioner: Mapping[str, Any], seed: int, notes: tuple[str, ...]
) -> Partition:
    """Build a partition: raise an error for empty clients, and log the notes."""
    if not sizes.all():
        raise UserError(
            "partition.empty_client",
            f"federation.partition = {partitioner['name']}: {np.count_nonzero(sizes == 0)} of {len(sizes)} clients"
            f" would have no samples (client {np.argmin(sizes)} is the first)",
            "federation.partition",
            "use fewer clients or a milder skew",
        )
    unused = samples - len(indices)
    if unused and not notes:
        notes = (f"{unused} of {samples} samples stay unused",)
    for note in notes:
        log.warning("%s partition: %s", partitioner["name"], note)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return Partition(indices, offsets, samples, partitioner, seed, notes)


def _describe(partitioner: Partitioner) -> dict[str, Any]:
    names = {kind: name for name, kind in PARTITIONERS.items()}
    return {"name": names.get(type(partitioner), type(partitioner).__name__), **asdict(partitioner)}


def _describe_flower(partitioner: Any) -> dict[str, Any]:
    """Return the name and the constructor arguments that the partitioner stores as plain values."""
    values = {p: getattr(partitioner, f"_{p}", None) for p in signature(type(partitioner)).parameters}
    values = {p: v.tolist() if isinstance(v, np.ndarray) else v for p, v in values.items()}
    plain = {p: v for p, v in values.items() if isinstance(v, bool | int | float | str | list)}
    return {"name": f"flwr_datasets.{type(partitioner).__name__}", **plain}
