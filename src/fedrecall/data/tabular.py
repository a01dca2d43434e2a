"""User-defined tables of features: a CSV or Parquet file or a pandas DataFrame, converted to a `Dataset`."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedrecall.data.custom import from_text, make_dataset, standardise_inputs
from fedrecall.data.dataset import Dataset
from fedrecall.data.inputs import RawExamples
from fedrecall.data.preprocessing import ColumnEncoding
from fedrecall.data.readers import missing_column_error
from fedrecall.data.text import MAX_TOKENS, Tokenizer
from fedrecall.errors import UserError, first_line

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import ChunkedArray
    from pyarrow import Table as ArrowTable


def from_table(
    table: "str | Path | DataFrame",
    label: str,
    *,
    client: str | None = None,
    group: str | None = None,
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    max_tokens: int = MAX_TOKENS,
    test: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Build a data set from a CSV or Parquet file or a DataFrame. All columns but those named are features.

    The share `test` of the rows is held out as the test set, drawn by `seed`. Rows with the same value in the column
    `group`, such as a patient, are never on both sides of a split.

    Columns of numbers are standardised by the training part's mean and standard deviation. Columns of text are encoded
    one-hot. With a `client` column, each example belongs to the client in its row. With `text`, the texts of this
    column are the inputs, and other columns are ignored; `tokenizer` and `max_tokens` are those of `from_text`.

    >>> import pandas as pd
    >>> patients = pd.DataFrame({"age": [61, 35, 48, 70] * 5, "smoker": ["yes", "no"] * 10, "ill": [1, 0] * 10})
    >>> patients["hospital"] = ["north", "south"] * 10
    >>> data = from_table(patients, label="ill", client="hospital")
    >>> data.shape, data.classes, data.group_names
    ((3,), ('0', '1'), ('north', 'south'))
    """
    file, columns = table_columns(table)
    name = Path(file).stem
    for column in (label, client, group, text):
        if column is not None and column not in columns:
            raise missing_column_error(file, column, columns)
    if text is not None:
        columns = {column: columns[column] for column in (label, client, text) if column is not None}
    for column, values in columns.items():
        if values.null_count:
            raise UserError(
                "data.missing_value",
                f'{file}: column "{column}" has no value in {values.null_count} of {len(values)} rows',
                file,
                "fill or drop them",
            )
    clients, groups = (None if key is None else columns[key].to_pylist() for key in (client, group))
    again = partial(from_table, table, label, client=client, group=group, test=test)
    if text is not None:
        texts, labels = columns[text].to_pylist(), columns[label].to_pylist()
        shared: dict[str, Any] = {"clients": clients, "groups": groups, "test": test, "name": name, "seed": seed}
        options: dict[str, Any] = {"tokenizer": tokenizer, "max_tokens": max_tokens}
        return replace(from_text(texts, labels, **options, **shared), split_again=partial(again, text=text, **options))
    features = {column: values for column, values in columns.items() if column not in (label, client, group)}
    if not features:
        raise UserError(
            "data.empty",
            f"{file}: the table has no columns besides label, client and group",
            file,
            "add columns of features",
        )
    encodings = tuple(ColumnEncoding.fit(values, column, file) for column, values in features.items())
    blocks = [encoding.encode(features[encoding.name], file) for encoding in encodings]
    numeric = [encoding.categories is None for encoding in encodings for _ in range(encoding.width)]
    x = torch.from_numpy(np.concatenate(blocks, axis=1))
    data = make_dataset(name, RawExamples(x, columns[label].to_pylist(), clients, groups), test, None, seed)
    return replace(standardise_inputs(data, torch.tensor(numeric)), columns=encodings, split_again=again)


def table_columns(table: "str | Path | DataFrame") -> "tuple[str, dict[str, ChunkedArray]]":
    """Return the name of a CSV or Parquet file or of a DataFrame for messages, and its columns by name."""
    pandas = sys.modules.get("pandas")  # not imported: then `table` is no DataFrame
    if pandas is not None and isinstance(table, pandas.DataFrame):
        return "table", _frame(table)
    path = Path(table).expanduser()
    return str(path), read_table(path)


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
