"""Views of the store, numbering, holding out."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrecall.core.types import Examples as Protocol
from fedrecall.data.dataset import encode_labels
from fedrecall.data.examples import Examples
from fedrecall.data.splits import first_per_group, stratified_holdout
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError

X = torch.arange(10 * 3 * 4 * 4, dtype=torch.int64).remainder(256).to(torch.uint8).view(10, 3, 4, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
NORMAL = Transform(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def test_it_is_what_the_core_asks_for() -> None:
    examples: Protocol = Examples(X, Y, NORMAL)
    assert len(examples) == 10
    assert not examples.is_augmented


def test_a_view_of_a_view_shares_the_store() -> None:
    whole = Examples(X, Y, NORMAL)
    odd = whole.subset(torch.tensor([1, 3, 5, 7, 9]))
    some = odd.subset(torch.tensor([4, 0]))
    assert some.y.tolist() == [0, 1]
    assert len(some) == 2
    assert some.x.data_ptr() == X.data_ptr()
    assert torch.equal(some.batch(slice(0, 2)), NORMAL.apply_test(X[[9, 1]]))
    assert torch.equal(some.batch(torch.tensor([1])), NORMAL.apply_test(X[[1]]))
    assert some.class_counts(4).tolist() == [1, 1, 0, 0]
    assert some.y is some.y
    assert whole.y is Y


def test_batches_are_augmented_only_with_a_generator() -> None:
    flipping = Examples(X, Y, Transform(flip=True))
    assert flipping.is_augmented
    rows = torch.arange(10)
    first = flipping.batch(rows, torch.Generator().manual_seed(0))
    assert torch.equal(first, flipping.batch(slice(None), torch.Generator().manual_seed(0)))
    assert not torch.equal(first, flipping.batch(rows))
    plain = Examples(X, Y, Transform())
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert torch.equal(plain.batch(rows, generator), plain.batch(rows))
    assert torch.equal(before, generator.get_state())


def test_float_examples_of_any_shape() -> None:
    table = torch.randn(10, 7, generator=torch.Generator().manual_seed(0))
    examples = Examples(table, Y, Transform(), torch.tensor([2, 2, 8]))
    assert torch.equal(examples.batch(torch.tensor([0, 1, 2])), table[[2, 2, 8]])
    assert Examples(table, Y, Transform()).batch(slice(2, 5)).data_ptr() == table[2:].data_ptr()


def test_numbering_is_dense_ordered_and_common_to_all_parts() -> None:
    (a, b), names = encode_labels([["cat", "ant"], ["dog", "cat"]], None, "labels")
    assert (a.tolist(), b.tolist(), names) == ([1, 0], [2, 1], ("ant", "cat", "dog"))
    (a,), names = encode_labels([np.array([10, 2, 10])], None, "labels")
    assert (a.tolist(), names, a.dtype) == ([1, 0, 1], ("2", "10"), torch.int64)
    (a,), _ = encode_labels([torch.tensor([1.0, 0.0])], None, "labels")
    assert a.tolist() == [1, 0]
    (a,), names = encode_labels([np.array(["b", "a"], dtype=object)], None, "labels")
    assert names == ("a", "b")
    assert encode_labels([[2, 0]], ("x", "y", "z"), "labels")[1] == ("x", "y", "z")


@pytest.mark.parametrize("values", [[1, None], [0.5, 1.0], [float("nan"), 1.0], [[1], [2]], [float("inf")]])
def test_what_cannot_be_numbered(values: list[object]) -> None:
    with pytest.raises(UserError) as error:
        encode_labels([values], None, "labels")
    assert (error.value.code, error.value.key) == ("data.invalid_labels", "labels")


@pytest.mark.parametrize(
    ("columns", "names", "facts"),
    [
        ([[0, 3]], ("a", "b", "c"), ("from 0 to 3", "0..2")),
        ([[-1]], ("a", "b", "c"), ("from -1", "0..2")),
        ([["a", "b"]], ("a", "b", "c"), ("from a to b", "0..2")),
        ([["a"], [1]], None, ()),
    ],
)
def test_numbers_out_of_range_of_the_names(
    columns: list[list[object]], names: tuple[str, ...] | None, facts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as error:
        encode_labels(columns, names, "labels")
    assert (error.value.code, error.value.key) == ("data.invalid_labels", "labels")
    assert all(fact in str(error.value) for fact in facts)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.floats(0.01, 0.99), st.integers(0, 5))
def test_holding_out_is_a_split_of_every_group(ids: list[int], fraction: float, seed: int) -> None:
    groups = torch.tensor(ids)
    stay, out = stratified_holdout(groups, fraction, seed)
    assert sorted(stay.tolist() + out.tolist()) == list(range(len(ids)))
    for g in set(ids):
        n, held = ids.count(g), int((groups[out] == g).sum())
        assert held == min(-int(-(fraction * n - 1e-9) // 1), n - 1)
        assert held >= 1 or n == 1
        assert held < n
    assert torch.equal(stratified_holdout(groups, fraction, seed)[1], out)


def test_holding_out_rounds_up_only_what_is_broken() -> None:
    assert len(stratified_holdout(torch.zeros(30, dtype=torch.int64), 0.1, 0)[1]) == 3
    assert len(stratified_holdout(torch.zeros(295, dtype=torch.int64), 0.2, 0)[1]) == 59
    assert not torch.equal(stratified_holdout(Y, 0.5, 0)[1], stratified_holdout(Y, 0.5, 1)[1])


def test_first_of_each_group() -> None:
    assert first_per_group(torch.tensor([1, 0, 1, 1, 0, 2]), 2).tolist() == [0, 1, 2, 4, 5]
