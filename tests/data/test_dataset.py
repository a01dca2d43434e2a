"""`Dataset` validates its fields; labels are encoded as numbers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrecall.data.dataset import Dataset, encode_labels
from fedrecall.errors import UserError
from fedrecall.tensor_dict import TensorDict

GOOD = Dataset(
    "toy",
    torch.zeros(3, 2),
    torch.tensor([0, 1, 1]),
    torch.zeros(1, 2),
    torch.tensor([0]),
    ("a", "b"),
    train_groups=torch.tensor([0, 0, 1]),
    test_groups=torch.tensor([1]),
    group_names=("x", "y"),
)


@pytest.mark.parametrize(
    ("change", "code", "facts"),
    [
        ({"train_y": torch.tensor([0, 1, 2])}, "data.invalid_labels", ("from 0 to 2", "0..1")),
        ({"test_y": torch.tensor([-1])}, "data.invalid_labels", ("from -1 to -1",)),
        ({"train_y": torch.tensor([0, 1])}, "data.length_mismatch", ("3", "2")),
        ({"train_y": torch.tensor([0.0, 1.0, 1.0])}, "data.invalid_labels", ("int64", "torch.float32")),
        ({"train_x": torch.tensor([[0.0, 1], [float("nan"), 0], [0, 0]])}, "data.not_finite", ()),
        ({"train_x": torch.zeros(3, 2, dtype=torch.float64)}, "data.invalid_inputs", ("torch.float64", "float32")),
        ({"test_x": torch.zeros(1, 3)}, "data.shape_mismatch", ("[2] torch.float32", "[3]")),
        ({"train_x": torch.zeros(0, 2), "train_y": torch.zeros(0, dtype=torch.int64)}, "data.empty", ()),
        ({"train_groups": torch.tensor([0, 0, 2])}, "data.invalid_labels", ("from 0 to 2",)),
        ({"test_groups": torch.tensor([1, 1])}, "data.length_mismatch", ("1", "2")),
    ],
)
def test_a_dataset_checks_itself(change: dict[str, torch.Tensor], code: str, facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        replace(GOOD, **change)
    assert (error.value.code, error.value.key) == (code, next(iter(change)))
    assert all(fact in str(error.value) for fact in ('"toy"', *facts))


def test_the_fingerprint_is_of_the_content() -> None:
    assert GOOD.fingerprint == replace(GOOD, name="other", train_x=GOOD.train_x.clone()).fingerprint
    for change in (
        {"train_x": GOOD.train_x + 1},
        {"train_y": torch.tensor([1, 1, 1])},
        {"classes": ("a", "c")},
        {"train_groups": None},
        {"group_names": ("x", "z")},
    ):
        assert replace(GOOD, **change).fingerprint != GOOD.fingerprint  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    "values",
    [
        *([1, None], [0.5, 1.0], [float("nan"), 1.0], [[1], [2]], [float("inf")]),
        *(["a", float("nan")], [2.0**53, 1.0], np.array([2**24, 1], dtype=np.float32)),
    ],
)
def test_labels_that_cannot_be_encoded(values: Sequence[object]) -> None:
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


def test_large_whole_numbers_are_labels() -> None:
    for values in ([2.0**53 - 1, 1.0], [2**60, 2**60 + 1]):
        assert len(encode_labels([values], None, "labels")[1]) == 2


@pytest.mark.parametrize(("name", "key"), [(None, "inputs"), ("ids", "ids")])
def test_an_embedding_of_negative_integers_is_refused(name: str | None, key: str) -> None:
    parts = (torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.tensor([[0, -1]]))
    train, test = parts if name is None else (TensorDict({name: t}) for t in parts)
    data = replace(GOOD, train_x=train, test_x=test)
    with pytest.raises(UserError) as error:
        _ = data.num_values
    assert (error.value.code, error.value.key) == ("data.invalid_inputs", key)
    assert replace(data, test_x=train[:1]).num_values == {name or "": (5, 6)}
