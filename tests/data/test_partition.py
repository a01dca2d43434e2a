"""Partitions: description, files, invalid ones; partitioners of flwr_datasets."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecall.data.partition import Partition, from_flower_partitioner, make_partition
from fedrecall.data.partitioners import Dirichlet, Iid, Ints, LabelsPerClient, Partitioner
from fedrecall.errors import UserError

CIFAR10 = np.repeat(np.arange(10), 5000)


def make(partitioner: Partitioner, labels: Ints, clients: int, seed: int = 0) -> Partition:
    return make_partition(partitioner, labels, None, clients, rng=np.random.default_rng(seed), seed=seed)


def test_manifest_is_plain_data() -> None:
    labels = np.array([0, 0, 1, 1, 1, 2])
    p = make(Iid(), labels, 2, seed=5)
    manifest = p.manifest(labels, 3)
    assert manifest == json.loads(json.dumps(manifest))
    assert manifest["law"] == {"name": "iid"}
    assert manifest["seed"] == 5
    assert manifest["sizes"] == {"min": 3, "median": 3.0, "max": 3}
    assert np.sum(manifest["counts"], axis=0).tolist() == [2, 3, 1]
    assert make(Dirichlet(), CIFAR10, 10).manifest(CIFAR10, 10)["law"] == {
        "name": "dirichlet",
        "alpha": 0.5,
        "min_size": 10,
        "balance": True,
        "attempts": 300_000,
    }


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    p = make(LabelsPerClient(1), CIFAR10, 8, seed=3)
    p.save(tmp_path / "run", CIFAR10, 10)
    q = Partition.load(tmp_path / "run")
    assert (q.hash, q.partitioner, q.seed, q.notes, q.samples) == (p.hash, p.partitioner, p.seed, p.notes, p.samples)
    assert (q.indices == p.indices).all()
    assert sorted(f.name for f in (tmp_path / "run").iterdir()) == ["partition.json", "partition.safetensors"]


def test_hash_is_the_same_on_every_machine() -> None:
    p = Partition(np.array([2, 0, 1]), np.array([0, 1, 3]), 3, {"name": "x"}, 0)
    assert p.hash == "28c3ee97079095ff64a091be5cfd74360d463002badc15f0e22086f23aaf86c4"


def test_altered_or_damaged_files_are_errors(tmp_path: Path) -> None:
    p, other = (make(Iid(), CIFAR10, 10, seed) for seed in (0, 1))
    p.save(tmp_path, CIFAR10, 10)
    manifest = (tmp_path / "partition.json").read_text()
    other.save(tmp_path, CIFAR10, 10)
    (tmp_path / "partition.json").write_text(manifest)

    def error_code(directory: Path) -> str:
        with pytest.raises(UserError) as error:
            Partition.load(directory)
        assert error.value.key == str(directory)
        return error.value.code

    assert error_code(tmp_path) == "partition.altered"
    (tmp_path / "partition.safetensors").write_bytes(b"nothing")
    assert error_code(tmp_path) == "partition.damaged"
    (tmp_path / "partition.json").write_text("{}")
    assert error_code(tmp_path) == "partition.damaged"
    assert error_code(tmp_path / "nowhere") == "partition.unreadable_file"


@pytest.mark.parametrize(
    ("indices", "offsets"),
    [
        ([0, 0], [0, 1, 2]),
        ([0, 3], [0, 1, 2]),
        ([0, -1], [0, 1, 2]),
        ([0, 1], [0, 2, 1]),
        ([0, 1], [0, 1]),
        ([0, 1], [1, 2]),
    ],
)
def test_invalid_indices_are_errors(indices: list[int], offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        Partition(np.array(indices), np.array(offsets), 3, {"name": "x"}, 0)


def test_rows_of_an_unknown_client() -> None:
    p = make(Iid(), CIFAR10, 10)
    for client in (-1, 10):
        with pytest.raises(IndexError):
            p.rows(client)


def test_counts_of_other_labels() -> None:
    p = make(Iid(), CIFAR10, 10)
    with pytest.raises(UserError) as error:
        p.counts(CIFAR10[:10], 10)
    assert (error.value.code, error.value.key) == ("partition.other_data", "labels")
    assert "50000" in str(error.value)
    with pytest.raises(UserError) as error:
        p.counts(CIFAR10, 9)
    assert (error.value.code, error.value.key) == ("data.invalid_labels", "labels")
    assert "from 0 to 9" in str(error.value)


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
WRITERS = np.random.default_rng(1).integers(0, 7, 1000)


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the partitioners of flwr_datasets, without a network."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a partitioner needs no network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    return pytest.importorskip("flwr_datasets.partitioner")


def test_flower_iid(flower: Any) -> None:
    p = from_flower_partitioner(flower.IidPartitioner(8), LABELS)
    assert p.sizes.tolist() == [125] * 8
    assert dict(p.partitioner) == {"name": "flwr_datasets.IidPartitioner", "num_partitions": 8}
    assert sorted(p.indices) == list(range(1000))


@pytest.mark.parametrize("column", ["label", "fine_label"])
def test_flower_dirichlet_by_any_label_column(flower: Any, column: str) -> None:
    def partitioner() -> object:
        return flower.DirichletPartitioner(num_partitions=5, partition_by=column, alpha=0.3, seed=3)

    p = from_flower_partitioner(partitioner(), LABELS, WRITERS, seed=3)
    assert sorted(p.indices) == list(range(1000))
    assert p.counts(LABELS, 10).std(axis=0).max() > 15
    assert p.partitioner["alpha"] == [0.3] * 5
    assert from_flower_partitioner(partitioner(), LABELS).hash == p.hash
    p.manifest(LABELS, 10)


def test_flower_shards_and_dropped_rows(flower: Any) -> None:
    p = from_flower_partitioner(flower.ShardPartitioner(10, "label", num_shards_per_partition=2), LABELS)
    assert ((p.counts(LABELS, 10) > 0).sum(axis=1) <= 3).all()
    p = from_flower_partitioner(flower.ShardPartitioner(10, "label", num_shards_per_partition=2, shard_size=20), LABELS)
    (note,) = p.notes
    assert "600 of 1000" in note


def test_flower_pathological_warning_becomes_a_note(flower: Any) -> None:
    p = from_flower_partitioner(flower.PathologicalPartitioner(10, "label", 2), LABELS)
    assert ((p.counts(LABELS, 10) > 0).sum(axis=1) == 2).all()
    assert len(p.indices) < 1000
    assert "NOT be used" in p.notes[0]


def test_flower_natural_ids_are_the_groups(flower: Any) -> None:
    p = from_flower_partitioner(flower.NaturalIdPartitioner("writer"), LABELS, WRITERS)
    assert [set(WRITERS[p.rows(i)]) for i in range(len(p))] == [{i} for i in range(7)]
    names = np.array(["ann", "bob"])[WRITERS % 2]
    p = from_flower_partitioner(flower.NaturalIdPartitioner("writer"), LABELS, names)
    assert [set(names[p.rows(i)]) for i in range(len(p))] == [{"ann"}, {"bob"}]
    by_label = from_flower_partitioner(flower.NaturalIdPartitioner("label"), LABELS, WRITERS)
    assert (by_label.counts(LABELS, 10) == 100 * np.eye(10)).all()
    other = from_flower_partitioner(flower.DirichletPartitioner(3, "place", 0.5), LABELS, WRITERS, group="place")
    assert sorted(other.indices) == list(range(1000))


def test_flower_partitioner_of_the_caller_can_be_used_again(flower: Any) -> None:
    partitioner = flower.DirichletPartitioner(5, "label", 0.5)
    assert from_flower_partitioner(partitioner, LABELS).hash == from_flower_partitioner(partitioner, LABELS).hash


def test_flower_errors_are_one_line(flower: Any) -> None:
    used = flower.IidPartitioner(5)
    used._dataset = object()
    for partitioner, codes, fact in [
        (flower.NaturalIdPartitioner("writer"), {"partition.missing_groups"}, '"writer"'),
        (flower.SizePartitioner([900, 900]), {"partition.partitioner_failed"}, ""),
        (flower.VerticalEvenPartitioner(2), {"partition.unsupported_partitioner"}, "IidPartitioner"),
        ("iid", {"partition.unsupported_partitioner"}, "IidPartitioner"),
        (used, {"partition.unsupported_partitioner"}, "new"),
        (flower.IidPartitioner(2000), {"partition.empty_client", "partition.partitioner_failed"}, ""),
    ]:
        with pytest.raises(UserError) as e:
            from_flower_partitioner(partitioner, LABELS)
        assert e.value.code in codes
        assert e.value.key in (type(partitioner).__name__, "federation.partition")
        assert fact in str(e.value)
        assert "\n" not in str(e.value)


def test_error_without_flwr_datasets_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(UserError) as error:
        from_flower_partitioner(object(), LABELS)
    assert (error.value.code, error.value.key) == ("install.missing_extra", "flwr-datasets")
    assert 'pip install ".[flower-datasets]"' in str(error.value)
