"""Stratified hold-out, the server's auxiliary set, and the clients' validation data."""

from datetime import date

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrecall.data.partition import Partition, make_partition
from fedrecall.data.partitioners import Dirichlet, Iid
from fedrecall.data.splits import (
    first_per_group,
    hold_out_of_clients,
    holdout_rows,
    last_rows,
    split_auxiliary,
    stratified_holdout,
)
from fedrecall.errors import UserError

Y = torch.tensor([0] * 5 + [1] * 20 + [2] * 8)
LABELS = np.arange(500) % 5
NONE = np.empty(0, dtype=np.int64)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.floats(0.01, 0.99), st.integers(0, 5))
def test_holding_out_is_a_split_of_every_group(ids: list[int], fraction: float, seed: int) -> None:
    groups = torch.tensor(ids)
    training, out = stratified_holdout(groups, fraction, seed)
    assert sorted(training.tolist() + out.tolist()) == list(range(len(ids)))
    for g in set(ids):
        n, held_out = ids.count(g), int((groups[out] == g).sum())
        assert held_out == min(-int(-(fraction * n - 1e-9) // 1), n - 1)
        assert held_out >= 1 or n == 1
        assert held_out < n
    assert torch.equal(stratified_holdout(groups, fraction, seed)[1], out)


def test_holding_out_rounds_up_only_what_is_broken() -> None:
    assert len(stratified_holdout(torch.zeros(30, dtype=torch.int64), 0.1, 0)[1]) == 3
    assert len(stratified_holdout(torch.zeros(295, dtype=torch.int64), 0.2, 0)[1]) == 59
    assert not torch.equal(stratified_holdout(Y, 0.5, 0)[1], stratified_holdout(Y, 0.5, 1)[1])


def test_first_of_each_group() -> None:
    assert first_per_group(torch.tensor([1, 0, 1, 1, 0, 2]), 2).tolist() == [0, 1, 2, 4, 5]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_overlap_copies_per_class_and_removes_nothing() -> None:
    aux, remaining = split_auxiliary(Y, 7, "overlap", rng())
    assert torch.bincount(Y[aux]).tolist() == [5, 7, 7]  # a small class gives what it has
    assert remaining.tolist() == list(range(33))
    assert aux.unique().tolist() == aux.tolist()


def test_holdout_removes_from_training() -> None:
    aux, remaining = split_auxiliary(Y, 4, "holdout", rng())
    assert torch.bincount(Y[aux]).tolist() == [4, 4, 4]
    assert sorted(aux.tolist() + remaining.tolist()) == list(range(33))
    assert torch.bincount(Y[remaining]).tolist() == [1, 16, 4]


def test_same_draw_in_both_modes_and_by_the_generator_alone() -> None:
    first = split_auxiliary(Y, 3, "overlap", rng(4))[0]
    np.random.seed(1)  # noqa: NPY002
    assert torch.equal(first, split_auxiliary(Y, 3, "holdout", rng(4))[0])
    assert not torch.equal(first, split_auxiliary(Y, 3, "overlap", rng(5))[0])


def test_bad_input() -> None:
    for per_class, mode, code, key, fact in (
        (5, "holdout", "data.cannot_hold_out", "data.aux_per_class", "class 0"),
        (5, "both", "config.unknown_name", "data.aux", '"both"'),
        (-1, "overlap", "config.invalid_value", "data.aux_per_class", "-1"),
    ):
        with pytest.raises(UserError) as error:
            split_auxiliary(Y, per_class, mode, rng())
        assert (error.value.code, error.value.key) == (code, key)
        assert fact in str(error.value)


@pytest.mark.parametrize("mode", ["overlap", "holdout"])
def test_none_at_all(mode: str) -> None:
    aux, remaining = split_auxiliary(Y, 0, mode, rng())
    assert len(aux) == 0
    assert len(remaining) == len(Y)


@pytest.fixture
def partition() -> Partition:
    return make_partition(Dirichlet(alpha=0.3, min_size=5), LABELS, None, 8, rng=np.random.default_rng(0), seed=0)


def hold_out(
    partition: Partition, share: float, seed: int, excluded: np.ndarray = NONE, units: np.ndarray | None = None
) -> tuple[Partition, Partition]:
    def client_rng(client: int) -> np.random.Generator:
        return np.random.default_rng([seed, client])

    return hold_out_of_clients(partition, share, client_rng, excluded=excluded, units=units, key="data.validation")


def test_every_client_holds_out_its_share_and_keeps_the_order(partition: Partition) -> None:
    kept, out = hold_out(partition, 0.2, 1)
    assert len(kept.indices) + len(out.indices) == len(partition.indices)
    assert not set(kept.indices) & set(out.indices)
    for client in range(len(partition)):
        before, after, held = partition.rows(client), kept.rows(client), out.rows(client)
        assert len(held) == np.ceil(0.2 * len(before))
        assert after.tolist() == [row for row in before if row in set(after)]
        assert held.tolist() == [row for row in before if row in set(held)]
    *before, note = kept.notes
    assert tuple(before) == partition.notes
    assert str(len(out.indices)) in note


def test_the_seed_decides(partition: Partition) -> None:
    first, second, other = (hold_out(partition, 0.2, seed)[1].hash for seed in (1, 1, 2))
    assert first == second != other


def test_a_client_draws_the_same_alone_and_among_others(partition: Partition) -> None:
    """A node knows its own rows only."""
    together = hold_out(partition, 0.3, 1)[1]
    for client in (0, 3):
        rows = partition.rows(client)
        offsets = np.where(np.arange(len(partition) + 1) > client, len(rows), 0)
        alone = Partition(np.arange(len(rows)), offsets, len(rows), {"name": "node"}, 0)
        held_out = hold_out(alone, 0.3, 1)[1]
        assert rows[held_out.rows(client)].tolist() == together.rows(client).tolist()


def test_excluded_rows_are_not_held_out(partition: Partition) -> None:
    spared = np.arange(0, 500, 2)
    kept, out = hold_out(partition, 0.5, 1, spared)
    assert not set(out.indices) & set(spared)
    assert set(spared) <= set(kept.indices)
    for client in range(len(partition)):
        free = np.setdiff1d(partition.rows(client), spared)
        assert len(out.rows(client)) == min(np.ceil(0.5 * len(free)), max(0, len(free) - 1))


def test_no_unit_is_divided_among_training_and_held_out_rows(partition: Partition) -> None:
    units = np.arange(500) // 7  # spread over the clients
    for excluded in (NONE, np.arange(0, 500, 50)):
        kept, out = hold_out(partition, 0.3, 1, excluded, units)
        assert not set(units[kept.indices]) & set(units[out.indices])
        assert not set(units[excluded]) & set(units[out.indices])
        assert 0.1 < len(out.indices) / 500 < 0.4


def test_no_client_has_rows_to_hold_out() -> None:
    alone = make_partition(Iid(), LABELS[:3], None, 3, rng=np.random.default_rng(0), seed=0)
    with pytest.raises(UserError) as error:
        hold_out(alone, 0.2, 0)
    assert (error.value.code, error.value.key) == ("data.cannot_hold_out", "data.validation")


def test_whole_units_are_held_out_for_testing() -> None:
    y = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0] * 10)
    units = torch.arange(80) // 2  # each unit has one class
    train, test = holdout_rows(y, 0.25, 0, units)
    assert not set(units[train].tolist()) & set(units[test].tolist())
    assert torch.bincount(y[test]).tolist() == [10, 10]
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(80))
    assert len(holdout_rows(y, 0.0, 0, units)[1]) == len(holdout_rows(y, 0.0, 0)[1]) == 0


@pytest.mark.parametrize(
    "odd", ["22.01.2020", "1/22/2020", "2020-1-22", "20", "2020-01-22 9:00", "2020-01-22 03:00 PM", "January"]
)
def test_times_that_alphabetical_order_does_not_sort_are_refused(odd: str) -> None:
    with pytest.raises(UserError) as error:
        last_rows(["2020-01-21", odd], 0.5)
    assert (error.value.code, error.value.key) == ("data.invalid_inputs", "time")
    assert odd in str(error.value)


@pytest.mark.parametrize(
    "times",
    [
        ["2020-01-22", "2019-12-31", "2020-01-03"],
        ["2020-01-22T10:30:00.5Z", "2020-01-22T09:30:00Z", "2020-01-22T09:31:00Z"],
        ["2020-01-22 10:30:00+01:00", "2019-01-22 10:30:00+01:00", "2020-01-21 10:30:00+01:00"],
        ["2021", "2019", "2020"],
        ["2021-10", "2021-08", "2021-09"],
        [3, 1, 2],
        [10.5, 9.5, 9.75],
        [date(2020, 10, 1), date(2020, 9, 1), date(2020, 9, 30)],
    ],
)
def test_the_last_times_are_held_out(times: list[object]) -> None:
    rest, held_out = last_rows(times, 0.3)
    assert (rest.tolist(), held_out.tolist()) == ([1, 2], [0])
