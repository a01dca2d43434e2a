"""Partitioners of flwr_datasets, the real ones, without a network."""

import sys

import numpy as np
import pytest

from fedrecall.data.partition import from_flower_partitioner
from fedrecall.errors import UserError

flower = pytest.importorskip("flwr_datasets.partitioner")

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
WRITERS = np.random.default_rng(1).integers(0, 7, 1000)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a partitioner needs no network")

    monkeypatch.setattr("socket.socket.connect", refuse)


def test_iid() -> None:
    p = from_flower_partitioner(flower.IidPartitioner(8), LABELS)
    assert p.sizes.tolist() == [125] * 8
    assert dict(p.partitioner) == {"name": "flwr_datasets.IidPartitioner", "num_partitions": 8}
    assert sorted(p.indices) == list(range(1000))


@pytest.mark.parametrize("column", ["label", "fine_label"])
def test_dirichlet_under_whatever_name_of_the_label(column: str) -> None:
    def partitioner() -> object:
        return flower.DirichletPartitioner(num_partitions=5, partition_by=column, alpha=0.3, seed=3)

    p = from_flower_partitioner(partitioner(), LABELS, WRITERS, seed=3)
    assert sorted(p.indices) == list(range(1000))
    assert p.counts(LABELS, 10).std(axis=0).max() > 15
    assert p.partitioner["alpha"] == [0.3] * 5
    assert from_flower_partitioner(partitioner(), LABELS).hash == p.hash
    p.manifest(LABELS, 10)


def test_shards_and_what_they_leave() -> None:
    p = from_flower_partitioner(flower.ShardPartitioner(10, "label", num_shards_per_partition=2), LABELS)
    assert ((p.counts(LABELS, 10) > 0).sum(axis=1) <= 3).all()
    p = from_flower_partitioner(flower.ShardPartitioner(10, "label", num_shards_per_partition=2, shard_size=20), LABELS)
    (note,) = p.notes
    assert "600 of 1000" in note


def test_pathological_and_its_warning_becomes_a_note() -> None:
    p = from_flower_partitioner(flower.PathologicalPartitioner(10, "label", 2), LABELS)
    assert ((p.counts(LABELS, 10) > 0).sum(axis=1) == 2).all()
    assert len(p.indices) < 1000
    assert "NOT be used" in p.notes[0]


def test_natural_identities_are_the_groups() -> None:
    p = from_flower_partitioner(flower.NaturalIdPartitioner("writer"), LABELS, WRITERS)
    assert [set(WRITERS[p.rows(i)]) for i in range(len(p))] == [{i} for i in range(7)]
    names = np.array(["ann", "bob"])[WRITERS % 2]
    p = from_flower_partitioner(flower.NaturalIdPartitioner("writer"), LABELS, names)
    assert [set(names[p.rows(i)]) for i in range(len(p))] == [{"ann"}, {"bob"}]
    by_label = from_flower_partitioner(flower.NaturalIdPartitioner("label"), LABELS, WRITERS)
    assert (by_label.counts(LABELS, 10) == 100 * np.eye(10)).all()
    other = from_flower_partitioner(flower.DirichletPartitioner(3, "place", 0.5), LABELS, WRITERS, group="place")
    assert sorted(other.indices) == list(range(1000))


def test_the_callers_partitioner_can_be_used_again() -> None:
    partitioner = flower.DirichletPartitioner(5, "label", 0.5)
    assert from_flower_partitioner(partitioner, LABELS).hash == from_flower_partitioner(partitioner, LABELS).hash


def test_refusals_are_one_line() -> None:
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


def test_without_the_extra_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(UserError) as error:
        from_flower_partitioner(object(), LABELS)
    assert (error.value.code, error.value.key) == ("install.missing_extra", "flwr-datasets")
    assert 'pip install ".[flower-datasets]"' in str(error.value)
