"""Tests of fedrecall.tensor_dict."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch.func import vmap

from fedrecall.tensor_dict import TensorDict, concatenate, named_tensors

X = TensorDict({"a": torch.arange(12).view(4, 3), "b": torch.tensor([0.5, 1.5, 2.5, 3.5])})


def test_rows_are_selected_in_every_tensor() -> None:
    for rows in (slice(1, 3), torch.tensor([1, 2]), torch.tensor([False, True, True, False])):
        part = X[rows]
        assert (len(part), part["a"].tolist(), part["b"].tolist()) == (2, [[3, 4, 5], [6, 7, 8]], [1.5, 2.5])
    assert X[0:2]["a"].data_ptr() == X["a"].data_ptr()


def test_is_unpacked_as_keyword_arguments() -> None:
    assert dict(**X).keys() == {"a", "b"}
    with pytest.raises(TypeError):
        list(X)


def test_copies_keep_names_and_order() -> None:
    for copied in (deepcopy(X), pickle.loads(pickle.dumps(X)), X.to(torch.device("cpu"))):
        assert copied.names == ("a", "b")
        assert all(torch.equal(copied[name], X[name]) for name in X.names)


def test_vmap_maps_over_the_rows_of_every_tensor() -> None:
    sums = vmap(lambda x: x["a"].sum() + x["b"])(X)
    assert sums.tolist() == [3.5, 13.5, 23.5, 33.5]


def test_parts_are_concatenated_by_name() -> None:
    both = concatenate([X[:1], X[2:]])
    assert isinstance(both, TensorDict)
    assert both["b"].tolist() == [0.5, 2.5, 3.5]
    assert torch.equal(concatenate([torch.ones(1, 2), torch.zeros(1, 2)]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


def test_names_of_one_tensor_and_of_several() -> None:
    assert list(named_tensors(X, "x")) == ["x.a", "x.b"]
    assert list(named_tensors(X["a"], "x")) == ["x"]
