"""Anyone's own data: arrays, a torch or Hugging Face dataset, a folder of images, a table. Each becomes a `Dataset`.

Where no test data is given, some of every class is held out for it. Where a client is named for every example, the
clients are the groups of the data set, ready for the partition "groups".
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedrecall.data.datasets import Dataset
from fedrecall.data.examples import holdout, numbered
from fedrecall.data.source import Columns, Table, class_folders, decoded, folder_table, hub_table
from fedrecall.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from datasets import DatasetDict as HubDatasetDict
    from pyarrow import ChunkedArray

_CATEGORIES = 50  # a column of words with more of them is an identifier or free text, not a feature
_TEST_NAMES = ("test", "validation", "valid", "val")  # in this order


@dataclass(frozen=True)
class _Part:
    """Examples as their owner has them: labels and clients are not numbered yet."""

    x: Tensor
    y: Sequence[Any]
    clients: Sequence[Any] | None = None


def from_arrays(
    x: Any,
    y: Sequence[Any],
    *,
    test: float | tuple[Any, Sequence[Any]] = 0.2,
    clients: Sequence[Any] | None = None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> Dataset:
    """Arrays, tensors or lists. `test` is the share to hold out, or a pair (x, y).

    uint8 images may be [N, C, H, W], [N, H, W, C] or [N, H, W]; the model sees them in [0, 1]. All else is taken as
    float numbers, as it is. Labels and clients are whole numbers or words; with `classes`, labels are positions in it.
    """
    apart = _Part(_inputs(test[0], name), test[1]) if isinstance(test, tuple) else test
    names = None if classes is None else tuple(classes)
    return _dataset(name, _Part(_inputs(x, name), y, clients), apart, names, seed)


def from_torch(
    data: "TorchDataset[Any]",
    *,
    test: "float | TorchDataset[Any]" = 0.2,
    clients: Sequence[Any] | None = None,
    name: str = "torch",
    seed: int = 0,
) -> Dataset:
    """A map-style torch dataset of pairs (x, y). It is read once, so random transforms in it would be frozen."""
    apart = _pairs(test, name) if isinstance(test, TorchDataset) else test
    return _dataset(name, replace(_pairs(data, name), clients=clients), apart, None, seed)


def from_huggingface(
    data: "HubDataset | HubDatasetDict",
    *,
    inputs: str | Sequence[str] | None = None,
    label: str = "label",
    client: str | None = None,
    test: float = 0.2,
    size: int | None = None,
    name: str = "huggingface",
    seed: int = 0,
) -> Dataset:
    """A Hugging Face dataset: `inputs` names the column of images (found if there is one) or the columns of numbers.

    Of a dictionary of splits, "train" is trained on, and "test" or else "validation" is the test set; without either,
    the share `test` is held out.
    """
    splits = data if isinstance(data, dict) else {"train": data}
    if "train" not in splits:
        raise UserError(f'data "{name}" has no split "train", only {", ".join(splits)}; pass one split')
    other = next((splits[key] for key in _TEST_NAMES if key in splits), None)
    train, classes = _columns(splits["train"], inputs, label, client, size, name)
    apart = _columns(other, inputs, label, client, size, name)[0] if other is not None else test
    return _dataset(name, train, apart, classes, seed)


def from_folder(
    path: str | Path, *, size: int | None = None, client: bool = False, test: float = 0.2, seed: int = 0
) -> Dataset:
    """Images in path/<class>/, or path/train/<class>/ and path/test/<class>/; with `client`, in path/<client>/<class>/.

    `size` resizes all images to a square; without it they must have one size.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one that has a folder of images per class")
    below = class_folders(folder)
    other = next((below[key] for key in _TEST_NAMES if key in below), None)
    if "train" not in below or other is None:
        train, classes = _images(folder_table(folder, grouped=client), folder.name, None, size)
        return _dataset(folder.name, train, test, classes, seed)
    train, classes = _images(folder_table(below["train"], grouped=client), folder.name, None, size)
    apart, _ = _images(folder_table(other, classes, grouped=client), folder.name, train.x.shape[1], size)
    return _dataset(folder.name, train, apart, classes, seed)


def from_table(path: str | Path, label: str, *, client: str | None = None, test: float = 0.2, seed: int = 0) -> Dataset:
    """A CSV or Parquet file: one column is the label, perhaps one the client, all others are features.

    Numbers are standardised by the training part's mean and deviation; words become one column of 0 and 1 each.
    """
    file = Path(path).expanduser()
    columns = read_table(file)
    for column in [label] if client is None else [label, client]:
        if column not in columns:
            raise UserError(f'{file} has no column "{column}"; it has {", ".join(columns)}')
    for column, values in columns.items():
        if values.null_count:
            raise UserError(f'{file}: {values.null_count} values of column "{column}" are missing; fill or drop them')
    blocks, numeric = [], []
    for column, values in columns.items():
        if column not in (label, client):
            block, number = _features(values, f'{file}: column "{column}"')
            blocks.append(block)
            numeric += [number] * block.shape[1]
    if not blocks:
        raise UserError(f"{file} has no columns besides label and client; there is nothing to learn from")
    x = torch.from_numpy(np.concatenate(blocks, axis=1))
    clients = None if client is None else columns[client].to_pylist()
    data = _dataset(file.stem, _Part(x, columns[label].to_pylist(), clients), test, None, seed)
    keep = ~torch.tensor(numeric)
    deviation, mean = torch.std_mean(data.train_x, dim=0, correction=0)
    mean, deviation = mean.masked_fill(keep, 0.0), deviation.masked_fill(keep | (deviation == 0), 1.0)
    return replace(data, train_x=(data.train_x - mean) / deviation, test_x=(data.test_x - mean) / deviation)


def as_dataset(data: Any) -> Dataset:
    """What may be passed as `data=`: a `Dataset`, arrays (x, y) or (x, y, clients), a dataset object, a folder."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return from_arrays(data[0], data[1], clients=data[2] if len(data) == 3 else None)
    if isinstance(data, str | Path):
        if Path(data).suffix.lower() in (".csv", ".parquet"):
            raise UserError(
                f'{data} is a table: say which column is the label, with fedrecall.from_table("{data}", label=...)'
            )
        return from_folder(data)
    hub = sys.modules.get("datasets")  # who has such an object has imported it
    if hub is not None and isinstance(data, hub.Dataset | hub.DatasetDict):
        return from_huggingface(data)
    if isinstance(data, TorchDataset):
        return from_torch(data)
    raise UserError(
        f"data of type {type(data).__name__} is not understood; pass (x, y), (x, y, clients), a torch or Hugging Face "
        "dataset, a folder of images, or a Dataset"
    )


def _dataset(name: str, train: _Part, test: float | _Part, classes: tuple[str, ...] | None, seed: int) -> Dataset:
    """Number labels and clients alike in both parts, and hold out a test part where there is none."""
    parts = [train, test] if isinstance(test, _Part) else [train]
    for part in parts:
        for what, values in (("labels", part.y), ("clients", part.clients)):
            if values is not None and len(values) != len(part.x):
                raise UserError(f'data "{name}": {len(part.x)} inputs but {len(values)} {what}; give one for each')
    labels, names = numbered([part.y for part in parts], classes, f'data "{name}": labels')
    known = [part.clients for part in parts if part.clients is not None]
    groups, group_names = numbered(known, None, f'data "{name}": clients') if known else ([], ())
    x, y, g = train.x, labels[0], groups[0] if groups else None
    if isinstance(test, _Part):
        test_groups = groups[-1] if len(groups) == len(parts) else None
        return Dataset(name, x, y, test.x, labels[1], names, g, test_groups, group_names)
    if not 0 < test < 1:
        raise UserError(f'data "{name}": test = {test} is the share to hold out; it must be between 0 and 1')
    a, b = (rows.sort().values for rows in holdout(y, test, seed))
    if len(b) == 0:
        raise UserError(f'data "{name}": no class has two examples, so none can be held out; give test data')
    return Dataset(
        name, x[a], y[a], x[b], y[b], names, None if g is None else g[a], None if g is None else g[b], group_names
    )


def _inputs(x: Any, name: str) -> Tensor:
    """Inputs as uint8 [N, C, H, W] or float32 [N, ...], without a copy where they are so already."""
    try:
        array = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    except ValueError as error:
        raise UserError(f'data "{name}": the inputs are not all of one shape ({error})') from error
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        raise UserError(
            f'data "{name}": inputs must be numbers of shape [examples, ...], not {array.dtype} {list(array.shape)}'
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor do we write to it
        if array.dtype != np.uint8:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        tensor = torch.from_numpy(np.ascontiguousarray(array))
    if tensor.ndim == 3:
        return tensor.unsqueeze(1)
    last = tensor.ndim == 4 and tensor.shape[3] in (1, 3, 4) and tensor.shape[1] not in (1, 3, 4)
    return tensor.permute(0, 3, 1, 2).contiguous() if last else tensor


def _pairs(data: "TorchDataset[Any]", name: str) -> _Part:
    if not hasattr(data, "__len__"):
        raise UserError(f'data "{name}": a torch dataset must have a length and be indexed; streams are not possible')
    xs, ys = [], []
    for i in range(len(data)):
        try:
            x, y = data[i]
        except (TypeError, ValueError):
            raise UserError(f'data "{name}": item {i} of the torch dataset is not a pair (x, y)') from None
        xs.append(np.asarray(x))
        ys.append(y.item() if hasattr(y, "item") else y)
    if len({x.shape for x in xs}) > 1:
        raise UserError(f'data "{name}": the inputs are not all of one shape; resize them in the torch dataset')
    return _Part(_inputs(np.stack(xs) if xs else np.empty((0, 1)), name), ys)


def _columns(
    data: "HubDataset", inputs: str | Sequence[str] | None, label: str, client: str | None, size: int | None, name: str
) -> tuple[_Part, tuple[str, ...] | None]:
    images = [column for column, feature in data.features.items() if type(feature).__name__ == "Image"]
    if inputs is None and len(images) != 1:
        raise UserError(f'data "{name}": say which columns are the inputs; it has {", ".join(data.column_names)}')
    chosen = images if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    table = hub_table(data, name, Columns(chosen[0], label, client))
    if chosen[0] in images:
        return _images(table._replace(total=len(data)), name, None, size)
    for column in chosen:
        if column not in data.column_names:
            raise UserError(f'data "{name}" has no column "{column}"; it has {", ".join(data.column_names)}')
    rows = data.with_format("numpy")[:]
    x = rows[chosen[0]] if len(chosen) == 1 else np.column_stack([rows[column] for column in chosen])
    x = _inputs(x if np.ndim(x) > 1 else np.reshape(x, (-1, 1)), name)
    return _Part(x, rows[label], None if client is None else rows[client]), table.classes


def _images(table: Table, name: str, channels: int | None, size: int | None) -> tuple[_Part, tuple[str, ...] | None]:
    x, y, groups = decoded(table, name, channels, size)
    return _Part(x, y, [table.groups[g] for g in groups or ()] if table.groups else groups), table.classes


def read_table(file: Path) -> "dict[str, ChunkedArray]":
    """The columns of a CSV or Parquet file, by name."""
    from pyarrow import ArrowException, csv, parquet

    kind = file.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise UserError(f"{file} is neither .csv nor .parquet; a table must be one of them")
    try:
        if kind == ".parquet":
            table = parquet.read_table(file)
        else:
            table = csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))
        columns = dict(zip(table.column_names, table.columns, strict=True))
    except (OSError, ArrowException, UnicodeDecodeError) as error:  # names are decoded when they are asked for
        raise UserError(f"{file} cannot be read as a table: {str(error).splitlines()[0]}") from error
    if len(columns) < table.num_columns or table.num_rows == 0:
        raise UserError(f"{file} has no rows, or two columns of one name")
    return columns


def _features(values: "ChunkedArray", what: str) -> tuple[np.ndarray[Any, np.dtype[np.float32]], bool]:
    """A column as float32 [n, 1] if it is of numbers (then True), else as one column per word."""
    from pyarrow import types

    kind = values.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        numbers = np.asarray(values.to_numpy(), dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise UserError(f"{what} has values that are not finite (NaN or infinity); fill or drop them")
        # Times and the like are too large for float32 before they are centred. The training part's own mean and
        # deviation, taken later, make this step disappear.
        return ((numbers - numbers.mean()) / (numbers.std() or 1.0)).astype(np.float32)[:, None], True
    words, ids = np.unique(np.asarray(values.to_pylist()).astype(str), return_inverse=True)
    if len(words) > _CATEGORIES:
        raise UserError(
            f"{what} has {len(words)} different words, more than {_CATEGORIES}; drop it, or turn it into numbers"
        )
    return np.eye(len(words), dtype=np.float32)[ids], False
