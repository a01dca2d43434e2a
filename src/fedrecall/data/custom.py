"""User-defined data: arrays, torch and Hugging Face datasets and folders of images, converted to a `Dataset`.

Without test data, a share of every class is held out; `Dataset.split_again` draws another one. If the client of every
example is specified, the clients become the groups of the data set, for the partitioner "groups".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedrecall.data.catalog import DATASETS
from fedrecall.data.client_parts import common_classes, common_encoding, is_hub_data, join_parts, read_part
from fedrecall.data.dataset import Dataset, encode_labels, with_classes
from fedrecall.data.inputs import RawExamples, from_images, read_columns, read_items, read_texts, to_inputs
from fedrecall.data.readers import find_idx_files, read_idx, read_image_folder, subfolders
from fedrecall.data.splits import holdout_rows, last_rows
from fedrecall.data.text import MAX_TOKENS, Tokenizer, describe_encoding, encode_texts
from fedrecall.data.transforms import Transform
from fedrecall.errors import Problems, UserError, unknown_name
from fedrecall.tensor_dict import TensorDict

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from datasets import DatasetDict as HubDatasetDict


_TEST_NAMES = ("test", "validation", "valid", "val")  # splits that are used as the test set, the first one found

Names = tuple[str, ...] | None


def from_arrays(
    x: Any,
    y: Sequence[Any],
    *,
    test: float | tuple[Any, Sequence[Any]] = 0.2,
    clients: Sequence[Any] | None = None,
    groups: Sequence[Any] | None = None,
    classes: Sequence[str] | None = None,
    standardise: bool = False,
    name: str = "arrays",
    seed: int = 0,
) -> Dataset:
    """Build a data set from arrays, tensors, lists or sparse matrices.

    `test` is the share to hold out, 0 for none, or a pair (x, y). Examples of one group (`groups`, such as the patient
    of each example) are never on both sides of a split.

    uint8 images may be [N, C, H, W], [N, H, W, C] or [N, H, W]; the model receives values in [0, 1]. Other integers
    stay integers, for embeddings, and other numbers become float32. `standardise` scales numbers to mean 0 and standard
    deviation 1 in the training part. A dictionary of arrays is several inputs, which the model receives as keyword
    arguments. Labels and clients are whole numbers or text; with `classes`, labels are positions in it.

    >>> data = from_arrays([[170.0, 60.0], [181.0, 82.0]] * 50, ["a", "b"] * 50, standardise=True)
    >>> len(data.train_y), len(data.test_y), data.classes
    (80, 20, ('a', 'b'))
    """
    test_part = RawExamples(to_inputs(test[0], name), test[1]) if isinstance(test, tuple) else test
    names = None if classes is None else tuple(classes)
    data = make_dataset(name, RawExamples(to_inputs(x, name), y, clients, groups), test_part, names, seed)
    if not isinstance(test, tuple):
        options: dict[str, Any] = {"clients": clients, "groups": groups, "classes": classes, "standardise": standardise}
        data = replace(data, split_again=partial(from_arrays, x, y, test=test, name=name, seed=seed, **options))
    if not standardise:
        return data
    if isinstance(data.train_x, TensorDict) or data.train_x.dtype == torch.uint8:
        found = "several inputs by name" if isinstance(data.train_x, TensorDict) else "images, which become [0, 1]"
        raise UserError(
            "config.conflict",
            f'data "{name}": standardise = true: the inputs are {found}',
            "standardise",
            "remove standardise",
        )
    return standardise_inputs(data)


def from_torch(
    data: "TorchDataset[Any]",
    *,
    test: "float | TorchDataset[Any]" = 0.2,
    clients: Sequence[Any] | None = None,
    name: str = "torch",
    seed: int = 0,
) -> Dataset:
    """Build a data set from a map-style torch dataset of pairs (x, y), or of dictionaries with a label.

    In a pair, x may be a dictionary: several inputs by name.

    All items are read once, so random transforms in the torch dataset are applied once, not in every epoch.

    >>> from torch.utils.data import TensorDataset
    >>> data = from_torch(TensorDataset(torch.rand(50, 3), torch.arange(50) % 2))
    >>> data.shape, len(data.test_y)
    ((3,), 10)
    """
    train = replace(read_items(data, name), clients=clients)
    if isinstance(test, TorchDataset):
        return make_dataset(name, train, read_items(test, name), None, seed)
    again = partial(from_torch, data, test=test, clients=clients, name=name, seed=seed)
    return replace(make_dataset(name, train, test, None, seed), split_again=again)


def from_huggingface(
    data: "HubDataset | HubDatasetDict",
    *,
    inputs: str | Sequence[str] | None = None,
    label: str = "label",
    client: str | None = None,
    test: float = 0.2,
    size: int | None = None,
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    max_tokens: int = MAX_TOKENS,
    name: str = "huggingface",
    seed: int = 0,
) -> Dataset:
    """Build a data set from a Hugging Face dataset.

    `inputs` is the column of images or the columns of numbers. None: the only column of images. Several columns of one
    number each become one vector; otherwise columns are inputs by name, which the model receives as keyword arguments.
    `text` names a column of texts instead; `tokenizer` and `max_tokens` are those of `from_text`.

    If `data` has several splits, "train" is the training set, and "test" or else "validation" the test set. Without
    either, the share `test` is held out.

    >>> from datasets import Dataset
    >>> rows = Dataset.from_dict({"height": [1.7, 1.9] * 20, "weight": [60.0, 82.0] * 20, "label": ["a", "b"] * 20})
    >>> from_huggingface(rows, inputs=["height", "weight"]).shape
    (2,)
    """
    splits = data if isinstance(data, dict) else {"train": data}
    if "train" not in splits:
        raise UserError(
            "data.not_found",
            f'data "{name}": there is no split "train" (splits: {", ".join(splits)})',
            "train",
            "pass one split",
        )
    test_split = next((splits[key] for key in _TEST_NAMES if key in splits), None)
    if text is not None:
        column, classes = read_texts(splits["train"], text, label, client, name)
        held_out = test if test_split is None else read_texts(test_split, text, label, client, name)[0][:2]
        options: dict[str, Any] = {"clients": column[2], "test": held_out, "classes": classes, "name": name}
        return from_text(*column[:2], tokenizer=tokenizer, max_tokens=max_tokens, seed=seed, **options)
    train, classes = read_columns(splits["train"], inputs, label, client, size, name)
    if test_split is not None:
        test_part = read_columns(test_split, inputs, label, client, size, name)[0]
        return make_dataset(name, train, test_part, classes, seed)
    columns: dict[str, Any] = {"inputs": inputs, "label": label, "client": client, "test": test, "size": size}
    again = partial(from_huggingface, data, name=name, seed=seed, **columns)
    return replace(make_dataset(name, train, test, classes, seed), split_again=again)


def from_text(
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    tokenizer: Tokenizer | None = None,
    clients: Sequence[Any] | None = None,
    groups: Sequence[Any] | None = None,
    test: float | tuple[Sequence[str], Sequence[Any]] = 0.2,
    max_tokens: int = MAX_TOKENS,
    classes: Sequence[str] | None = None,
    name: str = "text",
    seed: int = 0,
) -> Dataset:
    """Build a data set of texts.

    Without a `tokenizer`, texts are token ids of words, int64 [N, tokens] with 0 for padding, for the model "rnn" or an
    embedding of your own. With one of `transformers` (an object, or the folder of one), they are `input_ids` and
    `attention_mask`, as its models take them. Texts are cut at `max_tokens`, and a batch has the length of its longest
    text. The other arguments are those of `from_arrays`.

    >>> data = from_text(["a red rose", "two blue skies above"] * 10, ["flower", "sky"] * 10)
    >>> data.shape, data.classes
    ((4,), ('flower', 'sky'))
    """
    parts = [list(texts)] + ([list(test[0])] if isinstance(test, tuple) else [])
    (x, *others), vocabulary = encode_texts(parts, tokenizer, max_tokens, name)
    held_out = RawExamples(others[0], test[1]) if isinstance(test, tuple) else test
    names = None if classes is None else tuple(classes)
    data = make_dataset(name, RawExamples(x, labels, clients, groups), held_out, names, seed)
    if not isinstance(test, tuple):
        options: dict[str, Any] = {"tokenizer": tokenizer, "clients": clients, "groups": groups, "classes": classes}
        again = partial(from_text, texts, labels, test=test, max_tokens=max_tokens, name=name, seed=seed, **options)
        data = replace(data, split_again=again)
    encoding = describe_encoding(tokenizer, max_tokens)
    return replace(data, vocabulary=vocabulary, text=encoding, test_transform=Transform(trim=True))


def from_folder(
    path: str | Path,
    *,
    size: int | None = None,
    client: bool = False,
    classes: Sequence[str] | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Build a data set from images in path/<class>/, or in path/train/<class>/ and path/test/<class>/.

    With `client` there is a folder per client above the classes: path/<client>/<class>/. `size` resizes all images to a
    square of so many pixels; without it all images must have one size. `classes` are the classes in their order; a
    folder of another class is an error. Files in MNIST's own format are read, too.

    >>> from_folder("no/such/folder")
    Traceback (most recent call last):
    ...
    fedrecall.errors.UserError: no/such/folder: not a folder: use one that has a folder of images per class
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(
            "data.not_found",
            f"{folder}: not a folder",
            str(folder),
            "use one that has a folder of images per class",
        )
    train, test_part, names = _read_folder(folder, size, client)
    order = None if classes is None else tuple(classes)
    if test_part is None:
        return _draw_test_set(cast(Tensor, train.x), train, names, order, test, folder.name, seed)
    data = make_dataset(folder.name, train, test_part, names, seed)
    return data if order is None else with_classes(data, order)


def _draw_test_set(
    x: Tensor, about: RawExamples, names: Names, order: Names, test: float, name: str, seed: int
) -> Dataset:
    """Hold out a share of the decoded images `x`; `about` has their labels and clients."""
    about = replace(about, x=torch.arange(len(x)))  # the inputs follow once the rows are drawn
    drawn = make_dataset(name, about, test, names, seed)
    rows = cast(Tensor, drawn.train_x), cast(Tensor, drawn.test_x)
    parts = x[rows[0]], x[rows[1]]
    draw = partial(_draw_test_set, about=about, names=names, order=order, test=test, name=name, seed=seed)
    again = partial(_draw_another_test_set, parts, rows, draw)
    data = replace(drawn, train_x=parts[0], test_x=parts[1], split_again=again)
    return data if order is None else with_classes(data, order)


def _draw_another_test_set(
    parts: Sequence[Tensor], rows: Sequence[Tensor], draw: Callable[..., Dataset], **changes: float
) -> Dataset:
    """Put the parts of a split together again and split them otherwise: a copy of all would double the memory."""
    x = parts[0].new_empty((len(parts[0]) + len(parts[1]), *parts[0].shape[1:]))
    x[rows[0]], x[rows[1]] = parts
    return draw(x, **changes)


def _read_folder(
    folder: Path, size: int | None, client: bool
) -> tuple[RawExamples, RawExamples | None, tuple[str, ...] | None]:
    """Decode the training examples of a folder and its test examples, if it has any; return them and the classes."""
    if idx := find_idx_files(folder, "train"):
        train, idx_test = from_images(read_idx(*idx), folder.name, 1, size), find_idx_files(folder, "test")
        return train, None if idx_test is None else from_images(read_idx(*idx_test), folder.name, 1, size), None
    below = subfolders(folder)
    train_folder, test_folder = below.get("train"), next((below[key] for key in _TEST_NAMES if key in below), None)
    if train_folder is None or test_folder is None:
        train_folder, test_folder = folder, None
    splits = [read_image_folder(train_folder, grouped=client, within=folder)]
    if test_folder is not None:
        splits.append(read_image_folder(test_folder, splits[0].classes, grouped=client, within=folder))
    parts: list[RawExamples] = []
    with Problems(str(folder)) as problems:
        for split in splits:
            with problems.collected():
                channels = cast(Tensor, parts[0].x).shape[1] if parts else None
                parts.append(from_images(split, folder.name, channels, size))
    return parts[0], parts[1] if test_folder is not None else None, splits[0].classes


def from_clients(
    parts: Sequence[Any] | Mapping[str, Any], *, test: float = 0.2, name: str = "clients", seed: int = 0
) -> Dataset:
    """Build a data set from one data set for each client: a list, or a dictionary with the names of the clients.

    Each is a pair (x, y), a torch or Hugging Face dataset, or a `Dataset`. If all are a `Dataset`, the test set is
    theirs together; otherwise the share `test` of every class is held out. Each `Dataset` must have the same encoding
    of columns or texts and the same scaling: of tables, join the rows, and name the client's column in `from_table`.

    >>> north, south = ([[0.1], [0.9]] * 10, ["a", "b"] * 10), ([[0.2], [0.7]] * 10, ["a", "b"] * 10)
    >>> data = from_clients({"north": north, "south": south})
    >>> data.group_names, len(data.train_y)
    (('north', 'south'), 32)
    """
    named: dict[Any, Any] = dict(parts) if isinstance(parts, Mapping) else dict(enumerate(parts))
    if not named:
        raise UserError("data.empty", f'data "{name}": there are no clients', "data", "pass one data set per client")
    encoding = common_encoding(named, name)
    raw = {client: read_part(part, f"{name}: {client}", test=False) for client, part in named.items()}
    if (empty := next((client for client, part in raw.items() if not len(part.y)), None)) is not None:
        message = f'data "{name}": client {empty} has no examples'
        raise UserError("data.empty", message, str(empty), "pass at least one, or remove the client")
    train = join_parts(raw, name)
    if not all(isinstance(part, Dataset) for part in named.values()):
        again = partial(from_clients, named, test=test, name=name, seed=seed)
        return replace(make_dataset(name, train, test, None, seed), split_again=again, **encoding)
    held_out = join_parts({client: read_part(part, name, test=True) for client, part in named.items()}, name)
    data = replace(make_dataset(name, train, held_out, None, seed), **encoding)
    return with_classes(data, common_classes(named.values()))


def as_dataset(data: Any) -> Dataset:
    """Convert a value of `data=`: a `Dataset`, arrays (x, y) or (x, y, clients), a dataset object, or a folder.

    A list of such data sets, or a dictionary of them by name, has one client each.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping) and not is_hub_data(data):
        return from_clients(data)
    if isinstance(data, list) and data and all(_is_dataset(part) for part in data):
        return from_clients(data)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return from_arrays(data[0], data[1], clients=data[2] if len(data) == 3 else None)
    if isinstance(data, str | Path):
        if Path(data).suffix.lower() in (".csv", ".parquet"):
            raise UserError(
                "data.missing_column",
                f"{data}: the label column of the table is not named",
                str(data),
                f'name it with fedrecall.from_table("{data}", label=...)',
            )
        if not Path(data).expanduser().exists():
            raise unknown_name("folder or data set", data, DATASETS, key="data")
        return from_folder(data)
    if is_hub_data(data):
        return from_huggingface(data)
    if isinstance(data, TorchDataset):
        return from_torch(data)
    raise UserError(
        "data.unsupported_type",
        f"data of type {type(data).__name__} is not supported",
        "data",
        "pass (x, y), (x, y, clients), a torch or Hugging Face dataset, a list of these, a folder of images, or, of a "
        "table, fedrecall.from_table(frame, label=...)",
    )


def make_dataset(
    name: str, train: RawExamples, test: float | RawExamples, classes: tuple[str, ...] | None, seed: int
) -> Dataset:
    """Encode labels and clients of both parts with the same numbers, and hold out a test part if `test` is a share."""
    parts = [train, test] if isinstance(test, RawExamples) else [train]
    for part in parts:
        for kind, values in (("labels", part.y), ("clients", part.clients), ("groups", part.groups)):
            if values is not None and len(values) != len(part.x):
                raise UserError(
                    "data.length_mismatch",
                    f'data "{name}": {len(part.x)} inputs but {len(values)} {kind}',
                    kind,
                    f"pass one of the {kind} for each input",
                )
    labels, names = encode_labels([part.y for part in parts], classes, "labels", name)
    if len(names) == 1:
        raise UserError(
            "data.one_class",
            f'data "{name}": all labels are {names[0]}',
            "labels",
            "pass examples of two or more classes",
        )
    clients = [part.clients for part in parts if part.clients is not None]
    groups, group_names = encode_labels(clients, None, "clients", name) if clients else ([], ())
    x, y, g = train.x, labels[0], groups[0] if groups else None
    units = None if train.groups is None else encode_labels([train.groups], None, "groups", name)[0][0]
    if isinstance(test, RawExamples):
        test_groups = groups[-1] if len(groups) == len(parts) else None
        return Dataset(name, x, y, test.x, labels[1], names, g, test_groups, group_names, train_units=units)
    if not 0 <= test < 1:
        raise UserError(
            "config.invalid_value",
            f'data "{name}": test = {test}: the share to hold out is out of range',
            "test",
            "use a value from 0 to less than 1; 0 means no test set",
        )
    if train.times is not None:
        train_rows, test_rows = last_rows(train.times, test, units)
    else:
        train_rows, test_rows = holdout_rows(y, test, seed, units)
    if train.times is not None and len(train_rows) == 0:
        message = f'data "{name}": all examples have the same time, so none can be held out by it'
        raise UserError("data.cannot_hold_out", message, "time", "name another column")
    if test and len(test_rows) == 0:
        raise UserError(
            "data.cannot_hold_out",
            f'data "{name}": no class has two examples or groups, so none can be held out',
            "test",
            "pass test data, or test = 0",
        )
    train_groups, test_groups = (None, None) if g is None else (g[train_rows], g[test_rows])
    train_xy, test_xy = (x[train_rows], y[train_rows]), (x[test_rows], y[test_rows])
    train_units = None if units is None else units[train_rows]
    data = Dataset(name, *train_xy, *test_xy, names, train_groups, test_groups, group_names, train_units=train_units)
    return replace(data, test_split=_describe_split(train, test, seed))


def _describe_split(train: RawExamples, share: float, seed: int) -> str:
    """Describe how the test set was drawn."""
    if not share:
        return "none"
    of = "examples" if train.groups is None else "groups"
    if train.times is not None:
        return f"the last {100 * share:g} % by time" + (", whole groups" if train.groups is not None else "")
    return f"{100 * share:g} % of the {of} of every class, drawn by seed {seed}"


def standardise_inputs(data: Dataset) -> Dataset:
    """Scale features to mean 0 and standard deviation 1 in the training part."""
    train, test = (cast(Tensor, x).float() for x in (data.train_x, data.test_x))
    std, mean = torch.std_mean(train, dim=0, correction=0)
    std = std.masked_fill(std == 0, 1.0)
    return replace(data, train_x=(train - mean) / std, test_x=(test - mean) / std, scaling=(mean, std))


def _is_dataset(part: Any) -> bool:
    return isinstance(part, Dataset | TorchDataset) or is_hub_data(part) or (isinstance(part, tuple) and len(part) == 2)
