"""The server's auxiliary set."""

import numpy as np
import pytest
import torch

from fedrecall.data.splits import split_auxiliary
from fedrecall.errors import UserError

Y = torch.tensor([0] * 5 + [1] * 20 + [2] * 8)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_overlap_takes_per_class_and_leaves_everything() -> None:
    aux, left = split_auxiliary(Y, 7, "overlap", rng())
    assert torch.bincount(Y[aux]).tolist() == [5, 7, 7]  # a small class gives what it has
    assert left.tolist() == list(range(33))
    assert aux.unique().tolist() == aux.tolist()


def test_holdout_takes_away() -> None:
    aux, left = split_auxiliary(Y, 4, "holdout", rng())
    assert torch.bincount(Y[aux]).tolist() == [4, 4, 4]
    assert sorted(aux.tolist() + left.tolist()) == list(range(33))
    assert torch.bincount(Y[left]).tolist() == [1, 16, 4]


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
    aux, left = split_auxiliary(Y, 0, mode, rng())
    assert len(aux) == 0
    assert len(left) == len(Y)
