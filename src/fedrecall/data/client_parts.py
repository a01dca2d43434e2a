"""Data sets of clients, joined to the examples of one data set: common encoding, labels by name, units kept apart."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedrecall.data.dataset import Dataset, encode_labels, input_forms
from fedrecall.data.inputs import RawExamples, read_columns, read_items, to_inputs
from fedrecall.errors import UserError
from fedrecall.tensor_dict import concatenate

_ENCODING_FIELDS = ("columns", "vocabulary", "text", "test_transform", "scaling")  # of a `Dataset`


def is_hub_data(data: Any) -> bool:
    """Return True if `data` is a Hugging Face dataset, of one or several splits."""
    hub = sys.modules.get("datasets")  # not imported: then `data` is none of its objects
    return hub is not None and isinstance(data, hub.Dataset | hub.DatasetDict)


def read_part(part: Any, name: str, *, test: bool) -> RawExamples:
    """Return the training or test examples of one client's data set, with labels by name."""
    if is_hub_data(part):
        if isinstance(part, Mapping):
            message = f'data "{name}": a client\'s data has several splits ({", ".join(part)})'
            raise UserError("data.unsupported_type", message, "data", 'pass one split, such as data["train"]')
        raw, classes = read_columns(part, None, "label", None, None, name)
        if classes is None:
            return raw
        (labels,), _ = encode_labels([raw.y], classes, "labels", name)  # refuses -1, which is no label
        return replace(raw, y=[classes[i] for i in labels.tolist()])
    if isinstance(part, Dataset):
        x, y = (part.test_x, part.test_y) if test else (part.train_x, part.train_y)
        if y.ndim > 1:
            message, hint = f'data "{name}": tokens have labels', "pass all texts to from_tokens(..., clients=)"
            raise UserError("data.unsupported_type", message, "data", hint)
        units = None if test or part.train_units is None else part.train_units.tolist()
        return RawExamples(x, [part.classes[i] for i in y.tolist()], groups=units)
    if isinstance(part, TorchDataset):
        return read_items(part, name)
    if isinstance(part, tuple) and len(part) == 2:
        return RawExamples(to_inputs(part[0], name), part[1])
    message = f'data "{name}": a client\'s data of type {type(part).__name__} is not supported'
    raise UserError("data.unsupported_type", message, "data", "pass (x, y), or a torch or Hugging Face dataset")


def common_classes(parts: Iterable[Dataset]) -> tuple[str, ...]:
    """Return the classes of all clients: in the order that all have, or else sorted, as numbers if they are some."""
    stated = {part.classes for part in parts}
    names = {name for classes in stated for name in classes}
    if len(stated) == 1:
        return stated.pop()
    return tuple(sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names))


def common_encoding(parts: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """Return the encoding of the inputs, by field of `Dataset`; raise an error if clients have different ones."""
    # raw examples have no encoding, which is the default of every field
    found = {
        client: {key: getattr(part if isinstance(part, Dataset) else Dataset, key) for key in _ENCODING_FIELDS}
        for client, part in parts.items()
    }
    first = next(iter(found))
    for client, encoding in found.items():
        if odd := [key for key in _ENCODING_FIELDS if _comparable(encoding[key]) != _comparable(found[first][key])]:
            raise UserError(
                "data.shape_mismatch",
                f'data "{name}": the inputs of client {client} are encoded in another way than those of client {first} '
                f"(different {', '.join(odd)})",
                str(client),
                "join the examples of all clients and name the client of each: from_table(..., client=) or "
                "from_arrays(..., clients=)",
            )
    return found[first]


def _comparable(value: Any) -> Any:
    """Return tensors as lists, and other values as they are."""
    is_tensors = isinstance(value, tuple) and all(isinstance(t, Tensor) for t in value)
    return [t.tolist() for t in value] if is_tensors else value


def _join_units(parts: Mapping[Any, RawExamples]) -> list[int] | None:
    """Return the units of all clients; None if no client has any. Without units each example is one.

    Units of two clients are never the same one, because a `Dataset` has no names of units.
    """
    if all(part.groups is None for part in parts.values()):
        return None
    units, offset = list[int](), 0
    for part in parts.values():
        own = range(len(part.y)) if part.groups is None else part.groups
        units += [offset + unit for unit in own]
        offset += max(own, default=-1) + 1
    return units


def join_parts(parts: dict[Any, RawExamples], name: str) -> RawExamples:
    """Concatenate the examples of all clients."""
    first = next(iter(parts))
    forms = {client: input_forms(part.x) for client, part in parts.items()}
    for client, form in forms.items():
        if form != forms[first]:
            raise UserError(
                "data.shape_mismatch",
                f'data "{name}": the inputs of client {client} are {_text(form)}, those of client {first} '
                f"{_text(forms[first])}",
                str(client),
                "use the same names, shapes and types for all clients; pass all texts to from_text(..., clients=)",
            )
        if len(parts[client].x) != len(parts[client].y):
            message = (
                f'data "{name}": client {client} has {len(parts[client].x)} inputs but {len(parts[client].y)} labels'
            )
            raise UserError("data.length_mismatch", message, "labels", "pass one label for each input")
    owners = [client for client, part in parts.items() for _ in part.y]
    x = concatenate([part.x for part in parts.values()])
    labels = [label for part in parts.values() for label in part.y]
    return RawExamples(x, labels, owners, _join_units(parts))


def _text(form: dict[str, str]) -> str:
    return ", ".join(f"{name} {text}".strip() for name, text in form.items())
