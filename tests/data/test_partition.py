"""A partition as an object: its description, its files, what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedrecall.data.partition import Partition, make_partition
from fedrecall.data.partitioners import Dirichlet, Iid, Ints, LabelsPerClient, Partitioner
from fedrecall.errors import UserError

CIFAR10 = np.repeat(np.arange(10), 5000)


def make(law: Partitioner, labels: Ints, clients: int, seed: int = 0) -> Partition:
    return make_partition(law, labels, None, clients, rng=np.random.default_rng(seed), seed=seed)


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


def test_altered_or_damaged_files_are_refused(tmp_path: Path) -> None:
    p, other = (make(Iid(), CIFAR10, 10, seed) for seed in (0, 1))
    p.save(tmp_path, CIFAR10, 10)
    manifest = (tmp_path / "partition.json").read_text()
    other.save(tmp_path, CIFAR10, 10)
    (tmp_path / "partition.json").write_text(manifest)

    def refused(directory: Path) -> str:
        with pytest.raises(UserError) as error:
            Partition.load(directory)
        assert error.value.key == str(directory)
        return error.value.code

    assert refused(tmp_path) == "partition.altered"
    (tmp_path / "partition.safetensors").write_bytes(b"nothing")
    assert refused(tmp_path) == "partition.damaged"
    (tmp_path / "partition.json").write_text("{}")
    assert refused(tmp_path) == "partition.damaged"
    assert refused(tmp_path / "nowhere") == "partition.unreadable_file"


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
def test_what_is_no_partition_cannot_be_built(indices: list[int], offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        Partition(np.array(indices), np.array(offsets), 3, {"name": "x"}, 0)


def test_rows_of_a_client_that_is_not_there() -> None:
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
