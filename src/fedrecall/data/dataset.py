"""The form of every data set, tensors for training and test, and the encoding of labels as class numbers."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.cache import checksum
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of a classification task. The constructor validates all fields.

    `from_arrays`, `from_table`, `from_folder`, `from_torch` and `from_huggingface` build one.

    >>> import fedrecall as fr
    >>> data = fr.from_arrays([[0.0, 1.0], [1.0, 0.0]] * 10, ["left", "right"] * 10, test=0.2)
    >>> data.classes, len(data.train_y), len(data.test_y)
    (('left', 'right'), 16, 4)
    """

    name: str
    train_x: Tensor  # uint8 images [N, C, H, W], or float32 of any shape [N, ...]
    train_y: Tensor  # int64 [N]
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    train_groups: Tensor | None = None  # origin of each example (writer, domain, client): int64 [N]
    test_groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    test_transform: Transform = Transform()  # applied at test time

    def __post_init__(self) -> None:
        self._check("training", self.train_x, self.train_y, self.train_groups)
        self._check("test", self.test_x, self.test_y, self.test_groups)
        if self.train_x.shape[1:] != self.test_x.shape[1:] or self.train_x.dtype != self.test_x.dtype:
            raise self._invalid(
                "data.shape_mismatch",
                f"training examples are {list(self.train_x.shape[1:])} {self.train_x.dtype}, test examples "
                f"{list(self.test_x.shape[1:])} {self.test_x.dtype}",
                "test_x",
                "use one shape and type for both",
            )

    def _check(self, part: str, x: Tensor, y: Tensor, groups: Tensor | None) -> None:
        field = "train" if part == "training" else "test"
        if len(x) == 0:
            raise self._invalid("data.empty", f"there are no {part} examples", f"{field}_x", "pass at least one")
        if x.dtype not in (torch.uint8, torch.float32):
            hint = "pass uint8 images or float32 numbers"
            raise self._invalid("data.invalid_inputs", f"{part} inputs are {x.dtype}", f"{field}_x", hint)
        if x.dtype == torch.float32 and not torch.isfinite(x).all():
            raise self._invalid(
                "data.not_finite",
                f"{part} inputs have values that are not finite (NaN or infinity)",
                f"{field}_x",
                "remove or replace them",
            )
        ids = [("labels", f"{field}_y", y, len(self.classes))]
        if groups is not None:
            ids.append(("groups", f"{field}_groups", groups, len(self.group_names)))
        for kind, key, values, count in ids:
            if values.dtype != torch.int64 or values.ndim != 1:
                raise self._invalid(
                    "data.invalid_labels",
                    f"{part} {kind} are {values.dtype} of shape {list(values.shape)}",
                    key,
                    "pass one vector of whole numbers (int64)",
                )
            if len(values) != len(x):
                message = f"there are {len(x)} {part} inputs but {len(values)} {part} {kind}"
                raise self._invalid("data.length_mismatch", message, key, f"pass one of the {kind} for each input")
            low, high = int(values.min()), int(values.max())
            if low < 0 or high >= count:
                message = f"{part} {kind} are from {low} to {high}"
                raise self._invalid("data.invalid_labels", message, key, f"use values in 0..{count - 1}")

    def _invalid(self, code: str, message: str, key: str, hint: str) -> UserError:
        return UserError(code, f'data "{self.name}": {message}', key, hint)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train_x.shape[1:])

    @property
    def num_classes(self) -> int:
        """Number of classes, including classes without examples."""
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """Checksum of the content, independent of file names."""
        parts = ("train_x", "train_y", "test_x", "test_y", "train_groups", "test_groups")
        tensors = {part: getattr(self, part) for part in parts if getattr(self, part) is not None}
        return checksum(tensors, {"classes": json.dumps(self.classes), "groups": json.dumps(self.group_names)})


def encode_labels(
    columns: Iterable[Sequence[Any]], names: tuple[str, ...] | None, kind: str, data: str | None = None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Encode the values of several splits as numbers 0..K-1, and return these with the K names.

    With `names`, the values must be positions in it. Without, the names are the sorted distinct values. Error messages
    contain `kind` ("labels", "groups" or "clients") and `data`, the name of the data set.
    """
    where = f'data "{data}": {kind}' if data else kind
    arrays = [_label_array(column, kind, where) for column in columns]
    if len({a.dtype.kind for a in arrays if len(a)}) > 1:
        raise UserError(
            "data.invalid_labels",
            f"{where} are numbers in one part of the data and text in another",
            kind,
            "use one type in all parts",
        )
    if names is None:
        values = np.unique(np.concatenate(arrays))
        return [torch.from_numpy(np.searchsorted(values, a)) for a in arrays], tuple(str(v) for v in values)
    for a in arrays:
        if a.dtype.kind != "i" or (len(a) and not 0 <= a.min() <= a.max() < len(names)):
            low, high = (a.min(), a.max()) if a.dtype.kind == "i" else (a[0], a[-1])
            raise UserError(
                "data.invalid_labels",
                f"{where} have values from {low} to {high}",
                kind,
                f"use values in 0..{len(names) - 1}",
            )
    return [torch.from_numpy(a) for a in arrays], names


def _label_array(column: Sequence[Any], key: str, where: str) -> np.ndarray[Any, Any]:
    array = np.asarray(column)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        array = array.astype(str)  # pandas stores text as objects
    kind = array.dtype.kind
    is_integer = kind in "biu" or (kind == "f" and bool((np.isfinite(array) & (array == np.floor(array))).all()))
    if array.ndim != 1 or not (is_integer or kind in "SU"):
        message = f"{where} are not one whole number or text for each example, with none missing"
        if array.ndim == 1:
            hint = "replace or remove the other values"
        else:
            message, hint = f"{message}; their shape is {list(array.shape)}", "flatten a column, argmax one-hot rows"
        raise UserError("data.invalid_labels", message, key, hint)
    return array.astype(np.int64) if is_integer else array.astype(str)
