"""Partitioners: every sample once, the properties of each, and impossible settings."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall.data.partition import Partition, make_partition
from fedrecall.data.partitioners import (
    PARTITIONERS,
    Assignment,
    Dirichlet,
    Groups,
    Iid,
    Ints,
    LabelsPerClient,
    Partitioner,
    Quantity,
    Shards,
)
from fedrecall.errors import UserError

CIFAR10 = np.repeat(np.arange(10), 5000)
INVALID = "config.invalid_value"


def make(partitioner: Partitioner, labels: Ints, clients: int, seed: int = 0, groups: Ints | None = None) -> Partition:
    return make_partition(partitioner, labels, groups, clients, rng=np.random.default_rng(seed), seed=seed)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Partitioner, Ints, int, int, Ints]:
    partitioner_name = draw(st.sampled_from(sorted(PARTITIONERS)))
    values = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True))  # some numbers are no class
    labels = np.array(draw(st.lists(st.sampled_from(values), min_size=1, max_size=200)), dtype=np.int64)
    clients = draw(st.integers(1, len(labels)))
    groups = np.array(draw(st.lists(st.integers(0, 9), min_size=len(labels), max_size=len(labels))), dtype=np.int64)
    C = len(np.unique(labels))
    alpha = 10.0 ** draw(st.floats(-6, 6))
    size = draw(st.integers(1, len(labels) // clients))
    partitioner: Partitioner
    match partitioner_name:
        case "dirichlet":
            partitioner = Dirichlet(alpha, size, draw(st.booleans()), attempts=draw(st.integers(1, 50)))
        case "quantity":
            partitioner = Quantity(alpha, size)
        case "labels":
            partitioner = LabelsPerClient(draw(st.integers(1, C)))
        case "shards":
            clients = max(1, clients // C) * C
            partitioner = Shards(draw(st.integers(1, 3)))
        case "groups":
            clients = min(clients, len(np.unique(groups)))
            partitioner = Groups()
        case _:
            partitioner = Iid()
    return partitioner, labels, clients, draw(st.integers(0, 2**63 - 1)), groups


@settings(max_examples=400, deadline=None)
@given(cases())
def test_every_index_exactly_once(case: tuple[Partitioner, Ints, int, int, Ints]) -> None:
    partitioner, labels, clients, seed, groups = case
    if isinstance(
        partitioner, LabelsPerClient | Shards
    ):  # the two that may leave a client empty: small classes, cut too finely
        try:
            p = make(partitioner, labels, clients, seed, groups)
        except UserError:
            return
    p = make(partitioner, labels, clients, seed, groups)
    assert len(p) == clients
    assert sum(len(p.rows(i)) for i in range(clients)) == len(p.indices)
    assert len(np.unique(p.indices)) == len(p.indices)
    if len(p.indices) < len(labels):
        assert isinstance(partitioner, LabelsPerClient)
        assert f"{len(labels) - len(p.indices)} samples stay unused" in p.notes[0]
    counts = p.counts(labels, 13)
    assert (counts.sum(axis=1) == p.sizes).all()
    assert all((np.bincount(labels[p.rows(i)], minlength=13) == counts[i]).all() for i in range(clients))
    match partitioner:
        case Iid():
            assert np.ptp(p.sizes) <= 1
        case Dirichlet() | Quantity():
            assert p.sizes.min() >= partitioner.min_size
        case LabelsPerClient():
            assert ((counts > 0).sum(axis=1) <= partitioner.k).all()
        case Shards():
            assert ((counts > 0).sum(axis=1) <= partitioner.s).all()
        case Groups():
            assert all(len({i for i in range(clients) if g in groups[p.rows(i)]}) == 1 for g in np.unique(groups))
    again = make(partitioner, labels, clients, seed, groups)
    assert again.hash == p.hash
    assert (again.indices == p.indices).all()


def test_the_seed_decides() -> None:
    for partitioner in (Iid(), Dirichlet(), LabelsPerClient(), Shards(), Quantity()):
        assert make(partitioner, CIFAR10, 10, 0).hash != make(partitioner, CIFAR10, 10, 1).hash


def test_a_client_has_its_rows_shuffled() -> None:
    rows = make(Groups(), CIFAR10, 10, groups=CIFAR10).rows(3)
    assert sorted(rows) == list(range(15_000, 20_000))
    assert (np.diff(rows) < 0).sum() > 2_000


def test_labels_k_classes_each_and_client_i_has_class_i() -> None:
    counts = make(LabelsPerClient(2), CIFAR10, 10).counts(CIFAR10, 10)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert (np.diag(counts) > 0).all()
    assert np.ptp(make(LabelsPerClient(10), CIFAR10, 100).counts(CIFAR10, 10)) == 0
    chosen = [tuple(np.flatnonzero(make(LabelsPerClient(2), CIFAR10, 10, s).counts(CIFAR10, 10)[0])) for s in range(60)]
    assert {pair[1] for pair in chosen} == set(range(1, 10))


def test_a_class_that_no_client_drew_is_unused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        p = make(LabelsPerClient(1), CIFAR10, 8)
    (note,) = p.notes
    assert "8, 9" in note
    assert "10000" in note
    assert note in caplog.text
    assert p.manifest(CIFAR10, 10)["unused"] == 10_000


def test_shards_are_equal_and_at_most_s_classes() -> None:
    p = make(Shards(2), CIFAR10, 100)
    counts = p.counts(CIFAR10, 10)
    assert (p.sizes == 500).all()
    classes_held = (counts > 0).sum(axis=1)
    assert set(classes_held) == {1, 2}  # a client may be dealt one class twice
    assert (counts > p.sizes[:, None] / 10).sum(axis=1).tolist() == classes_held.tolist()  # all held are majority
    assert np.ptp(make(Shards(2), CIFAR10[:-7], 100).sizes) <= 2  # leftovers


def test_as_many_clients_as_groups_keep_their_order() -> None:
    names = np.array(["webcam", "amazon", "dslr", "amazon", "caltech"])
    labels = np.zeros(5, dtype=np.int64)
    p = make_partition(Groups(), labels, names, 4, rng=np.random.default_rng(0), seed=0)
    assert [set(names[p.rows(i)]) for i in range(4)] == [{"amazon"}, {"caltech"}, {"dslr"}, {"webcam"}]
    writers = np.arange(1000) % 50
    p = make(Groups(), np.zeros(1000, dtype=np.int64), 7, groups=writers)
    assert sorted(len(set(writers[p.rows(i)])) for i in range(7)) == [7] * 6 + [8]


def test_quantity_skews_sizes_not_labels() -> None:
    p = make(Quantity(0.5), CIFAR10, 20)
    assert p.sizes.max() > 5 * p.sizes.min()
    large = p.counts(CIFAR10, 10)[p.sizes.argmax()]
    assert large.std() < 0.15 * large.mean()
    assert np.ptp(make(Quantity(1e6), CIFAR10, 20).sizes) < 50


def test_a_million_clients_are_a_few_megabytes() -> None:
    labels = np.arange(1_100_000) % 10
    p = make(Iid(), labels, 1_000_000)
    assert p.indices.nbytes + p.offsets.nbytes < 20e6
    manifest = p.manifest(labels, 10)
    assert manifest["counts"] is None
    assert "10000" in manifest["notes"][-1]


@dataclass(frozen=True)
class EvenOdd:
    flip: bool = True

    def assign(self, labels: Ints, groups: object, clients: int, rng: np.random.Generator) -> Assignment:
        return Assignment((np.arange(len(labels)) + self.flip) % 2)


def test_a_users_partitioner_is_described_by_its_fields() -> None:
    p = make(EvenOdd(), np.zeros(10, dtype=np.int64), 2)
    assert dict(p.partitioner) == {"name": "EvenOdd", "flip": True}
    with pytest.raises(ValueError, match="EvenOdd"):
        make(EvenOdd(), np.zeros(10, dtype=np.int64), 1)


@pytest.mark.parametrize(
    ("partitioner", "clients", "code", "key", "remedy"),
    [
        (Iid, 0, INVALID, "federation.clients", ["1"]),
        (Iid, 101, "partition.too_many_clients", "federation.clients", ["100"]),
        (Dirichlet, 11, "partition.too_many_clients", "federation.clients", ["partition.min_size", "9", "10 clients"]),
        (Quantity, 11, "partition.too_many_clients", "federation.clients", ["partition.min_size", "9"]),
        (lambda: Dirichlet(alpha=0.0), 2, INVALID, "federation.partition.alpha", ["at least"]),
        (lambda: Dirichlet(alpha=float("nan")), 2, INVALID, "federation.partition.alpha", ["finite"]),
        (lambda: Quantity(alpha=float("inf")), 2, INVALID, "federation.partition.alpha", ["finite"]),
        (lambda: Dirichlet(min_size=0), 2, INVALID, "federation.partition.min_size", ["at least 1"]),
        (lambda: Dirichlet(attempts=0), 2, INVALID, "federation.partition.attempts", ["at least 1"]),
        (lambda: LabelsPerClient(0), 2, INVALID, "federation.partition.k", ["at least 1"]),
        (lambda: LabelsPerClient(6), 2, INVALID, "federation.partition.k", ["5"]),
        (lambda: Shards(0), 5, INVALID, "federation.partition.s", ["at least 1"]),
        (lambda: Shards(2), 4, "partition.not_divisible", "federation.partition.s", ["s = 5", "clients = 5"]),
        (lambda: Shards(1), 1, "partition.not_divisible", "federation.partition.s", ["s = 5", "clients = 5"]),
        (lambda: Shards(3), 11, "partition.not_divisible", "federation.partition.s", ["s = 5", "clients = 10"]),
        (lambda: Shards(90), 5, "partition.empty_client", "federation.partition", ["clients"]),
        (Groups, 2, "partition.missing_groups", "federation.partition", ["data.client", "iid", "dirichlet"]),
    ],
)
def test_impossible_partitions_are_errors_with_a_remedy(
    partitioner: Callable[[], Partitioner], clients: int, code: str, key: str, remedy: list[str]
) -> None:
    labels = np.repeat(np.arange(5), 20)
    if code == "partition.empty_client":
        labels = labels[::20]
    with pytest.raises(UserError) as e:
        make(partitioner(), labels, clients)
    assert (e.value.code, e.value.key) == (code, key)
    assert all(fact in str(e.value) for fact in remedy)
    assert "\n" not in str(e.value)


def test_the_hint_for_shards_works() -> None:
    labels = np.repeat(np.arange(6), 200)
    for s in range(1, 8):
        for clients in range(1, 20):
            if s * clients % 6 == 0:
                make(Shards(s), labels, clients)
                continue
            with pytest.raises(UserError) as error:
                make(Shards(s), labels, clients)
            assert error.value.code == "partition.not_divisible"
            better_s, better_clients = map(int, re.findall(r"= (\d+)", error.value.hint or ""))
            make(Shards(better_s), labels, clients)
            make(Shards(s), labels, better_clients)


def test_groups_must_match_the_clients() -> None:
    groups = np.arange(100) % 3
    with pytest.raises(UserError) as error:
        make(Groups(), np.zeros(100, dtype=np.int64), 4, groups=groups)
    assert (error.value.code, error.value.key) == ("partition.too_many_clients", "federation.clients")
    assert "3" in str(error.value.hint)
    with pytest.raises(UserError) as error:
        make(Groups(), np.zeros(100, dtype=np.int64), 3, groups=groups[:50])
    assert (error.value.code, error.value.key) == ("data.length_mismatch", "groups")
