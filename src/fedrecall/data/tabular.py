"""User-defined tables of features: a CSV or Parquet file or a pandas DataFrame, converted to a `Dataset`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedrecall.data.custom import make_dataset, standardise_inputs
from fedrecall.data.dataset import Dataset
from fedrecall.data.inputs import RawExamples
from fedrecall.data.readers import missing_column_error
from fedrecall.errors import UserError, first_line

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import ChunkedArray
    from pyarrow import Table as ArrowTable


MAX_COLUMN_CATEGORIES = (
    50  # distinct values of a text column; one with more is an identifier or free text, not a feature
)


def from_table(
    table: "str | Path | DataFrame", label: str, *, client: str | None = None, test: float = 0.2, seed: int = 0
) -> Dataset:
    """Build a data set from a CSV or Parquet file or a DataFrame. All columns but label and client are features.

    Columns of numbers are standardised by the training part's mean and standard deviation. Columns of text are encoded
    one-hot. With a `client` column, each example belongs to the client in its row.

    >>> import pandas as pd
    >>> patients = pd.DataFrame({"age": [61, 35, 48, 70] * 5, "smoker": ["yes", "no"] * 10, "ill": [1, 0] * 10})
    >>> patients["hospital"] = ["north", "south"] * 10
    >>> data = from_table(patients, label="ill", client="hospital")
    >>> data.shape, data.classes, data.group_names
    ((3,), ('0', '1'), ('north', 'south'))
    """
    pandas = sys.modules.get("pandas")  # not imported: then `table` is no DataFrame
    if pandas is not None and isinstance(table, pandas.DataFrame):
        name, file, columns = "table", "table", _frame(table)
    else:
        path = Path(table).expanduser()
        name, file, columns = path.stem, str(path), read_table(path)
    for column in [label] if client is None else [label, client]:
        if column not in columns:
            raise missing_column_error(file, column, columns)
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
            block, is_numeric = _features(values, column, file)
            blocks.append(block)
            numeric += [is_numeric] * block.shape[1]
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
    """Return the columns of a CSV or Parquet file by name."""
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
    except (OSError, ArrowException, UnicodeDecodeError) as error:  # column names are decoded lazily
        raise UserError(
            "data.unreadable_file",
            f"{file}: cannot be read as a table: {first_line(error)}",
            str(file),
            "check the path and the file",
        ) from error


def _frame(table: "DataFrame") -> "dict[str, ChunkedArray]":
    """Return the columns of a DataFrame by name, without its index."""
    from pyarrow import ArrowException
    from pyarrow import Table as ArrowTable

    try:
        return _columns(ArrowTable.from_pandas(table, preserve_index=False), "table")
    except (ArrowException, ValueError) as error:
        raise UserError(
            "data.unsupported_type",
            f"table: a column has other values than numbers or text ({' '.join(str(error).split())})",
            "table",
            "convert or drop the column",
        ) from None


def _columns(table: "ArrowTable", file: object) -> "dict[str, ChunkedArray]":
    columns = dict(zip(table.column_names, table.columns, strict=True))
    if len(columns) < table.num_columns:
        names = table.column_names
        duplicate = next(name for name in names if names.count(name) > 1)
        raise UserError(
            "data.duplicate_column", f'{file}: two columns have the name "{duplicate}"', str(file), "rename one of them"
        )
    if table.num_rows == 0:
        raise UserError("data.empty", f"{file}: the table has no rows", str(file), "provide at least one")
    return columns


def _features(values: "ChunkedArray", column: str, file: str) -> tuple[np.ndarray[Any, np.dtype[np.float32]], bool]:
    """Return a column of numbers as float32 [n, 1] with True, a column of text one-hot, float32 [n, K], with False."""
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
        # Values such as timestamps are too large for float32 unless centred. Standardising by the training part later
        # removes the effect of this step.
        return ((numbers - numbers.mean()) / (numbers.std() or 1.0)).astype(np.float32)[:, None], True
    if (
        types.is_nested(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    ):
        message = f'{file}: column "{column}" has values of type {kind}, neither numbers nor text'
        raise UserError("data.unsupported_type", message, file, "convert or drop the column")
    categories, ids = np.unique(np.asarray(values.to_pylist()).astype(str), return_inverse=True)
    if len(categories) > MAX_COLUMN_CATEGORIES:
        raise UserError(
            "data.text_column",
            f'{file}: column "{column}" has {len(categories)} different values, more than {MAX_COLUMN_CATEGORIES}',
            file,
            "drop it, or turn it into numbers",
        )
    return np.eye(len(categories), dtype=np.float32)[ids], False
