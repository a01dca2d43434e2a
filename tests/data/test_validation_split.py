"""Examples held out from the clients."""

import numpy as np
import pytest

from fedrecall.data.partition import Partition, make_partition
from fedrecall.data.partitioners import Dirichlet, Iid
from fedrecall.data.splits import split_validation
from fedrecall.errors import UserError

LABELS = np.arange(500) % 5
NONE = np.empty(0, dtype=np.int64)


@pytest.fixture
def partition() -> Partition:
    return make_partition(Dirichlet(alpha=0.3, min_size=5), LABELS, None, 8, rng=np.random.default_rng(0), seed=0)


def test_every_client_gives_its_share_and_keeps_the_rest_in_order(partition: Partition) -> None:
    kept, out = split_validation(partition, 0.2, 1, NONE)
    assert len(kept.indices) + len(out) == len(partition.indices)
    assert not set(kept.indices) & set(out)
    assert set(kept.indices) | set(out) == set(partition.indices)
    assert (np.diff(out) > 0).all()
    for client in range(len(partition)):
        before, after = partition.rows(client), kept.rows(client)
        assert len(before) - len(after) == np.ceil(0.2 * len(before))
        assert after.tolist() == [row for row in before if row in set(after)]
    *before, note = kept.notes
    assert tuple(before) == partition.notes
    assert str(len(out)) in note


def test_the_seed_decides(partition: Partition) -> None:
    first, second, other = (split_validation(partition, 0.2, seed, NONE)[1].tolist() for seed in (1, 1, 2))
    assert first == second != other


def test_what_is_spared_stays(partition: Partition) -> None:
    spared = np.arange(0, 500, 2)
    kept, out = split_validation(partition, 0.5, 1, spared)
    assert not set(out) & set(spared)
    assert set(spared) <= set(kept.indices)
    for client in range(len(partition)):
        free = np.setdiff1d(partition.rows(client), spared)
        assert len(np.intersect1d(out, partition.rows(client))) == min(np.ceil(0.5 * len(free)), max(0, len(free) - 1))


def test_nobody_can_give_anything() -> None:
    alone = make_partition(Iid(), LABELS[:3], None, 3, rng=np.random.default_rng(0), seed=0)
    with pytest.raises(UserError) as error:
        split_validation(alone, 0.2, 0, NONE)
    assert (error.value.code, error.value.key) == ("data.cannot_hold_out", "federation.clients")
