"""Conversion of a user's inputs to tensors: arrays, dictionaries, items of torch datasets, Hugging Face columns."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedrecall.data.cache import CachedTensors, cached, file_states, has_node_cache
from fedrecall.data.readers import ColumnNames, RawSplit, decode_images, missing_column_error, read_dataset
from fedrecall.errors import UserError, first_line
from fedrecall.tensor_dict import Inputs, TensorDict

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset

LABEL_KEYS = ("label", "labels", "y", "target")  # names of the label in the dictionaries of a torch dataset


@dataclass(frozen=True)
class RawExamples:
    """Inputs with labels and clients as the user specifies them, before encoding as numbers."""

    x: Inputs
    y: Sequence[Any]
    clients: Sequence[Any] | None = None
    groups: Sequence[Any] | None = None
    """Group of each example, such as a patient, that no split divides."""
    times: Sequence[Any] | None = None
    """Time of each example, by which the last ones are held out."""


def to_inputs(x: Any, name: str) -> Inputs:
    """Convert inputs to one tensor, or a dictionary of them to tensors by name, without a copy where possible."""
    if not isinstance(x, Mapping | TensorDict):
        return to_input_tensor(x, name)
    tensors = dict(x if isinstance(x, Mapping) else x.tensors)
    if not tensors:
        message = f'data "{name}": the dictionary of inputs is empty'
        raise UserError("data.empty", message, "inputs", "pass at least one")
    converted = {str(key): to_input_tensor(values, name, str(key)) for key, values in tensors.items()}
    first = next(iter(converted))
    for key, t in converted.items():
        if len(t) != len(converted[first]):
            message = f'data "{name}": "{key}" has {len(t)} rows, and "{first}" has {len(converted[first])}'
            raise UserError("data.length_mismatch", message, key, "pass one row for each example")
    return TensorDict(converted)


def to_input_tensor(x: Any, name: str, key: str | None = None) -> Tensor:
    """Convert inputs [N, ...] to a tensor: images to uint8 [N, C, H, W], integers to int64, other numbers to float32.

    `key` is the name of the tensor among several. One of several may have one number per example, its bytes are images
    only if they have the shape of images, and booleans stay: they are a mask.
    """
    where = f'data "{name}": ' + ("inputs" if key is None else f'"{key}"')
    if isinstance(x, Tensor) and x.is_meta:
        message = f"{where} are a tensor on the meta device, which has no values"
        raise UserError("data.invalid_inputs", message, key or "inputs", "pass a tensor with values")
    if isinstance(x, Tensor) and x.layout is not torch.strided:
        x = x.to_dense()
    is_sparse = hasattr(x, "toarray")  # a sparse matrix, as of scikit-learn's text vectorizers
    try:
        array = _to_numpy(x.toarray() if is_sparse else x)
    except ValueError as error:
        raise UserError(
            "data.shape_mismatch",
            f"{where} are not all of one shape ({first_line(error)})",
            key or "inputs",
            "bring them to one shape; pad sequences to one length",
        ) from error
    if array.dtype.kind in "OSU" and array.ndim > 0:
        raise UserError(
            "data.invalid_inputs",
            f"{where} must be numbers of shape [examples, ...], and some are text",
            key or "inputs",
            "turn texts into numbers; for a table with columns of text use fedrecall.from_table",
        )
    if array.dtype.kind not in "biuf" or array.ndim < (2 if key is None else 1):
        raise UserError(
            "data.invalid_inputs",
            f"{where} are {array.dtype} of shape {list(array.shape)}",
            key or "inputs",
            "pass numbers of shape [examples, ...]",
        )
    if 0 in array.shape[1:]:
        message = f"{where} have shape {list(array.shape)}: an example has no number"
        raise UserError("data.empty", message, key or "inputs", "pass at least one feature")
    if array.dtype != np.uint8 or (key is not None and array.ndim not in (3, 4)):
        is_feature = array.dtype.kind == "f" or is_sparse or (array.dtype.kind == "b" and key is None)
        kind = np.float32 if is_feature else np.bool_ if array.dtype.kind == "b" else np.int64
        return _from_numpy(np.ascontiguousarray(array, dtype=kind))
    tensor = _from_numpy(np.ascontiguousarray(array))
    if tensor.ndim == 3:
        return tensor.unsqueeze(1)
    channels_last = tensor.ndim == 4 and tensor.shape[3] in (1, 3, 4) and tensor.shape[1] not in (1, 3, 4)
    return tensor.permute(0, 3, 1, 2).contiguous() if channels_last else tensor


def _to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return an array, of a tensor without a copy where possible."""
    if not isinstance(x, Tensor):
        return np.asarray(x)
    x = x.detach().cpu()
    array: np.ndarray[Any, Any] = (x.float() if x.dtype == torch.bfloat16 else x).numpy()  # numpy has no bfloat16
    return array


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # the tensor is never written to
        return torch.from_numpy(array)


def read_items(data: "TorchDataset[Any]", name: str) -> RawExamples:
    """Read all items of a map-style torch dataset: pairs (x, y) whose x may be a dictionary, or dictionaries with y."""
    if not hasattr(data, "__len__"):
        raise UserError(
            "data.unsupported_type",
            f'data "{name}": the torch dataset is a stream, without length and index',
            "data",
            "pass a map-style dataset",
        )
    xs, ys = [], []
    for i in range(len(data)):
        x, y = _pair(data[i], f'data "{name}": item {i} of the torch dataset')
        xs.append({k: _to_numpy(v) for k, v in x.items()} if isinstance(x, Mapping) else _to_numpy(x))
        ys.append(_to_label(y))
    if not xs:
        return RawExamples(to_input_tensor(np.empty((0, 1)), name), ys)
    if isinstance(xs[0], dict):
        names = xs[0].keys()
        if odd := next((i for i, x in enumerate(xs) if not isinstance(x, dict) or x.keys() != names), None):
            raise UserError(
                "data.shape_mismatch",
                f'data "{name}": item {odd} has other inputs than item 0, which has {", ".join(names)}',
                "inputs",
                "return the same inputs for every item",
            )
        return RawExamples(to_inputs({key: _stack([x[key] for x in xs], name, key) for key in names}, name), ys)
    return RawExamples(to_input_tensor(_stack(xs, name, "inputs"), name), ys)


def _to_label(y: Any) -> Any:
    """Return the number of an array or a tensor with one; several, such as a one-hot row, as a list."""
    if not hasattr(y, "item"):
        return y
    return y.item() if prod(y.shape) == 1 else y.tolist()


def _pair(item: Any, where: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        label = next((key for key in LABEL_KEYS if key in item), None)
        if label is None:
            raise UserError(
                "data.missing_column",
                f"{where} has no label (keys: {', '.join(map(str, item))})",
                "data",
                f"name it {' or '.join(LABEL_KEYS[:2])}",
            )
        return {key: value for key, value in item.items() if key != label}, item[label]
    try:
        x, y = item
    except (TypeError, ValueError):
        message = f"{where} is neither a pair (x, y) nor a dictionary"
        raise UserError("data.unsupported_type", message, "data", "return one of these from the dataset") from None
    return x, y


def _stack(arrays: Sequence[Any], name: str, key: str) -> np.ndarray[Any, Any]:
    if len({a.shape for a in arrays}) > 1:
        raise UserError(
            "data.shape_mismatch",
            f'data "{name}": the {key} are not all of one shape',
            key,
            "resize images and pad sequences in the torch dataset",
        )
    return np.stack(arrays)


def read_columns(
    data: "HubDataset", inputs: str | Sequence[str] | None, label: str, client: str | None, size: int | None, name: str
) -> tuple[RawExamples, tuple[str, ...] | None]:
    """Read columns of a Hugging Face dataset, with the names of its classes.

    Several columns of one number each are one vector, as in a table. Other columns are inputs by name.
    """
    images = [column for column, feature in data.features.items() if type(feature).__name__ == "Image"]
    if inputs is None and len(images) != 1:
        raise UserError(
            "data.missing_column",
            f'data "{name}": the columns of the inputs are not named',
            "inputs",
            f"set inputs to one or more of {', '.join(data.column_names)}",
        )
    chosen = images if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    for column in chosen:
        if column not in data.column_names:
            raise missing_column_error(name, column, data.column_names)
    raw = read_dataset(data, name, ColumnNames(chosen[0], label, client))
    if chosen == images[:1]:
        return from_images(raw._replace(total=len(data)), name, None, size), raw.classes
    decoded = {
        column: decode_images(read_dataset(data, name, ColumnNames(column, label, client)), name, None, size)[0]
        for column in chosen
        if column in images
    }
    rows = data.select_columns([c for c in data.column_names if c not in images]).with_format("numpy")[:]
    columns = {column: decoded.get(column, rows.get(column)) for column in chosen}
    x: Inputs
    if all(np.ndim(values) == 1 and np.asarray(values).dtype.kind != "O" for values in columns.values()):
        x = to_input_tensor(np.column_stack(list(columns.values())), name)
    elif len(chosen) == 1:
        x = to_input_tensor(_rows_of(columns[chosen[0]]), name)
    else:
        x = to_inputs({column: _rows_of(values) for column, values in columns.items()}, name)
    return RawExamples(x, rows[label], None if client is None else rows[client]), raw.classes


def read_texts(
    data: "HubDataset", text: str, label: str, client: str | None, name: str
) -> tuple[tuple[list[Any], list[Any], list[Any] | None], tuple[str, ...] | None]:
    """Read texts, labels and clients of a Hugging Face dataset, with the names of its classes."""
    for column in (text, label, client):
        if column is not None and column not in data.column_names:
            raise missing_column_error(name, column, data.column_names)
    names = getattr(data.features[label], "names", None)
    columns = data[text][:], data[label][:], None if client is None else data[client][:]
    return columns, None if names is None else tuple(names)


def _rows_of(values: Any) -> Any:
    """Return a column of lists, which the library gives as objects if their lengths differ, as rows."""
    return list(values) if np.asarray(values).dtype.kind == "O" else values


def from_images(split: RawSplit, name: str, channels: int | None, size: int | None) -> RawExamples:
    """Decode the images of a split. In a private cache, as a Flower node has, those of a folder are decoded once."""
    if not split.files or split.problems or not has_node_cache():
        return RawExamples(*decode_images(split, name, channels, size))

    def decode() -> CachedTensors:
        x, y, groups = decode_images(split, name, channels, size)
        return {"x": x, "y": torch.tensor(y)}, {"groups": json.dumps(groups)}

    key = {"files": file_states(split.files), "classes": split.classes, "channels": channels, "size": size}
    tensors, about = cached("folder", key, decode)
    return RawExamples(tensors["x"], tensors["y"].tolist(), json.loads(about["groups"]))
