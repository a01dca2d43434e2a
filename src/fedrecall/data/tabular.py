"""User-defined tables of features: a CSV or Parquet file or a pandas DataFrame, converted to a `Dataset`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.custom import make_dataset
from fedrecall.data.dataset import Dataset, list_names, with_classes
from fedrecall.data.inputs import RawExamples
from fedrecall.data.preprocessing import (
    Categorical,
    ColumnEncoding,
    MissingRule,
    encode_columns,
    missing_value_error,
    spell_values,
    warn_of_identifier,
)
from fedrecall.data.readers import missing_column_error
from fedrecall.data.text import MAX_TOKENS, Tokenizer, describe_encoding, encode_texts
from fedrecall.data.transforms import Transform
from fedrecall.errors import Problems, UserError, first_line

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import ChunkedArray
    from pyarrow import Table as ArrowTable


class LoadedTable(NamedTuple):
    """A table that was read: its name for messages and its columns."""

    file: str
    columns: "dict[str, ChunkedArray]"


def from_table(
    table: "str | Path | DataFrame | LoadedTable",
    label: str,
    *,
    client: str | None = None,
    group: str | None = None,
    time: str | None = None,
    drop: Sequence[str] = (),
    missing: MissingRule = "refuse",
    categorical: Categorical = "one-hot",
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    max_tokens: int = MAX_TOKENS,
    fixed: Mapping[str, ColumnEncoding | None] | None = None,
    classes: Sequence[str] | None = None,
    test: "float | str | Path | DataFrame | LoadedTable" = 0.2,
    seed: int = 0,
) -> Dataset:
    """Build a data set from a CSV or Parquet file or a DataFrame. All columns but those named are features.

    `test` is the share of the rows to hold out, or a table with the test rows. The share is held out of every class,
    drawn by `seed`. Rows with the same value in the column `group`, such as a patient, are never on both sides of a
    split. With `time`, the test set has the last rows by this column instead. Columns in `drop` are ignored.

    Columns of numbers are standardised by the training part's mean and standard deviation. Columns of text are encoded
    one-hot; with `categorical = "integers"` they are one whole number each, for the embeddings of the model "tabular",
    which is then the default. Missing values are refused, or with `missing = "mean"` or "category" filled. With a
    `client` column, each example belongs to the client in its row. With `text`, the texts of this column are the
    inputs, and other columns are ignored; `tokenizer` and `max_tokens` are those of `from_text`.

    `fixed` names the features in their order, other columns are ignored: with an encoding, whose mean and deviation
    or categories are used, or None for numbers whose mean and deviation are fitted. `classes` are the labels in their
    order; a label that is not among them is an error.

    >>> import pandas as pd
    >>> patients = pd.DataFrame({"age": [61, 35, 48, 70] * 5, "smoker": ["yes", "no"] * 10, "ill": [1, 0] * 10})
    >>> patients["hospital"] = ["north", "south"] * 10
    >>> data = from_table(patients, label="ill", client="hospital")
    >>> data.shape, data.classes, data.group_names
    ((3,), ('0', '1'), ('north', 'south'))
    """
    roles = [name for name in (label, client, group, time) if name is not None]
    file, columns = table_columns(table)
    name = Path(file).stem
    if text is not None:
        columns = _required(file, columns, [*roles, text])
        columns = {column: columns[column] for column in dict.fromkeys([*roles, text])}
    features = [column for column in columns if column not in (*roles, *drop, text)]
    if fixed is not None and text is None:
        features = list(fixed)
        columns = _required(file, columns, [*roles, *features])
        columns = {column: columns[column] for column in dict.fromkeys([*roles, *features])}
    checked, dropped = (features, drop) if fixed is None and text is None else ((), ())
    _check_columns(file, columns, [*roles, *([] if text is None else [text])], dropped, checked, missing)
    if not features and text is None:
        message = f"{file}: the table has no columns besides label, client, group and time"
        raise UserError("data.empty", message, file, "add columns of features")
    parts = {file: columns}
    share = test if isinstance(test, float | int) else 0.0
    if not isinstance(test, float | int):
        test_file, test_columns = table_columns(test)
        test_file = "test table" if test_file in parts else test_file
        needed = [column for column in (label, *features, text) if column is not None]
        parts[test_file] = _required(test_file, test_columns, dict.fromkeys(needed))
        if test_columns[label].null_count:
            raise missing_value_error(test_columns[label], label, test_file, "fill them or drop the rows")
        _require_other_groups(columns, test_columns, group, test_file)
    values = {file: _values(columns, label, client, group, time) for file, columns in parts.items()}
    options: dict[str, Any] = {"client": client, "group": group, "time": time, "drop": drop, "missing": missing}
    options |= {"fixed": fixed, "classes": classes}
    texts: dict[str, Any] = {"tokenizer": tokenizer, "max_tokens": max_tokens, "seed": seed}
    again = None
    if len(parts) == 1 and time is None:
        loaded = LoadedTable(file, columns)  # the file may be gone when the table is split again
        again = partial(from_table, loaded, label, test=share, categorical=categorical, text=text, **options, **texts)
    # The split comes first, as a data set of row numbers: what replaces a missing number is fitted on training rows.
    rows = [replace(raw, x=torch.arange(len(raw.y))[:, None]) for raw in values.values()]
    split = make_dataset(name, rows[0], share if len(rows) == 1 else rows[1], None, seed)
    split = split if classes is None else _with_classes(split, columns[label], tuple(classes))
    if len(rows) > 1:
        split = replace(split, test_split=f"all rows of {Path(list(parts)[1]).name}")
    train, held_out = (cast(Tensor, x)[:, 0] for x in (split.train_x, split.test_x))
    if text is not None:
        found = [columns[text].to_pylist() for columns in parts.values()]
        inputs, vocabulary = encode_texts(found, tokenizer, max_tokens, name)
        split = replace(split, train_x=inputs[0][train], test_x=inputs[-1][held_out], split_again=again)
        encoding = describe_encoding(tokenizer, max_tokens, text)
        return replace(split, vocabulary=vocabulary, text=encoding, test_transform=Transform(trim=True))
    encodings = tuple(
        _encoding(columns[column], column, file, fixed, train.numpy(), missing, categorical) for column in features
    )
    x = [encode_columns(encodings, columns, file) for file, columns in parts.items()]
    return replace(split, train_x=x[0][train], test_x=x[-1][held_out], columns=encodings, split_again=again)


def _with_classes(data: Dataset, labels: "ChunkedArray", classes: tuple[str, ...]) -> Dataset:
    """Return the data with labels as positions in `classes`, whose spelling of numbers and booleans may be another."""
    spell = spell_values(classes, labels)
    return with_classes(data if spell is None else replace(data, classes=tuple(map(spell, data.classes))), classes)


def _encoding(
    values: "ChunkedArray",
    name: str,
    file: str,
    fixed: Mapping[str, ColumnEncoding | None] | None,
    train: np.ndarray[Any, Any] | slice,
    missing: MissingRule,
    categorical: Categorical,
) -> ColumnEncoding:
    """Return the encoding of a column that is fixed, or fit one to its values."""
    if fixed is not None and (found := fixed[name]) is not None:
        return found
    fitted = ColumnEncoding.fit(values, name, file, train, missing, categorical)
    if fixed is not None and fitted.categories is not None:
        message = f'{file}: column "{name}" is text, and must be numbers'
        raise UserError("data.invalid_inputs", message, file, "turn it into numbers, or name its categories")
    return fitted


def _check_columns(
    file: str,
    columns: "dict[str, ChunkedArray]",
    roles: Sequence[str],
    drop: Sequence[str],
    features: Sequence[str],
    missing: MissingRule,
) -> None:
    """Raise one error that lists all problems of a table: missing columns, missing values, unusable features."""
    with Problems(file) as problems:
        for column in (*roles, *drop):
            with problems.collected():
                _required(file, columns, [column])
                if column in roles and (values := columns[column]).null_count:
                    raise missing_value_error(values, column, file, "fill them or drop the rows")
        for column in features:
            with problems.collected():
                warn_of_identifier(columns[column], column, file)
                ColumnEncoding.fit(columns[column], column, file, missing=missing)


def _require_other_groups(
    train: "dict[str, ChunkedArray]", test: "dict[str, ChunkedArray]", group: str | None, file: str
) -> None:
    """Raise an error if a group of the test table is in the training table, too."""
    if group is None or group not in test:
        return
    if shared := sorted({str(v) for v in train[group].to_pylist()} & {str(v) for v in test[group].to_pylist()}):
        message = f'{file}: {len(shared)} values of "{group}" are in the training table, too ({list_names(shared)})'
        raise UserError("data.divided_group", message, file, "remove their rows from one of the tables")


def _values(
    columns: "Mapping[str, ChunkedArray]", label: str, client: str | None, group: str | None, time: str | None
) -> RawExamples:
    """Return labels, clients, groups and times of a table's rows; the inputs follow once the rows are split."""
    others = (None if key not in columns else columns[str(key)].to_pylist() for key in (client, group, time))
    return RawExamples(torch.empty(0), columns[label].to_pylist(), *others)


def _required(file: str, columns: "dict[str, ChunkedArray]", names: Iterable[str]) -> "dict[str, ChunkedArray]":
    """Return the columns; raise one error for all missing ones."""
    with Problems(file) as problems:
        for name in names:
            with problems.collected():
                if name not in columns:
                    raise missing_column_error(file, name, columns)
    return columns


def table_columns(table: "str | Path | DataFrame | LoadedTable") -> "tuple[str, dict[str, ChunkedArray]]":
    """Return the name of a CSV or Parquet file or of a DataFrame for messages, and its columns by name."""
    if isinstance(table, LoadedTable):
        return table.file, table.columns
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
