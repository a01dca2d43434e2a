"""User-defined data: arrays, torch and Hugging Face datasets and folders of images, converted to a `Dataset`.

Without test data, a share of every class is held out. If the client of every example is specified, the clients become
the groups of the data set, for the partitioner "groups".
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

from fedrecall.data.catalog import DATASETS
from fedrecall.data.dataset import Dataset, encode_labels
from fedrecall.data.readers import (
    ColumnNames,
    RawSplit,
    decode_images,
    missing_column_error,
    read_dataset,
    read_image_folder,
    subfolders,
)
from fedrecall.data.splits import stratified_holdout
from fedrecall.errors import UserError, first_line, unknown_name

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from datasets import DatasetDict as HubDatasetDict


_TEST_NAMES = ("test", "validation", "valid", "val")  # splits that are used as the test set, the first one found


@dataclass(frozen=True)
class RawExamples:
    """Inputs with labels and clients as the user specifies them, before encoding as numbers."""

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
    standardise: bool = False,
    name: str = "arrays",
    seed: int = 0,
) -> Dataset:
    """Build a data set from arrays, tensors, lists or sparse matrices.

    `test` is the share to hold out, or a pair (x, y). uint8 images may be [N, C, H, W], [N, H, W, C] or [N, H, W]; the
    model receives values in [0, 1]. Other inputs become float32, and `standardise` scales them to mean 0 and standard
    deviation 1 in the training part. Labels and clients are whole numbers or text; with `classes`, labels are positions
    in it.

    >>> data = from_arrays([[170.0, 60.0], [181.0, 82.0]] * 50, ["a", "b"] * 50, standardise=True)
    >>> len(data.train_y), len(data.test_y), data.classes
    (80, 20, ('a', 'b'))
    """
    test_part = RawExamples(to_input_tensor(test[0], name), test[1]) if isinstance(test, tuple) else test
    names = None if classes is None else tuple(classes)
    data = make_dataset(name, RawExamples(to_input_tensor(x, name), y, clients), test_part, names, seed)
    if not standardise:
        return data
    if data.train_x.dtype == torch.uint8:
        raise UserError(
            "config.conflict",
            f'data "{name}": standardise = true: the inputs are images, which are scaled to [0, 1]',
            "standardise",
            "remove standardise",
        )
    return standardise_inputs(data)


def from_torch(
    data: "TorchDataset[Any]",
    *,
    test: "float | TorchDataset[Any]" = 0.2,
    clients: Sequence[Any] | None = None,
    name: str = "torch",
    seed: int = 0,
) -> Dataset:
    """Build a data set from a map-style torch dataset of pairs (x, y).

    All items are read once, so random transforms in the torch dataset are applied once, not in every epoch.

    >>> from torch.utils.data import TensorDataset
    >>> data = from_torch(TensorDataset(torch.rand(50, 3), torch.arange(50) % 2))
    >>> data.shape, len(data.test_y)
    ((3,), 10)
    """
    test_part = _from_pairs(test, name) if isinstance(test, TorchDataset) else test
    return make_dataset(name, replace(_from_pairs(data, name), clients=clients), test_part, None, seed)


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
    """Build a data set from a Hugging Face dataset.

    `inputs` is the column of images or the columns of numbers. None: the only column of images. If `data` has several
    splits, "train" is the training set, and "test" or else "validation" the test set. Without either, the share `test`
    is held out.

    >>> from datasets import Dataset
    >>> rows = Dataset.from_dict({"height": [1.7, 1.9] * 20, "weight": [60.0, 82.0] * 20, "label": ["a", "b"] * 20})
    >>> from_huggingface(rows, inputs=["height", "weight"]).shape
    (2,)
    """
    splits = data if isinstance(data, dict) else {"train": data}
    if "train" not in splits:
        raise UserError(
            "data.not_found",
            f'data "{name}": there is no split "train" (splits: {", ".join(splits)})',
            "train",
            "pass one split",
        )
    test_split = next((splits[key] for key in _TEST_NAMES if key in splits), None)
    train, classes = _from_columns(splits["train"], inputs, label, client, size, name)
    test_part = test if test_split is None else _from_columns(test_split, inputs, label, client, size, name)[0]
    return make_dataset(name, train, test_part, classes, seed)


def from_folder(
    path: str | Path, *, size: int | None = None, client: bool = False, test: float = 0.2, seed: int = 0
) -> Dataset:
    """Build a data set from images in path/<class>/, or in path/train/<class>/ and path/test/<class>/.

    With `client` there is a folder per client above the classes: path/<client>/<class>/. `size` resizes all images to a
    square of so many pixels; without it all images must have one size.

    >>> from_folder("no/such/folder")
    Traceback (most recent call last):
    ...
    fedrecall.errors.UserError: no/such/folder: not a folder: use one that has a folder of images per class
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(
            "data.not_found",
            f"{folder}: not a folder",
            str(folder),
            "use one that has a folder of images per class",
        )
    below = subfolders(folder)
    train_folder, test_folder = below.get("train"), next((below[key] for key in _TEST_NAMES if key in below), None)
    if train_folder is None or test_folder is None:
        train_folder, test_folder = folder, None
    raw = read_image_folder(train_folder, grouped=client, within=folder)
    train = _from_images(raw, folder.name, None, size)
    test_part: float | RawExamples = test
    if test_folder is not None:
        raw_test = read_image_folder(test_folder, raw.classes, grouped=client, within=folder)
        test_part = _from_images(raw_test, folder.name, train.x.shape[1], size)
    return make_dataset(folder.name, train, test_part, raw.classes, seed)


def as_dataset(data: Any) -> Dataset:
    """Convert a value of `data=`: a `Dataset`, arrays (x, y) or (x, y, clients), a dataset object, or a folder."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return from_arrays(data[0], data[1], clients=data[2] if len(data) == 3 else None)
    if isinstance(data, str | Path):
        if Path(data).suffix.lower() in (".csv", ".parquet"):
            raise UserError(
                "data.missing_column",
                f"{data}: the label column of the table is not named",
                str(data),
                f'name it with fedrecall.from_table("{data}", label=...)',
            )
        if not Path(data).expanduser().exists():
            raise unknown_name("folder or data set", data, DATASETS, key="data")
        return from_folder(data)
    hub = sys.modules.get("datasets")  # not imported: then `data` is none of its objects
    if hub is not None and isinstance(data, hub.Dataset | hub.DatasetDict):
        return from_huggingface(data)
    if isinstance(data, TorchDataset):
        return from_torch(data)
    raise UserError(
        "data.unsupported_type",
        f"data of type {type(data).__name__} is not supported",
        "data",
        "pass (x, y), (x, y, clients), a torch or Hugging Face dataset, a folder of images, or, of a table, "
        "fedrecall.from_table(frame, label=...)",
    )


def make_dataset(
    name: str, train: RawExamples, test: float | RawExamples, classes: tuple[str, ...] | None, seed: int
) -> Dataset:
    """Encode labels and clients of both parts with the same numbers, and hold out a test part if `test` is a share."""
    parts = [train, test] if isinstance(test, RawExamples) else [train]
    for part in parts:
        for kind, values in (("labels", part.y), ("clients", part.clients)):
            if values is not None and len(values) != len(part.x):
                raise UserError(
                    "data.length_mismatch",
                    f'data "{name}": {len(part.x)} inputs but {len(values)} {kind}',
                    kind,
                    f"pass one of the {kind} for each input",
                )
    labels, names = encode_labels([part.y for part in parts], classes, "labels", name)
    if len(names) == 1:
        raise UserError(
            "data.one_class",
            f'data "{name}": all labels are {names[0]}',
            "labels",
            "pass examples of two or more classes",
        )
    clients = [part.clients for part in parts if part.clients is not None]
    groups, group_names = encode_labels(clients, None, "clients", name) if clients else ([], ())
    x, y, g = train.x, labels[0], groups[0] if groups else None
    if isinstance(test, RawExamples):
        test_groups = groups[-1] if len(groups) == len(parts) else None
        return Dataset(name, x, y, test.x, labels[1], names, g, test_groups, group_names)
    if not 0 < test < 1:
        raise UserError(
            "config.invalid_value",
            f'data "{name}": test = {test}: the share to hold out is out of range',
            "test",
            "use a value between 0 and 1",
        )
    train_rows, test_rows = (rows.sort().values for rows in stratified_holdout(y, test, seed))
    if len(test_rows) == 0:
        raise UserError(
            "data.cannot_hold_out",
            f'data "{name}": no class has two examples, so none can be held out',
            "test",
            "pass test data",
        )
    train_groups, test_groups = (None, None) if g is None else (g[train_rows], g[test_rows])
    train_xy, test_xy = (x[train_rows], y[train_rows]), (x[test_rows], y[test_rows])
    return Dataset(name, *train_xy, *test_xy, names, train_groups, test_groups, group_names)


def standardise_inputs(data: Dataset, numeric: Tensor | None = None) -> Dataset:
    """Scale features to mean 0 and standard deviation 1 in the training part: all, or those where `numeric` is True."""
    unchanged = torch.zeros(data.shape, dtype=torch.bool) if numeric is None else ~numeric
    std, mean = torch.std_mean(data.train_x, dim=0, correction=0)
    mean, std = mean.masked_fill(unchanged, 0.0), std.masked_fill(unchanged | (std == 0), 1.0)
    return replace(data, train_x=(data.train_x - mean) / std, test_x=(data.test_x - mean) / std)


def to_input_tensor(x: Any, name: str) -> Tensor:
    """Convert inputs to uint8 [N, C, H, W] or float32 [N, ...], without a copy if they have this form."""
    if hasattr(x, "toarray"):  # a sparse matrix, as of scikit-learn's text vectorizers
        x = x.toarray()
    try:
        array = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    except ValueError as error:
        raise UserError(
            "data.shape_mismatch",
            f'data "{name}": the inputs are not all of one shape ({first_line(error)})',
            "inputs",
            "bring them to one shape",
        ) from error
    if array.dtype.kind in "OSU" and array.ndim > 0:
        raise UserError(
            "data.invalid_inputs",
            f'data "{name}": inputs must be numbers of shape [examples, ...], and some are text',
            "inputs",
            "turn texts into vectors; for a table with columns of text use fedrecall.from_table",
        )
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        raise UserError(
            "data.invalid_inputs",
            f'data "{name}": inputs are {array.dtype} of shape {list(array.shape)}',
            "inputs",
            "pass numbers of shape [examples, ...]",
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # the tensor is never written to
        if array.dtype != np.uint8:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        tensor = torch.from_numpy(np.ascontiguousarray(array))
    if tensor.ndim == 3:
        return tensor.unsqueeze(1)
    channels_last = tensor.ndim == 4 and tensor.shape[3] in (1, 3, 4) and tensor.shape[1] not in (1, 3, 4)
    return tensor.permute(0, 3, 1, 2).contiguous() if channels_last else tensor


def _from_pairs(data: "TorchDataset[Any]", name: str) -> RawExamples:
    if not hasattr(data, "__len__"):
        raise UserError(
            "data.unsupported_type",
            f'data "{name}": the torch dataset is a stream, without length and index',
            "data",
            "pass a map-style dataset",
        )
    xs, ys = [], []
    for i in range(len(data)):
        try:
            x, y = data[i]
        except (TypeError, ValueError):
            raise UserError(
                "data.unsupported_type",
                f'data "{name}": item {i} of the torch dataset is not a pair (x, y)',
                "data",
                "return pairs from the dataset",
            ) from None
        xs.append(np.asarray(x))
        ys.append(y.item() if hasattr(y, "item") else y)
    if len({x.shape for x in xs}) > 1:
        raise UserError(
            "data.shape_mismatch",
            f'data "{name}": the inputs are not all of one shape',
            "inputs",
            "resize them in the torch dataset",
        )
    return RawExamples(to_input_tensor(np.stack(xs) if xs else np.empty((0, 1)), name), ys)


def _from_columns(
    data: "HubDataset", inputs: str | Sequence[str] | None, label: str, client: str | None, size: int | None, name: str
) -> tuple[RawExamples, tuple[str, ...] | None]:
    images = [column for column, feature in data.features.items() if type(feature).__name__ == "Image"]
    if inputs is None and len(images) != 1:
        raise UserError(
            "data.missing_column",
            f'data "{name}": the columns of the inputs are not named',
            "inputs",
            f"set inputs to one or more of {', '.join(data.column_names)}",
        )
    chosen = images if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    raw = read_dataset(data, name, ColumnNames(chosen[0], label, client))
    if chosen[0] in images:
        return _from_images(raw._replace(total=len(data)), name, None, size), raw.classes
    for column in chosen:
        if column not in data.column_names:
            raise missing_column_error(name, column, data.column_names)
    rows = data.with_format("numpy")[:]
    x = rows[chosen[0]] if len(chosen) == 1 else np.column_stack([rows[column] for column in chosen])
    x = to_input_tensor(x if np.ndim(x) > 1 else np.reshape(x, (-1, 1)), name)
    return RawExamples(x, rows[label], None if client is None else rows[client]), raw.classes


def _from_images(split: RawSplit, name: str, channels: int | None, size: int | None) -> RawExamples:
    return RawExamples(*decode_images(split, name, channels, size))
