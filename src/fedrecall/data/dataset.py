"""The form of every data set, tensors for training and test, and the encoding of labels as class numbers."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.cache import checksum
from fedrecall.data.preprocessing import ColumnEncoding, Preprocessing, TextEncoding
from fedrecall.data.token_labels import NO_LABEL
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError, warn_once
from fedrecall.tensor_dict import Inputs, TensorDict, named_tensors

log = logging.getLogger(__name__)

INPUT_TYPES = (torch.uint8, torch.float32, torch.int64, torch.bool)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test examples of a classification task. The constructor validates all fields.

    `from_arrays`, `from_table`, `from_folder`, `from_torch`, `from_huggingface` and `from_clients` build one.

    >>> import fedrecall as fr
    >>> data = fr.from_arrays([[0.0, 1.0], [1.0, 0.0]] * 10, ["left", "right"] * 10, test=0.2)
    >>> data.classes, len(data.train_y), len(data.test_y)
    (('left', 'right'), 16, 4)
    """

    name: str
    train_x: Inputs  # uint8 images [N, C, H, W], float32, int64 or bool of any shape [N, ...], or several by name
    train_y: Tensor  # int64 [N]; labels of tokens [N, L], with NO_LABEL where a token has none
    test_x: Inputs
    test_y: Tensor
    classes: tuple[str, ...]
    train_groups: Tensor | None = None  # origin of each example (writer, domain, client): int64 [N]
    test_groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    test_transform: Transform = Transform()  # applied at test time
    columns: tuple[ColumnEncoding, ...] = ()  # encoding of a table's columns
    scaling: tuple[Tensor, Tensor] | None = None  # mean and standard deviation removed from the inputs
    vocabulary: int | None = None  # number of token ids, of texts
    text: TextEncoding | None = None  # encoding of texts
    train_units: Tensor | None = None  # unit of each example (patient, session) that no split divides: int64 [N]
    test_split: str = ""  # how the test set was chosen, for reports
    # makes the data set again with another test set: split_again(seed=1, test=0.3); None if the test set is not drawn
    split_again: "Callable[..., Dataset] | None" = None

    def __post_init__(self) -> None:
        self._check("training", self.train_x, self.train_y, self.train_groups)
        self._check("test", self.test_x, self.test_y, self.test_groups)
        train, test = input_forms(self.train_x), input_forms(self.test_x)
        if train != test:
            name = next((name for name in train | test if train.get(name) != test.get(name)), "")
            found = (f"{form.get(name, 'missing')}" for form in (train, test))
            raise self._invalid(
                "data.shape_mismatch",
                f"{name or 'inputs'}: training examples are {next(found)}, test examples {next(found)}",
                "test_x",
                "use the same names, shapes and types for both",
            )

    def _check(self, part: str, x: Inputs, y: Tensor, groups: Tensor | None) -> None:
        field = "train" if part == "training" else "test"
        tensors = named_tensors(x, f"{field}_x")
        if not tensors or (len(x) == 0 and part == "training"):
            raise self._invalid("data.empty", f"there are no {part} examples", f"{field}_x", "pass at least one")
        for key, t in tensors.items():
            if len(t) != len(x):
                message = f"{key} has {len(t)} rows, and {next(iter(tensors))} has {len(x)}"
                raise self._invalid("data.length_mismatch", message, key, "pass one row for each example")
            if t.dtype not in INPUT_TYPES:
                hint = "pass uint8 images, float32 numbers, int64 numbers or bool"
                raise self._invalid("data.invalid_inputs", f"{part} inputs are {t.dtype}", key, hint)
            if t.dtype == torch.float32 and not torch.isfinite(t).all():
                raise self._invalid(
                    "data.not_finite",
                    f"{part} inputs have values that are not finite (NaN or infinity)",
                    key,
                    "remove or replace them",
                )
        ids = [("labels", f"{field}_y", y, len(self.classes))]
        if groups is not None:
            ids.append(("groups", f"{field}_groups", groups, len(self.group_names)))
        for kind, key, values, count in ids:
            of_tokens = kind == "labels" and values.ndim == 2
            if values.dtype != torch.int64 or not (values.ndim == 1 or of_tokens):
                raise self._invalid(
                    "data.invalid_labels",
                    f"{part} {kind} are {values.dtype} of shape {list(values.shape)}",
                    key,
                    "pass one vector of whole numbers (int64)",
                )
            if len(values) != len(x):
                message = f"there are {len(x)} {part} inputs but {len(values)} {part} {kind}"
                raise self._invalid("data.length_mismatch", message, key, f"pass one of the {kind} for each input")
            known = values[values != NO_LABEL] if of_tokens else values
            if len(known) == 0:
                continue
            low, high = int(known.min()), int(known.max())
            if low < 0 or high >= count:
                message = f"{part} {kind} are from {low} to {high}"
                raise self._invalid("data.invalid_labels", message, key, f"use values in 0..{count - 1}")

    def _invalid(self, code: str, message: str, key: str, hint: str) -> UserError:
        return UserError(code, f'data "{self.name}": {message}', key, hint)

    def __repr__(self) -> str:
        names = self.group_names
        clients = f", {len(names)} natural clients ({list_names(names)})" if names else ""
        split = f"; test set: {self.test_split}" if self.test_split else ""
        return (
            f'Dataset("{self.name}": {len(self.train_y)} training and {len(self.test_y)} test examples of shape '
            f"{self.shape}, {self.num_classes} classes ({list_names(self.classes)}){clients}{split})"
        )

    @property
    def shape(self) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
        """Shape of one example; of several inputs, their shapes by name."""
        if isinstance(self.train_x, TensorDict):
            return {name: tuple(t.shape[1:]) for name, t in self.train_x.tensors.items()}
        return tuple(self.train_x.shape[1:])

    @cached_property
    def num_values(self) -> dict[str, tuple[int, ...]]:
        """Number of values 0..n-1 of every column of integer inputs, by name ("" for a single input).

        A table's categories as integers have one value more than the encoding has categories, at any number of rows.
        """
        train, test = named_tensors(self.train_x, ""), named_tensors(self.test_x, "")
        rows = {
            name.removeprefix("."): torch.cat([t, test[name]]).view(len(t) + len(test[name]), -1)
            for name, t in train.items()
            if t.dtype == torch.int64
        }
        if sizes := tuple(len(column.categories or ()) + 1 for column in self.columns if column.integers):
            return dict.fromkeys(rows, sizes)  # the rows at hand may lack a category, such as those of a node
        for name, values in rows.items():
            if (values < 0).any():
                message = f"the smallest integer is {values.min()}, and the model has an embedding of the values from 0"
                raise self._invalid("data.invalid_inputs", message, name or "inputs", "use values from 0")
        counts = {name: tuple((values.amax(0) + 1).tolist()) for name, values in rows.items()}
        tokens = {name: (self.vocabulary,) * len(n) for name, n in counts.items() if name in ("", "input_ids")}
        return counts if self.vocabulary is None else counts | tokens

    @property
    def num_classes(self) -> int:
        """Number of classes, including classes without examples."""
        return len(self.classes)

    def preprocessing(self, transform: Transform | None = None) -> Preprocessing:
        """Return the transformation from raw examples to the model's inputs, with another normalisation if passed."""
        transform = self.test_transform if transform is None else transform
        tensors = {name.removeprefix("."): t for name, t in named_tensors(self.train_x, "").items()}
        mean, std = (None, None) if self.scaling is None else (tuple(t.flatten().tolist()) for t in self.scaling)
        return Preprocessing(
            classes=self.classes,
            shapes={name: tuple(t.shape[1:]) for name, t in tensors.items()},
            types={name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()},
            columns=self.columns,
            text=self.text,
            feature_mean=mean,
            feature_std=std,
            pixel_mean=transform.mean,
            pixel_std=transform.std,
            vocabulary=self.vocabulary,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Checksum of the content, independent of file names."""
        parts = ("train_y", "test_y", "train_groups", "test_groups", "train_units")
        tensors = {part: getattr(self, part) for part in parts if getattr(self, part) is not None}
        tensors |= named_tensors(self.train_x, "train_x") | named_tensors(self.test_x, "test_x")
        return checksum(tensors, {"classes": json.dumps(self.classes), "groups": json.dumps(self.group_names)})


def with_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return the data with labels as positions in `classes`. It may lack examples of some of them."""
    for name in dataset.classes:
        if name not in classes:
            raise UserError(
                "data.unknown_class",
                f'class "{name}" is not one of the federation, which has {list_names(classes, 20)}',
                name,
                "rename or remove it",
            )
    positions = torch.tensor([classes.index(name) for name in dataset.classes])
    train_y, test_y = (torch.where(y < 0, y, positions[y.clamp(min=0)]) for y in (dataset.train_y, dataset.test_y))
    return replace(dataset, classes=classes, train_y=train_y, test_y=test_y)


def list_names(names: Sequence[str], limit: int = 5) -> str:
    """Join the first names; an ellipsis stands for the others.

    >>> list_names("abcdefg", 3)
    'a, b, c, ...'
    """
    return ", ".join([*names[:limit], *(["..."] if len(names) > limit else [])])


def input_forms(x: Inputs) -> dict[str, str]:
    """Describe shape and type of the inputs of one example, by name."""
    forms = {name: f"{list(t.shape[1:])} {t.dtype}" for name, t in named_tensors(x, "").items()}
    return {name.removeprefix("."): form for name, form in forms.items()}


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
        if values.dtype.kind == "U":
            _warn_of_blanks(values.tolist(), where)
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


def _warn_of_blanks(values: list[str], where: str) -> None:
    """Warn of texts that are equal but for blanks, such as "cat" and "cat "."""
    by_text: dict[str, str] = {}
    for value in values:
        twin = by_text.setdefault(" ".join(value.split()), value)
        if twin != value:
            warn_once(log, f"{where}: {twin!r} and {value!r} differ by blanks only, and count as two: strip them")
            return


def _label_array(column: Sequence[Any], key: str, where: str) -> np.ndarray[Any, Any]:
    if getattr(column, "is_meta", False):
        raise UserError("data.invalid_labels", f"{where} are a tensor on the meta device", key, "pass their values")
    message = f"{where} are not one whole number or text for each example, with none missing"
    try:
        array = np.asarray(column)
    except ValueError:
        message += "; some are lists of different lengths"
        raise UserError("data.invalid_labels", message, key, "give each example one label") from None
    if array.dtype.kind == "O" and array.ndim == 1 and all(isinstance(value, str) for value in array):
        array = array.astype(str)  # pandas stores text as objects
    kind = array.dtype.kind
    is_integer = kind in "biu" or (kind == "f" and _are_integers(array))
    # numpy turns NaN, a missing value of pandas, into the text "nan" if the other values are text
    is_text = kind in "SU" and (array.ndim != 1 or not any(isinstance(v, float) and isnan(v) for v in column))
    if array.ndim != 1 or not (is_integer or is_text):
        if array.ndim == 1:
            hint = "replace or remove the other values; pass large numbers as integers, not as floats"
        else:
            message, hint = f"{message}; their shape is {list(array.shape)}", "flatten a column, argmax one-hot rows"
        raise UserError("data.invalid_labels", message, key, hint)
    return array.astype(np.int64) if is_integer else array.astype(str)


def _are_integers(array: np.ndarray[Any, Any]) -> bool:
    """Return True if all floats are whole numbers, in the range in which their type has every whole number."""
    exact = 2.0 ** (np.finfo(array.dtype).nmant + 1)
    return bool((np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < exact)).all())
