"""A table of features as a `Dataset`: a CSV or Parquet file, or a pandas DataFrame."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedrecall.data.custom import RawExamples, make_dataset, standardise_inputs
from fedrecall.data.dataset import Dataset
from fedrecall.data.readers import missing_column
from fedrecall.errors import UserError, first_line

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import ChunkedArray
    from pyarrow import Table as ArrowTable


MAX_CATEGORIES = 50  # a column of words with more of them is an identifier or free text, not a feature


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
        name, file, columns = "table", "table", _frame(table)
    else:
        path = Path(table).expanduser()
        name, file, columns = path.stem, str(path), read_table(path)
    for column in [label] if client is None else [label, client]:
        if column not in columns:
            raise missing_column(file, column, columns)
    for column, values in columns.items():
        if values.null_count:
            raise UserError(
                "data.missing_value",
                f'{file}: column "{column}" has no value in {values.null_count} of {len(values)} rows',
                file,
                "fill or drop them",
            )
    blocks, numeric = [], []
    for column, values in columns.items():
        if column not in (label, client):
            block, number = _features(values, column, file)
            blocks.append(block)
            numeric += [number] * block.shape[1]
    if not blocks:
        raise UserError(
            "data.empty",
            f"{file}: the table has no columns besides label and client",
            file,
            "add columns of features",
        )
    x = torch.from_numpy(np.concatenate(blocks, axis=1))
    clients = None if client is None else columns[client].to_pylist()
    data = make_dataset(name, RawExamples(x, columns[label].to_pylist(), clients), test, None, seed)
    return standardise_inputs(data, torch.tensor(numeric))


def read_table(file: Path) -> "dict[str, ChunkedArray]":
    """The columns of a CSV or Parquet file, by name."""
    from pyarrow import ArrowException, csv, parquet

    kind = file.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise UserError(
            "data.unsupported_type", f"{file}: not a table", str(file), "use a file that ends in .csv or .parquet"
        )
    try:
        if kind == ".parquet":
            table = parquet.read_table(file)
        else:
            table = csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))
        return _columns(table, file)
    except (OSError, ArrowException, UnicodeDecodeError) as error:  # names are decoded when they are asked for
        raise UserError(
            "data.unreadable_file",
            f"{file}: cannot be read as a table: {first_line(error)}",
            str(file),
            "check the path and the file",
        ) from error


def _frame(table: "DataFrame") -> "dict[str, ChunkedArray]":
    """The columns of a DataFrame, by name; its index is none of them."""
    from pyarrow import ArrowException
    from pyarrow import Table as ArrowTable

    try:
        return _columns(ArrowTable.from_pandas(table, preserve_index=False), "table")
    except (ArrowException, ValueError) as error:
        raise UserError(
            "data.unsupported_type",
            f"table: a column has other values than numbers or words ({' '.join(str(error).split())})",
            "table",
            "convert or drop the column",
        ) from None


def _columns(table: "ArrowTable", file: object) -> "dict[str, ChunkedArray]":
    columns = dict(zip(table.column_names, table.columns, strict=True))
    if len(columns) < table.num_columns:
        names = table.column_names
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(
            "data.duplicate_column", f'{file}: two columns have the name "{twice}"', str(file), "rename one of them"
        )
    if table.num_rows == 0:
        raise UserError("data.empty", f"{file}: the table has no rows", str(file), "provide at least one")
    return columns


def _features(values: "ChunkedArray", column: str, file: str) -> tuple[np.ndarray[Any, np.dtype[np.float32]], bool]:
    """A column as float32 [n, 1] if it is of numbers (then True), else as one column per word."""
    from pyarrow import types

    kind = values.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        numbers = np.asarray(values.to_numpy(), dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise UserError(
                "data.not_finite",
                f'{file}: column "{column}" has values that are not finite (NaN or infinity)',
                file,
                "fill or drop them",
            )
        # Times and the like are too large for float32 before they are centred. The training part's own mean and
        # deviation, taken later, make this step disappear.
        return ((numbers - numbers.mean()) / (numbers.std() or 1.0)).astype(np.float32)[:, None], True
    words, ids = np.unique(np.asarray(values.to_pylist()).astype(str), return_inverse=True)
    if len(words) > MAX_CATEGORIES:
        raise UserError(
            "data.text_column",
            f'{file}: column "{column}" has {len(words)} different words, more than {MAX_CATEGORIES}',
            file,
            "drop it, or turn it into numbers",
        )
    return np.eye(len(words), dtype=np.float32)[ids], False
