"""Preprocessing: the transformation of raw examples to inputs of the model, fitted on the training data and stored.

It contains the names of features and classes, and no names of clients.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError
from fedrecall.tensor_dict import Inputs, TensorDict

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

Floats = np.ndarray[Any, np.dtype[np.float32]]

MAX_COLUMN_CATEGORIES = (
    50  # distinct values of a text column; one with more is an identifier or free text, not a feature
)

MAX_INPUT_SIZE = 2**28  # numbers of one example, in a file that another process wrote

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnEncoding:
    """Encoding of one column of a table: numbers are centred and scaled, categories are encoded one-hot."""

    name: str
    categories: tuple[str, ...] | None = None  # None: a column of numbers
    center: float = 0.0
    scale: float = 1.0

    @classmethod
    def fit(cls, values: "ChunkedArray", name: str, file: str) -> Self:
        """Return the encoding of a column, from its values."""
        if _is_numeric(values):
            # Values such as timestamps are too large for float32 unless centred. Standardising by the training part
            # later removes the effect of this step.
            numbers = _numbers(values, name, file)
            return cls(name, center=float(numbers.mean()), scale=float(numbers.std()) or 1.0)
        if not _is_text(values):
            message = f'{file}: column "{name}" has values of type {values.type}, neither numbers nor text'
            raise UserError("data.unsupported_type", message, file, "convert or drop the column")
        categories = np.unique(_texts(values))
        if len(categories) > MAX_COLUMN_CATEGORIES:
            raise UserError(
                "data.text_column",
                f'{file}: column "{name}" has {len(categories)} different values, more than {MAX_COLUMN_CATEGORIES}',
                file,
                "drop it, or turn it into numbers",
            )
        return cls(name, tuple(categories.tolist()))

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 if self.categories is None else len(self.categories)

    def encode(self, values: "ChunkedArray", file: str) -> Floats:
        """Return the features of a column, float32 [n, width]. A category that was not fitted has no feature."""
        if self.categories is None:
            if not _is_numeric(values):
                message = f'{file}: column "{self.name}" is text, and was numbers in training'
                raise UserError("data.invalid_inputs", message, file, "pass numbers")
            return ((_numbers(values, self.name, file) - self.center) / self.scale).astype(np.float32)[:, None]
        texts, known = _texts(values), np.asarray(self.categories)
        position = np.searchsorted(known, texts).clip(max=len(known) - 1)
        is_known = known[position] == texts
        if not is_known.all():
            missing = ", ".join(np.unique(texts[~is_known])[:5].tolist())
            log.warning('%s: column "%s": training data has no %s: encoded as no category', file, self.name, missing)
        one_hot: Floats = np.eye(len(known), dtype=np.float32)[position]
        return np.where(is_known[:, None], one_hot, np.float32(0))


@dataclass(frozen=True)
class Preprocessing:
    """Everything that turns raw examples into the inputs of a model, and its outputs into class names."""

    classes: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]  # shape of one example by input name; "" for a single input
    types: Mapping[str, str]  # torch type by input name
    columns: tuple[ColumnEncoding, ...] = ()  # of a table
    feature_mean: tuple[float, ...] | None = None  # of standardised inputs
    feature_std: tuple[float, ...] | None = None
    pixel_mean: tuple[float, ...] | None = None  # per channel, of values in [0, 1]
    pixel_std: tuple[float, ...] | None = None

    @property
    def transform(self) -> Transform:
        """Normalisation of images."""
        return Transform(mean=self.pixel_mean, std=self.pixel_std)

    def encode_table(self, columns: "Mapping[str, ChunkedArray]", file: str) -> Inputs:
        """Return the inputs of a table; columns that are no features are ignored."""
        if missing := [column.name for column in self.columns if column.name not in columns]:
            hint = f"the model needs the columns {', '.join(column.name for column in self.columns)}"
            raise UserError("data.missing_column", f"{file}: there is no column {', '.join(missing)}", file, hint)
        for column in self.columns:
            if nulls := columns[column.name].null_count:
                message = f'{file}: column "{column.name}" has no value in {nulls} rows'
                raise UserError("data.missing_value", message, file, "fill or drop them")
        blocks = [column.encode(columns[column.name], file) for column in self.columns]
        return self.standardise(torch.from_numpy(np.concatenate(blocks, axis=1)))

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
        return cls(**fields)


def _is_numeric(values: "ChunkedArray") -> bool:
    from pyarrow import types

    kind = values.type
    checks = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(check(kind) for check in checks)


def _is_text(values: "ChunkedArray") -> bool:
    from pyarrow import types

    checks = (types.is_nested, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return not any(check(values.type) for check in checks)


def _numbers(values: "ChunkedArray", name: str, file: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    # By DLPack, because `to_numpy` of pyarrow imports pandas, which costs a node half a second in every message.
    chunks = values.cast("float64", safe=False).chunks
    numbers = np.concatenate([np.from_dlpack(chunk) for chunk in chunks])
    if not np.isfinite(numbers).all():
        raise UserError(
            "data.not_finite",
            f'{file}: column "{name}" has values that are not finite (NaN or infinity)',
            file,
            "fill or drop them",
        )
    return numbers


def _texts(values: "ChunkedArray") -> np.ndarray[Any, Any]:
    return np.asarray(values.to_pylist()).astype(str)
