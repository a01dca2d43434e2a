"""Examples as their owner has them, on their way to a `Dataset`: checked, numbered, split, standardised."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.catalog import Dataset
from fedrecall.data.examples import encode_labels, stratified_holdout
from fedrecall.errors import UserError, first_line


@dataclass(frozen=True)
class RawExamples:
    """Examples as their owner has them: labels and clients are not numbered yet."""

    x: Tensor
    y: Sequence[Any]
    clients: Sequence[Any] | None = None


def make_dataset(
    name: str, train: RawExamples, test: float | RawExamples, classes: tuple[str, ...] | None, seed: int
) -> Dataset:
    """Number labels and clients alike in both parts, and hold out a test part where there is none."""
    parts = [train, test] if isinstance(test, RawExamples) else [train]
    for part in parts:
        for what, values in (("labels", part.y), ("clients", part.clients)):
            if values is not None and len(values) != len(part.x):
                raise UserError(
                    "data.length_mismatch",
                    f'data "{name}": {len(part.x)} inputs but {len(values)} {what}',
                    what,
                    f"pass one of the {what} for each input",
                )
    labels, names = encode_labels([part.y for part in parts], classes, "labels", name)
    if len(names) == 1:
        raise UserError(
            "data.one_class",
            f'data "{name}": all labels are {names[0]}',
            "labels",
            "pass examples of two or more classes",
        )
    known = [part.clients for part in parts if part.clients is not None]
    groups, group_names = encode_labels(known, None, "clients", name) if known else ([], ())
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
    a, b = (rows.sort().values for rows in stratified_holdout(y, test, seed))
    if len(b) == 0:
        raise UserError(
            "data.cannot_hold_out",
            f'data "{name}": no class has two examples, so none can be held out',
            "test",
            "pass test data",
        )
    return Dataset(
        name, x[a], y[a], x[b], y[b], names, None if g is None else g[a], None if g is None else g[b], group_names
    )


def standardise_inputs(data: Dataset, numeric: Tensor | None = None) -> Dataset:
    """Features with mean 0 and deviation 1 in the training part; only those for which `numeric` holds, if given."""
    keep = torch.zeros(data.shape, dtype=torch.bool) if numeric is None else ~numeric
    deviation, mean = torch.std_mean(data.train_x, dim=0, correction=0)
    mean, deviation = mean.masked_fill(keep, 0.0), deviation.masked_fill(keep | (deviation == 0), 1.0)
    return replace(data, train_x=(data.train_x - mean) / deviation, test_x=(data.test_x - mean) / deviation)


def to_input_tensor(x: Any, name: str) -> Tensor:
    """Inputs as uint8 [N, C, H, W] or float32 [N, ...], without a copy where they are so already."""
    if hasattr(x, "toarray"):  # a sparse matrix, such as scikit-learn makes of texts
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
            f'data "{name}": inputs must be numbers of shape [examples, ...], and some are words',
            "inputs",
            "turn texts into vectors; for a table with columns of words use fedrecall.from_table",
        )
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        raise UserError(
            "data.invalid_inputs",
            f'data "{name}": inputs are {array.dtype} of shape {list(array.shape)}',
            "inputs",
            "pass numbers of shape [examples, ...]",
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor do we write to it
        if array.dtype != np.uint8:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        tensor = torch.from_numpy(np.ascontiguousarray(array))
    if tensor.ndim == 3:
        return tensor.unsqueeze(1)
    last = tensor.ndim == 4 and tensor.shape[3] in (1, 3, 4) and tensor.shape[1] not in (1, 3, 4)
    return tensor.permute(0, 3, 1, 2).contiguous() if last else tensor
