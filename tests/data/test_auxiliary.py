"""The server's auxiliary set."""

import numpy as np
import pytest
import torch

from fedrecall.data.auxiliary import auxiliary
from fedrecall.errors import UserError

Y = torch.tensor([0] * 5 + [1] * 20 + [2] * 8)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_overlap_takes_per_class_and_leaves_everything() -> None:
    aux, left = auxiliary(Y, 7, "overlap", rng())
    assert torch.bincount(Y[aux]).tolist() == [5, 7, 7]  # a small class gives what it has
    assert left.tolist() == list(range(33))
    assert aux.unique().tolist() == aux.tolist()


def test_holdout_takes_away() -> None:
    aux, left = auxiliary(Y, 4, "holdout", rng())
    assert torch.bincount(Y[aux]).tolist() == [4, 4, 4]
    assert sorted(aux.tolist() + left.tolist()) == list(range(33))
    assert torch.bincount(Y[left]).tolist() == [1, 16, 4]


def test_same_draw_in_both_modes_and_by_the_generator_alone() -> None:
    first = auxiliary(Y, 3, "overlap", rng(4))[0]
    np.random.seed(1)  # noqa: NPY002
    assert torch.equal(first, auxiliary(Y, 3, "holdout", rng(4))[0])
    assert not torch.equal(first, auxiliary(Y, 3, "overlap", rng(5))[0])


def test_bad_input() -> None:
    with pytest.raises(UserError, match="would leave the clients nothing of class 0, which has 5"):
        auxiliary(Y, 5, "holdout", rng())
    with pytest.raises(UserError, match=r'unknown data\.aux "both"'):
        auxiliary(Y, 5, "both", rng())
    with pytest.raises(UserError, match="must not be negative"):
        auxiliary(Y, -1, "overlap", rng())


@pytest.mark.parametrize("mode", ["overlap", "holdout"])
def test_none_at_all(mode: str) -> None:
    aux, left = auxiliary(Y, 0, mode, rng())
    assert len(aux) == 0
    assert len(left) == len(Y)
