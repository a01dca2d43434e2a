"""A table of features as a `Dataset`: a CSV or Parquet file, or a pandas DataFrame."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedrecall.data.datasets import Dataset
from fedrecall.data.parts import Part, make_dataset, standardised
from fedrecall.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import ChunkedArray
    from pyarrow import Table as ArrowTable

_CATEGORIES = 50  # a column of words with more of them is an identifier or free text, not a feature


def from_table(
    table: "str | Path | DataFrame", label: str, *, client: str | None = None, test: float = 0.2, seed: int = 0
) -> Dataset:
    """A CSV or Parquet file, or a DataFrame: one column is the label, perhaps one the client, all others are features.

    Numbers are standardised by the training part's mean and deviation; words become one column of 0 and 1 each. With a
    `client` column, every example stays with the client that it names.

    >>> import pandas as pd
    >>> patients = pd.DataFrame({"age": [61, 35, 48, 70] * 5, "smoker": ["yes", "no"] * 10, "ill": [1, 0] * 10})
    >>> patients["hospital"] = ["north", "south"] * 10
    >>> data = from_table(patients, label="ill", client="hospital")
    >>> data.shape, data.classes, data.group_names
    ((3,), ('0', '1'), ('north', 'south'))
    """
    pandas = sys.modules.get("pandas")  # who has such an object has imported it
    if pandas is not None and isinstance(table, pandas.DataFrame):
        name, file, columns = "table", "the table", _frame(table)
    else:
        path = Path(table).expanduser()
        name, file, columns = path.stem, str(path), read_table(path)
    for column in [label] if client is None else [label, client]:
        if column not in columns:
            raise UserError(f'{file} has no column "{column}"; it has {", ".join(columns)}')
    for column, values in columns.items():
        if values.null_count:
            missing = f"{values.null_count} of {len(values)} rows"
            raise UserError(f'{file}: column "{column}" has no value in {missing}; fill or drop them')
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
    data = make_dataset(name, Part(x, columns[label].to_pylist(), clients), test, None, seed)
    return standardised(data, torch.tensor(numeric))


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
        return _by_name(table, file)
    except (OSError, ArrowException, UnicodeDecodeError) as error:  # names are decoded when they are asked for
        raise UserError(f"{file} cannot be read as a table: {str(error).splitlines()[0]}") from error


def _frame(table: "DataFrame") -> "dict[str, ChunkedArray]":
    """The columns of a DataFrame, by name; its index is none of them."""
    from pyarrow import ArrowException
    from pyarrow import Table as ArrowTable

    try:
        return _by_name(ArrowTable.from_pandas(table, preserve_index=False), "the table")
    except (ArrowException, ValueError) as error:
        raise UserError(f"the table's columns must be of numbers or words: {' '.join(str(error).split())}") from None


def _by_name(table: "ArrowTable", file: object) -> "dict[str, ChunkedArray]":
    columns = dict(zip(table.column_names, table.columns, strict=True))
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
