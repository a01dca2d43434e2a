"""Preprocessing: the transformation of raw examples to inputs of the model, fitted on the training data and stored.

It contains the names of features and classes, and no names of clients.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch

from fedrecall.data.column_sums import ColumnSums
from fedrecall.data.transforms import Transform
from fedrecall.errors import Problems, UserError, warn_once
from fedrecall.tensor_dict import Inputs, TensorDict, named_tensors

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

Float32s = np.ndarray[Any, np.dtype[np.float32]]

# distinct values of a text column; one with more is an identifier or free text, not a feature
MAX_COLUMN_CATEGORIES = 50

MISSING_CATEGORY = "(missing)"  # category of the rows that have no value in a column of text

MissingRule = Literal["refuse", "mean", "category"]
"""Treatment of missing values of features.

"mean": a number becomes the mean of the training rows, a text has no category. "category": a missing text is a category
of its own, and a missing number is the mean, with a further feature that is 1 where the number is missing.
"""

Categorical = Literal["one-hot", "integers"]
"""Form of columns of text: one feature per category, or one whole number per column, 0 for an unknown category."""

FILL_HINT = 'fill or drop the rows, or set data.missing to "mean" or "category"'

ID_NAME = re.compile(r"(^|[^A-Za-z])([Ii][Dd]|uuid|guid)$|[a-z]I[Dd]$")

MIN_ROWS_FOR_IDENTIFIER = 20  # in a smaller table the values of a feature may all differ by chance

NUMBERS, CATEGORIES = "numbers", "categories"  # names of the two inputs of a table with categories as integers

MAX_INPUT_SIZE = 2**28  # numbers of one example, in a file that another process wrote

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnEncoding:
    """Encoding of one column of a table: numbers are centred and scaled, categories one-hot or whole numbers."""

    name: str
    categories: tuple[str, ...] | None = None  # None: a column of numbers
    center: float = 0.0  # mean of the training rows
    scale: float = 1.0  # their standard deviation
    missing: MissingRule = "refuse"
    flag: bool = False  # True if a further feature is 1 where the number is missing
    integers: bool = False  # True if the category is one whole number

    @classmethod
    def fit(
        cls,
        values: "ChunkedArray",
        name: str,
        file: str,
        train: np.ndarray[Any, Any] | slice = slice(None),
        missing: MissingRule = "refuse",
        categorical: Categorical = "one-hot",
    ) -> Self:
        """Return the encoding of a column, from its values; mean and deviation are those of the rows `train`."""
        if _is_numeric(values):
            numbers = _numbers(values, name, file, missing)
            is_missing = np.isnan(numbers)
            in_train = numbers[train][~is_missing[train]]
            known = in_train if len(in_train) else numbers[~is_missing]
            if len(known) == 0:
                message = f'{file}: column "{name}" has no value in any row'
                raise UserError("data.missing_value", message, file, _drop_hint(name))
            flag = missing == "category" and bool(is_missing.any())
            return cls.of_numbers(name, ColumnSums.of(known), file, missing, flag=flag)
        if not _is_text(values):
            message = f'{file}: column "{name}" has values of type {values.type}, neither numbers nor text'
            raise UserError("data.unsupported_type", message, file, _drop_hint(name))
        if values.null_count == len(values) and missing != "category":
            message = f'{file}: column "{name}" has no value in any row'
            raise UserError("data.missing_value", message, file, _drop_hint(name))
        _require_no_missing(values, name, file, missing)
        texts = _texts(values)
        categories = np.unique(texts[texts != MISSING_CATEGORY] if missing == "mean" else texts)
        if len(categories) > MAX_COLUMN_CATEGORIES:
            raise UserError(
                "data.text_column",
                f'{file}: column "{name}" has {len(categories)} different values, more than {MAX_COLUMN_CATEGORIES}: '
                "it looks like an identifier or free text",
                file,
                f"{_drop_hint(name)}, or turn it into numbers",
            )
        return cls(name, tuple(categories.tolist()), missing=missing, integers=categorical == "integers")

    @classmethod
    def of_numbers(
        cls, name: str, sums: ColumnSums, file: str, missing: MissingRule = "refuse", *, flag: bool = False
    ) -> Self:
        """Return the encoding of a column of numbers, from the sums of those in the training rows."""
        try:
            center, scale = sums.mean_and_std()
        except OverflowError:
            message = f'{file}: column "{name}" has numbers whose square is out of range'
            raise UserError("data.not_finite", message, file, "divide them by a power of ten") from None
        return cls(name, None, center, scale, missing, flag)

    @property
    def width(self) -> int:
        """Number of features."""
        if self.categories is None:
            return 1 + self.flag
        return 1 if self.integers else len(self.categories)

    def encode(self, values: "ChunkedArray", file: str) -> np.ndarray[Any, Any]:
        """Return the features of a column [n, width], float32 or, of a category as a whole number, int64.

        A category that was not fitted has no feature, or the number 0.
        """
        if self.categories is None:
            if not _is_numeric(values) and values.null_count < len(values):
                message = f'{file}: column "{self.name}" is text, and was numbers in training'
                raise UserError("data.invalid_inputs", message, file, "pass numbers")
            numbers = _numbers(values, self.name, file, self.missing)
            is_missing = np.isnan(numbers)
            numbers = np.where(is_missing, self.center, numbers)
            scaled = ((numbers - self.center) / self.scale).astype(np.float32)[:, None]
            return np.concatenate([scaled, is_missing.astype(np.float32)[:, None]], axis=1) if self.flag else scaled
        _require_no_missing(values, self.name, file, self.missing)
        texts, known = _texts(values), np.asarray(self.categories)
        if spell := spell_values(self.categories, values):
            texts = np.asarray([spell(text) for text in texts.tolist()]).astype(str)
        position = np.searchsorted(known, texts).clip(max=len(known) - 1)
        is_known = known[position] == texts
        if not is_known.all():
            unknown = [text for text in np.unique(texts[~is_known]).tolist() if text != MISSING_CATEGORY]
            if unknown:
                first = ", ".join(unknown[:5])
                log.warning('%s: column "%s": training data has no %s: encoded as no category', file, self.name, first)
        if self.integers:
            return np.where(is_known, position + 1, 0)[:, None]
        one_hot: Float32s = np.eye(len(known), dtype=np.float32)[position]
        return np.where(is_known[:, None], one_hot, np.float32(0))


def spell_values(names: Sequence[str], values: "ChunkedArray") -> Callable[[str], str] | None:
    """Return the function from the text of a number or boolean to the name of the same value; None for other columns.

    A CSV file's 01230 is read as the number 1230, and true as a boolean, which are not spelled as the names. A text
    that is one of the names, or has the value of several or none of them, stays.
    """
    from pyarrow import types

    if not _is_numeric(values):
        return None
    is_boolean = types.is_boolean(values.type)
    spelled: dict[float, list[str]] = {}
    for name in names:
        if (value := _value(name, is_boolean)) is not None:
            spelled.setdefault(value, []).append(name)

    def spell(text: str) -> str:
        found = () if text in names or (value := _value(text, is_boolean)) is None else spelled.get(value, ())
        return found[0] if len(found) == 1 else text

    return spell


def _value(text: str, is_boolean: bool) -> float | None:
    """Return the number or boolean that a text means, or None."""
    if is_boolean:
        return {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}.get(text.lower())
    for number in (int, float):  # int first: it is exact
        try:
            return number(text)
        except ValueError:
            continue
    return None


def encode_columns(encodings: Sequence[ColumnEncoding], columns: "Mapping[str, ChunkedArray]", file: str) -> Inputs:
    """Return the inputs of a table: one tensor, or numbers and categories by name.

    All problems of the columns are reported in one error.
    """
    blocks: dict[bool, list[np.ndarray[Any, Any]]] = {False: [], True: []}
    with Problems(file) as problems:
        for encoding in encodings:
            with problems.collected():
                blocks[encoding.integers].append(encoding.encode(columns[encoding.name], file))
    numbers, categories = (
        torch.from_numpy(np.concatenate(found, axis=1)) if found else None for found in blocks.values()
    )
    if numbers is None or categories is None:
        only = categories if numbers is None else numbers
        assert only is not None
        return only
    return TensorDict({NUMBERS: numbers, CATEGORIES: categories})


def has_too_many_texts(values: "ChunkedArray") -> bool:
    """Return True if a column is an identifier or free text: text with too many different values for categories."""
    return not _is_numeric(values) and _is_text(values) and len(values.unique()) > MAX_COLUMN_CATEGORIES


def warn_of_identifier(values: "ChunkedArray", name: str, file: str) -> None:
    """Warn of a feature that looks like an identifier: by its name, or a whole number that differs in every row."""
    from pyarrow import types

    is_whole = types.is_integer(values.type)
    is_unique = is_whole and len(values) >= MIN_ROWS_FOR_IDENTIFIER and len(values.unique()) == len(values)
    if is_unique or ID_NAME.search(name):
        why = "differs in every row" if is_unique else "is named so"
        text = f'{file}: column "{name}" looks like an identifier ({why}), and is used as a feature'
        warn_once(log, f"{text}: {_drop_hint(name)} if it is one")


@dataclass(frozen=True)
class TextEncoding:
    """Encoding of texts as token ids."""

    max_tokens: int
    tokenizer: str | None = None  # folder or name of a tokenizer of transformers; None: words
    size: int = 0  # number of token ids of the words
    column: str | None = None  # of a table


@dataclass(frozen=True)
class Preprocessing:
    """Everything that turns raw examples into the inputs of a model, and its outputs into class names."""

    classes: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]  # shape of one example by input name; "" for a single input
    types: Mapping[str, str]  # torch type by input name
    columns: tuple[ColumnEncoding, ...] = ()  # of a table
    text: TextEncoding | None = None  # of texts
    feature_mean: tuple[float, ...] | None = None  # of standardised inputs
    feature_std: tuple[float, ...] | None = None
    pixel_mean: tuple[float, ...] | None = None  # per channel, of values in [0, 1]
    pixel_std: tuple[float, ...] | None = None
    vocabulary: int | None = None  # number of token ids, of texts

    @property
    def transform(self) -> Transform:
        """Normalisation of images; batches of texts have the length of their longest text."""
        return Transform(mean=self.pixel_mean, std=self.pixel_std, trim=self.text is not None)

    def encode_table(self, columns: "Mapping[str, ChunkedArray]", file: str) -> Inputs:
        """Return the inputs of a table; columns that are no features are ignored."""
        if missing := [column.name for column in self.columns if column.name not in columns]:
            hint = f"the model needs the columns {', '.join(column.name for column in self.columns)}"
            raise UserError("data.missing_column", f"{file}: there is no column {', '.join(missing)}", file, hint)
        return encode_columns(self.columns, columns, file)

    def checked(self, x: Inputs) -> Inputs:
        """Return inputs of the shapes and types of the training data; integers become floats where it has these."""
        tensors = {name.removeprefix("."): t for name, t in named_tensors(x, "").items()}
        shapes = {name: tuple(t.shape[1:]) for name, t in tensors.items()}
        if shapes != dict(self.shapes):
            message = f"data: examples are {shapes}, and the model takes {dict(self.shapes)}"
            raise UserError("data.shape_mismatch", message, "data", "pass inputs of this shape")
        for name, t in tensors.items():
            wanted: torch.dtype = getattr(torch, self.types[name])
            if wanted.is_floating_point and (t.is_floating_point() or t.dtype == torch.int64):
                tensors[name] = t.to(wanted)
            elif t.dtype != wanted:
                message = f"data: numbers are {t.dtype}, and the model was trained on {wanted}".replace("torch.", "")
                raise UserError("data.shape_mismatch", message, name or "data", "convert them as for the training")
        return TensorDict(tensors) if isinstance(x, TensorDict) else tensors[""]

    def standardise(self, x: Inputs) -> Inputs:
        """Return inputs with the mean and standard deviation of the training data removed, where it was fitted."""
        if self.feature_mean is None or isinstance(x, TensorDict):
            return x
        shape = self.shapes[""]
        return (x.float() - torch.tensor(self.feature_mean).view(shape)) / torch.tensor(self.feature_std).view(shape)

    def zeros(self, n: int = 2) -> Inputs:
        """Return inputs of zeros, as a model's forward takes them before the normalisation of images."""
        made = {
            name: torch.zeros(n, *shape, dtype=getattr(torch, self.types[name])) for name, shape in self.shapes.items()
        }
        return made[""] if "" in made else TensorDict(made)

    def to_json(self) -> dict[str, Any]:
        """Return the content as JSON's types."""
        return {key: value for key, value in asdict(self).items() if value not in (None, (), {})}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        fields["shapes"] = {name: tuple(shape) for name, shape in content["shapes"].items()}
        if not all(type(n) is int and n >= 0 for shape in fields["shapes"].values() for n in shape):
            raise ValueError("a shape has other values than whole numbers")
        if any(prod(shape) > MAX_INPUT_SIZE for shape in fields["shapes"].values()):
            raise ValueError(f"an input has more than {MAX_INPUT_SIZE} numbers")
        fields["columns"] = tuple(
            ColumnEncoding(**column | {"categories": tuple(column["categories"]) if column["categories"] else None})
            for column in content.get("columns", ())
        )
        fields["text"] = None if content.get("text") is None else TextEncoding(**content["text"])
        return cls(**fields)


def column_sums(values: "ChunkedArray", name: str, file: str, missing: MissingRule) -> ColumnSums:
    """Return the exact sums of a column of numbers, without missing ones."""
    numbers = _numbers(values, name, file, missing)
    return ColumnSums.of(numbers[~np.isnan(numbers)])


def _is_numeric(values: "ChunkedArray") -> bool:
    from pyarrow import types

    kind = values.type
    checks = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(check(kind) for check in checks)


def _is_text(values: "ChunkedArray") -> bool:
    from pyarrow import types

    checks = (types.is_nested, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return not any(check(values.type) for check in checks)


def _numbers(
    values: "ChunkedArray", name: str, file: str, missing: MissingRule
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a column of numbers; NaN where one is missing."""
    _require_no_missing(values, name, file, missing)
    # By DLPack, because `to_numpy` of pyarrow imports pandas, which costs a node half a second in every message.
    chunks = values.cast("float64", safe=False).fill_null(float("nan")).chunks
    numbers = np.concatenate([np.from_dlpack(chunk) for chunk in chunks])
    if not np.isfinite(numbers if missing == "refuse" else numbers[~np.isnan(numbers)]).all():
        raise UserError(
            "data.not_finite",
            f'{file}: column "{name}" has values that are not finite (NaN or infinity)',
            file,
            "replace them, or drop the rows",
        )
    return numbers


def _require_no_missing(values: "ChunkedArray", name: str, file: str, missing: MissingRule) -> None:
    if values.null_count and missing == "refuse":
        raise missing_value_error(values, name, file, FILL_HINT)


def missing_value_error(values: "ChunkedArray", name: str, file: str, hint: str) -> UserError:
    """Return the error for a column with missing values."""
    message = f'{file}: column "{name}" has no value in {values.null_count} of {len(values)} rows'
    return UserError("data.missing_value", message, file, hint)


def _drop_hint(name: str) -> str:
    return f'drop it (data.drop = ["{name}"])'


def _texts(values: "ChunkedArray") -> np.ndarray[Any, Any]:
    return np.asarray([MISSING_CATEGORY if value is None else value for value in values.to_pylist()]).astype(str)
