"""Common form of the nodes' own data: each node describes its data, the server fixes columns, classes and scaling.

The description of a node has names, categories, shapes, and for columns of numbers their exact sums: no example. The
schema that the server makes of the descriptions is part of every later request, and is the same for the whole run.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal, Self, cast
from unicodedata import category

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedrecall.config.data_section import DataSection
from fedrecall.core.reply_validation import MAX_CLIENT_EXAMPLES
from fedrecall.data.column_sums import ColumnSums
from fedrecall.data.dataset import Dataset, list_names
from fedrecall.data.preprocessing import MAX_COLUMN_CATEGORIES, ColumnEncoding, Preprocessing, encode_columns
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError, printable
from fedrecall.flower.codec import InvalidMessage
from fedrecall.tensor_dict import Inputs

MAX_NAMES = 100_000  # columns or classes of a description

MAX_EXAMPLE_SIZE = 2**26  # numbers of one input: the server makes two examples of zeros from a description

MAX_DESCRIPTION = 2**26  # characters


def is_printable(name: str) -> bool:
    """Return True if a name has no control characters, such as those of terminals; any kind of space is allowed."""
    return all(c.isprintable() or category(c) == "Zs" for c in name)


def _require_printable(name: str) -> str:
    if not is_printable(name):
        raise ValueError("a name has unprintable characters")
    return name


Name = Annotated[str, Field(max_length=1000), AfterValidator(_require_printable)]


class NodeModel(BaseModel):
    """Base of what a node sends as JSON: strict, because the sender may be hostile."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ColumnForm(NodeModel):
    """One column of a node's table."""

    name: Name
    categories: Annotated[tuple[Name, ...], Field(max_length=MAX_COLUMN_CATEGORIES)] | None = None
    """None: a column of numbers."""
    flag: bool = False
    """True if a further feature marks missing values."""
    sums: tuple[Annotated[int, Field(le=MAX_CLIENT_EXAMPLES)], str, str] | None = None
    """Exact sums of the numbers, if the mean and the standard deviation are fitted."""

    @cached_property
    def column_sums(self) -> ColumnSums:
        """Sums of the numbers; none if they are not fitted."""
        return ColumnSums.merge([]) if self.sums is None else ColumnSums.from_json(list(self.sums))

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        if self.sums is not None and (self.categories is not None or self.column_sums.number == 0):
            raise ValueError("sums of a column without numbers")
        if self.sums is not None and _is_out_of_range(self.column_sums):
            raise ValueError("the mean square of a column is out of range")
        return self


class DataDescription(NodeModel):
    """Form of a node's own data."""

    classes: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]
    shapes: dict[Name, Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=8)]]
    """Shape of one example by input name; "" for a single input."""
    types: dict[Name, Literal["uint8", "float32", "int64", "bool"]]
    columns: Annotated[tuple[ColumnForm, ...], Field(max_length=MAX_NAMES)] = ()
    """Columns of a table."""
    vocabulary: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Number of token ids, of texts."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if self.shapes.keys() != self.types.keys() or not 0 < len(self.shapes) <= 16:
            raise ValueError("shapes and types are of different inputs")
        if any(prod(shape) > MAX_EXAMPLE_SIZE for shape in self.shapes.values()):
            raise ValueError("an example is too large")
        return self

    @classmethod
    def of(cls, data: Preprocessing, sums: Mapping[str, ColumnSums] | None = None) -> Self:
        """Return the description of data, with the sums of those columns whose statistics are fitted."""
        for code, where, names in (
            ("data.invalid_labels", "class", data.classes),
            ("data.invalid_inputs", "column", [column.name for column in data.columns]),
            ("data.invalid_inputs", "category", [name for column in data.columns for name in column.categories or ()]),
        ):
            if wrong := next((name for name in names if not is_printable(name)), None):
                message = f"{where} {wrong!a}: the name has unprintable characters"
                raise UserError(code, message, printable(wrong), "rename it")
        if wrong := next((name for name, found in (sums or {}).items() if _is_out_of_range(found)), None):
            message = f'column "{wrong}" has numbers whose square is out of range'
            raise UserError("data.not_finite", message, wrong, "divide them by a power of ten")
        columns = tuple(
            ColumnForm(
                name=column.name,
                categories=column.categories,
                flag=column.flag,
                sums=tuple(sums[column.name].to_json()) if sums and column.name in sums else None,
            )
            for column in data.columns
        )
        return cls(
            classes=data.classes,
            shapes=dict(data.shapes),
            types=cast(Any, dict(data.types)),  # validated
            columns=columns,
            vocabulary=data.vocabulary,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the description that a node sent."""
        try:
            if len(text) > MAX_DESCRIPTION:
                raise ValueError(f"{len(text)} characters, the maximum is {MAX_DESCRIPTION}")
            return cls.model_validate_json(text)
        except (ValidationError, ValueError, ZeroDivisionError) as error:
            detail = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            message = f"the description of the node's data is invalid ({printable(detail, 200)})"
            raise InvalidMessage("reply.invalid_field", message) from None

    @property
    def form(self) -> object:
        """The part that must be equal on all nodes: names and types of the columns, or the form of the inputs."""
        if self.columns:
            return frozenset((column.name, column.categories is None) for column in self.columns)
        if self.vocabulary is not None:  # texts have any length
            return self.vocabulary, tuple(self.types.items())
        return tuple(sorted(self.shapes.items())), tuple(sorted(self.types.items()))


def merge_descriptions(
    descriptions: Mapping[int, DataDescription],
    section: DataSection,
    server: DataDescription | None,
    examples: Mapping[int, int],
) -> tuple[Preprocessing, dict[int, UserError]]:
    """Return the common schema of a federation, and by client why its data does not fit.

    `examples` are the numbers of training examples by client. Columns, inputs and classes are those of the server's
    data, if it has any. Otherwise they are those of most nodes, and the classes are data.labels or those of all nodes
    together. The statistics are always those of the nodes.
    """
    problems = {
        client: problem
        for client, description in sorted(descriptions.items())
        if (problem := _find_excess_rows(description, examples[client], section)) is not None
    }
    ordered = [descriptions[client] for client in sorted(descriptions) if client not in problems]
    if not ordered:
        raise next(iter(problems.values()))
    reference = server
    if reference is None:
        form, _ = Counter(description.form for description in ordered).most_common(1)[0]
        reference = next(description for description in ordered if description.form == form)
    classes = reference.classes if server is not None else section.labels
    if classes is None:
        fitting = [description for description in ordered if description.form == reference.form]
        classes = sort_names({name for description in fitting for name in description.classes})
    reference = reference.model_copy(update={"classes": tuple(classes)})
    for client, description in sorted(descriptions.items()):
        if client not in problems and (problem := find_misfit(description, reference)) is not None:
            problems[client] = problem
    fixed = section.column_encodings or {}
    for column in reference.columns:
        if column.categories is not None and fixed.get(column.name) is None:
            remaining = {client: each for client, each in descriptions.items() if client not in problems}
            problems |= _find_excess_categories(column.name, remaining, server)
    parts = [description for client, description in sorted(descriptions.items()) if client not in problems]
    if not parts:
        raise next(iter(problems.values()))
    known = parts if server is None else [*parts, server]
    columns = tuple(_merge(column, parts, known, section) for column in reference.columns)
    return placeholder(reference, columns).preprocessing(), problems


def find_misfit(description: DataDescription, reference: DataDescription) -> UserError | None:
    """Return why a node's data does not fit the data of the federation, or None."""
    if unknown := [name for name in description.classes if name not in reference.classes]:
        classes = list_names(reference.classes, 20)
        message = f"the data has the class {list_names(unknown)}, which is not one of the federation: {classes}"
        return UserError("data.unknown_class", message, unknown[0], "rename or remove it")
    if description.form == reference.form:
        return None
    if not reference.columns or not description.columns:
        found, expected = (_describe_inputs(part) for part in (description, reference))
        message = f"the inputs are {found}, those of the federation {expected}"
        return UserError("data.shape_mismatch", message, "data", "use the same form on all nodes, such as by data.size")
    kinds, expected_kinds = (
        {column.name: "text" if column.categories is not None else "numbers" for column in part.columns}
        for part in (description, reference)
    )
    if missing := [name for name in expected_kinds if name not in kinds]:
        columns = list_names(list(expected_kinds), 20)
        message = f"the table has no column {list_names(missing)}; the federation has {columns}"
        return UserError("data.missing_column", message, missing[0], "add it, or remove it from data.columns")
    if further := [name for name in kinds if name not in expected_kinds]:
        message = f"the table has the column {list_names(further)}, which the federation does not have"
        return UserError("data.unknown_column", message, further[0], "remove it, or name the features in data.columns")
    name = next(name for name, kind in kinds.items() if kind != expected_kinds[name])
    message = f'column "{name}" is {kinds[name]} and {expected_kinds[name]} in the federation'
    return UserError("data.invalid_inputs", message, name, "use one type on all nodes")


def placeholder(form: DataDescription, columns: Sequence[ColumnEncoding]) -> Dataset:
    """Return a data set of this form with two examples that mean nothing, for a server without data."""
    x: Inputs
    if columns:
        from pyarrow import chunked_array

        rows = {
            column.name: chunked_array([[0.0, 0.0] if column.categories is None else [column.categories[-1]] * 2])
            for column in columns
        }
        x = encode_columns(columns, rows, "schema")
    else:
        shapes, types = dict(form.shapes), dict(form.types)
        x = Preprocessing(form.classes, shapes, types).zeros()
    y = torch.zeros(2, dtype=torch.int64)
    data = Dataset("nodes", x, y, x[:0], y[:0], form.classes, columns=tuple(columns), vocabulary=form.vocabulary)
    return data if form.vocabulary is None else replace(data, test_transform=Transform(trim=True))


def sort_names(names: set[str]) -> tuple[str, ...]:
    """Sort class names as the labels of one table are sorted: whole numbers by value, texts by alphabet.

    >>> sort_names({"10", "9"}), sort_names({"b", "a", "10"})
    (('9', '10'), ('10', 'a', 'b'))
    """
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(sorted(names))


def dump_data_schema(schema: Preprocessing | None) -> str:
    """Return a schema as text for a request; empty without one."""
    return "" if schema is None else json.dumps(schema.to_json())


def load_data_schema(text: str) -> Preprocessing | None:
    """Read what `dump_data_schema` returned."""
    return Preprocessing.from_json(json.loads(text)) if text else None


def _is_out_of_range(sums: ColumnSums) -> bool:
    """Return True if the mean square is out of range. If none is, no mean or deviation of nodes together is either."""
    try:
        return sums.number > 0 and not math.isfinite(sums.squares / sums.number)
    except OverflowError:
        return True


def _find_excess_rows(description: DataDescription, n: int, section: DataSection) -> UserError | None:
    """Return an error if sums are of more rows than a node with `n` training examples has, or None.

    The sums are of all rows of the node, of which shares are held out, each rounded up to a whole example. Whole groups
    may be any share of the rows.
    """
    if section.group is not None:
        return None
    rows = float(n)
    for share in (section.validation, section.client_test):
        rows = (rows + 1) / (1 - share) if share else rows
    for column in description.columns:
        if column.column_sums.number > rows + 1:  # 1: rounding of the division
            message = f'column "{column.name}" has sums of {column.column_sums.number} rows, and the node {n} examples'
            return UserError("reply.invalid_value", message, column.name, "use the same fedrecall on all machines")
    return None


def _find_excess_categories(
    name: str, descriptions: Mapping[int, DataDescription], server: DataDescription | None
) -> dict[int, UserError]:
    """Return an error for each client without which a column of text has few enough categories.

    Clients are left out one by one, each time the one with most categories, where each counts 1 / the number of nodes
    that have it: one node cannot displace those that agree with each other.
    """
    by_client = {client: set(_column(each, name).categories or ()) for client, each in sorted(descriptions.items())}
    holders = Counter(value for categories in by_client.values() for value in categories)
    holders.update(() if server is None else _column(server, name).categories or ())
    out: dict[int, UserError] = {}
    while by_client and len(holders) > MAX_COLUMN_CATEGORIES:
        shares = {client: sum(1 / holders[value] for value in sorted(found)) for client, found in by_client.items()}
        client = max(shares, key=lambda client: (shares[client], client))
        message = f'column "{name}" has {len(holders)} different values on all nodes together'
        hint = "drop it (data.drop), or turn it into numbers"
        out[client] = UserError("data.text_column", message, name, hint)
        holders -= Counter(by_client.pop(client))  # keeps positive counts only
    return out


def _merge(
    column: ColumnForm, parts: Sequence[DataDescription], known: Sequence[DataDescription], section: DataSection
) -> ColumnEncoding:
    """Return the encoding of a column for the rows of all nodes."""
    fixed = (section.column_encodings or {}).get(column.name)
    if fixed is not None:
        return fixed
    missing = section.missing or "refuse"
    if column.categories is None:
        found = [_column(part, column.name) for part in parts]
        sums, flag = ColumnSums.merge(form.column_sums for form in found), any(form.flag for form in found)
        return ColumnEncoding.of_numbers(column.name, sums, "the federation", missing, flag=flag)
    names = sorted({name for part in known for name in _column(part, column.name).categories or ()})
    return ColumnEncoding(column.name, tuple(names), missing=missing, integers=section.categorical == "integers")


def _column(description: DataDescription, name: str) -> ColumnForm:
    return next(column for column in description.columns if column.name == name)


def _describe_inputs(form: DataDescription) -> str:
    if form.columns:
        return f"a table of {len(form.columns)} columns"
    if form.vocabulary is not None:
        return f"texts of {form.vocabulary} different tokens"
    return ", ".join(f"{name} {list(shape)} {form.types[name]}".strip() for name, shape in form.shapes.items())
