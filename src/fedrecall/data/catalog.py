"""The named data sets, and the one form that every data set has: two tensors for training, two for the test."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase, digits

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.cache import CachedTensors, cached, checksum
from fedrecall.data.examples import encode_labels, first_per_group, stratified_holdout
from fedrecall.data.folders import image_files, read_image_folder
from fedrecall.data.readers import (
    ColumnNames,
    DatasetSpec,
    SplitLocation,
    decode_images,
    locate_splits,
    read_hub,
    read_parquet,
)
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError, unknown_name


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of a classification task. What it says of itself is checked when it is made.

    `from_arrays`, `from_table`, `from_folder`, `from_torch` and `from_huggingface` make one.

    >>> import fedrecall as fr
    >>> data = fr.from_arrays([[0.0, 1.0], [1.0, 0.0]] * 10, ["left", "right"] * 10, test=0.2)
    >>> data.classes, len(data.train_y), len(data.test_y)
    (('left', 'right'), 16, 4)
    """

    name: str
    train_x: Tensor  # uint8 images [N, C, H, W], or float32 of any shape [N, ...]
    train_y: Tensor  # int64 [N]
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    train_groups: Tensor | None = None  # who an example is from (writer, domain, client): int64 [N]
    test_groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    test_transform: Transform = Transform()  # the test-time transform

    def __post_init__(self) -> None:
        self._check("training", self.train_x, self.train_y, self.train_groups)
        self._check("test", self.test_x, self.test_y, self.test_groups)
        if self.train_x.shape[1:] != self.test_x.shape[1:] or self.train_x.dtype != self.test_x.dtype:
            raise self._invalid(
                "data.shape_mismatch",
                f"training examples are {list(self.train_x.shape[1:])} {self.train_x.dtype}, test examples "
                f"{list(self.test_x.shape[1:])} {self.test_x.dtype}",
                "test_x",
                "use one shape and type for both",
            )

    def _check(self, part: str, x: Tensor, y: Tensor, groups: Tensor | None) -> None:
        field = "train" if part == "training" else "test"
        if len(x) == 0:
            raise self._invalid("data.empty", f"there are no {part} examples", f"{field}_x", "pass at least one")
        if x.dtype not in (torch.uint8, torch.float32):
            hint = "pass uint8 images or float32 numbers"
            raise self._invalid("data.invalid_inputs", f"{part} inputs are {x.dtype}", f"{field}_x", hint)
        if x.dtype == torch.float32 and not torch.isfinite(x).all():
            raise self._invalid(
                "data.not_finite",
                f"{part} inputs have values that are not finite (NaN or infinity)",
                f"{field}_x",
                "remove or replace them",
            )
        ids = [("labels", f"{field}_y", y, len(self.classes))]
        if groups is not None:
            ids.append(("groups", f"{field}_groups", groups, len(self.group_names)))
        for what, key, values, count in ids:
            if values.dtype != torch.int64 or values.ndim != 1:
                raise self._invalid(
                    "data.invalid_labels",
                    f"{part} {what} are {values.dtype} of shape {list(values.shape)}",
                    key,
                    "pass one vector of whole numbers (int64)",
                )
            if len(values) != len(x):
                message = f"there are {len(x)} {part} inputs but {len(values)} {part} {what}"
                raise self._invalid("data.length_mismatch", message, key, f"pass one of the {what} for each input")
            low, high = int(values.min()), int(values.max())
            if low < 0 or high >= count:
                message = f"{part} {what} go from {low} to {high}"
                raise self._invalid("data.invalid_labels", message, key, f"use values in 0..{count - 1}")

    def _invalid(self, code: str, message: str, key: str, hint: str) -> UserError:
        return UserError(code, f'data "{self.name}": {message}', key, hint)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.train_x.shape[1:])

    @property
    def num_classes(self) -> int:
        """How many classes there are, seen or not."""
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """Checksum of the content: other data, other fingerprint, whatever the files were called."""
        parts = ("train_x", "train_y", "test_x", "test_y", "train_groups", "test_groups")
        tensors = {part: getattr(self, part) for part in parts if getattr(self, part) is not None}
        return checksum(tensors, {"classes": json.dumps(self.classes), "groups": json.dumps(self.group_names)})


DATASETS: dict[str, DatasetSpec] = {
    "digits": DatasetSpec(
        about="8 x 8 grey handwritten digits, part of scikit-learn: needs no download",
        folders=(),
        repo=None,
        sizes=(1433, 364),
        num_classes=10,
        test_transform=Transform(mean=(0.3053,), std=(0.3759,)),
        channels=1,
    ),
    "mnist": DatasetSpec(
        about="28 x 28 grey handwritten digits",
        folders=("mnist",),
        repo="ylecun/mnist",
        sizes=(60_000, 10_000),
        num_classes=10,
        test_transform=Transform(mean=(0.1307,), std=(0.3081,)),
        channels=1,
    ),
    "fashion-mnist": DatasetSpec(
        about="28 x 28 grey pictures of clothes",
        folders=("fashion-mnist", "fashion_mnist"),
        repo="zalando-datasets/fashion_mnist",
        sizes=(60_000, 10_000),
        num_classes=10,
        test_transform=Transform(mean=(0.2860,), std=(0.3530,)),
        channels=1,
    ),
    "cifar10": DatasetSpec(
        about="32 x 32 colour photographs of ten kinds of animals and vehicles",
        folders=("cifar10",),
        repo="uoft-cs/cifar10",
        sizes=(50_000, 10_000),
        num_classes=10,
        test_transform=Transform(mean=(0.49140, 0.48216, 0.44653), std=(0.24703, 0.24349, 0.26159)),
        image="img",
    ),
    "cifar100": DatasetSpec(
        about="32 x 32 colour photographs, the hundred fine classes",
        folders=("cifar100",),
        repo="uoft-cs/cifar100",
        sizes=(50_000, 10_000),
        num_classes=100,
        test_transform=Transform(mean=(0.50708, 0.48655, 0.44092), std=(0.26733, 0.25644, 0.27615)),
        image="img",
        label="fine_label",
    ),
    "cinic10": DatasetSpec(
        about="32 x 32 colour photographs of CIFAR-10's classes, most from ImageNet; its valid part is not used",
        folders=("cinic10", "cinic-10", "CINIC-10"),
        repo="flwrlabs/cinic10",
        sizes=(90_000, 90_000),
        num_classes=10,
        test_transform=Transform(mean=(0.47889522, 0.47227842, 0.43047404), std=(0.24205776, 0.23828046, 0.25874835)),
    ),
    "femnist": DatasetSpec(
        about="28 x 28 grey handwritten characters with their writers; data.classes = 10, 26 or 62",
        folders=("femnist",),
        repo="flwrlabs/femnist",
        sizes=(814_277,),
        num_classes=62,
        test_transform=Transform(),
        splits=("train",),
        holdout=0.1,  # as LEAF does
        label="character",
        group="writer_id",
        channels=1,
    ),
    "tiny-imagenet": DatasetSpec(
        about="64 x 64 colour photographs; the test set is its validation set",
        folders=("tiny-imagenet", "tiny_imagenet", "tiny-imagenet-200", "tiny_imagenet_20"),
        repo="zh-plus/tiny-imagenet",
        sizes=(100_000, 10_000),
        num_classes=200,
        test_transform=Transform(mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821)),
        splits=("train", "valid"),
    ),
    "office-caltech-10": DatasetSpec(
        about="colour photographs of ten things from four domains; data.limit keeps the first of each domain",
        folders=("office-caltech-10", "office_caltech_10"),
        repo=None,
        sizes=(2533,),
        num_classes=10,
        test_transform=Transform(),
        splits=("train",),
        holdout=0.2,  # gives FedBN's 192 / 225 / 32 / 59
        group="domain",
        size=256,
    ),
}

"""What `data.name` can be."""


def load_named(
    name: str,
    *,
    root: str | Path | None = None,
    classes: int | None = None,
    size: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A named data set: from the folder `root` or $FEDRECALL_DATA if given, else from the hub; decoded once.

    `classes` is FEMNIST's choice of characters; `size` resizes when decoding; `limit` keeps the first training examples
    of every group. `seed` draws the part of every writer that FEMNIST is tested on; all other splits are fixed.
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS, key="data.name")
    source = DATASETS[name]
    if classes is not None and name != "femnist":
        raise UserError(
            "config.conflict",
            f'data.classes = {classes}: only femnist has a choice of classes, not data.name = "{name}"',
            "data.classes",
            "remove data.classes",
        )
    if classes not in (None, 10, 26, 62):
        raise UserError(
            "config.invalid_value",
            f"data.classes = {classes}: not possible for femnist",
            "data.classes",
            "use 10 (digits), 26 (letters) or 62",
        )
    if limit is not None and source.group is None:
        grouped = ", ".join(key for key, value in DATASETS.items() if value.group)
        raise UserError(
            "config.conflict",
            f'data.limit = {limit}: data.name = "{name}" has no groups to limit',
            "data.limit",
            f"remove data.limit, which is for {grouped}",
        )
    if limit is not None and limit < 1:
        raise UserError(
            "config.invalid_value",
            f"data.limit = {limit}: not a number of examples per group",
            "data.limit",
            "use at least 1",
        )
    if size is not None and name == "digits":
        raise UserError(
            "config.conflict",
            f"data.size = {size}: the images of digits cannot be resized",
            "data.size",
            "remove data.size",
        )
    if size is not None and size < 1:
        raise UserError(
            "config.invalid_value", f"data.size = {size}: not a size of images in pixels", "data.size", "use at least 1"
        )
    if name == "digits":
        return _digits(source)
    folder = root or os.environ.get("FEDRECALL_DATA")
    where = locate_splits(name, source, Path(folder).expanduser()) if folder else None
    x_size = size or source.size
    key = {"size": x_size, "source": _source_key(where) if where else source.repo}
    tensors, about = stored = cached(name, key, lambda: _read(name, source, where, x_size))
    if len(source.splits) > 1:
        parts = (tensors["train.x"], tensors["train.y"], tensors["test.x"], tensors["test.y"])
        return Dataset(name, *parts, tuple(json.loads(about["classes"])), test_transform=source.test_transform)
    return _split_grouped(name, source, stored, classes, limit, seed)


def _digits(source: DatasetSpec) -> Dataset:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)  # stored as 0..16
    y = torch.from_numpy(labels.astype(np.int64))
    train, test = (rows.sort().values for rows in stratified_holdout(y, 0.2, seed=0))
    return Dataset(
        "digits", x[train], y[train], x[test], y[test], tuple("0123456789"), test_transform=source.test_transform
    )


def _source_key(where: dict[str, SplitLocation]) -> list[list[str | int]]:
    """What the cache goes by: another path, size or time of change of any file is another source."""
    files = [file for place in where.values() for file in (image_files(place) if isinstance(place, Path) else place)]
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _read(name: str, source: DatasetSpec, where: dict[str, SplitLocation] | None, size: int | None) -> CachedTensors:
    """Decode all splits. The first is called "train" in the cache and the second "test", whatever the source says."""
    columns = ColumnNames(source.image, source.label, source.group)
    tensors: dict[str, Tensor] = {}
    labels, groups = [], []
    classes: tuple[str, ...] | None = None
    for split, part in zip(source.splits, ("train", "test"), strict=False):
        place = where[split] if where else None
        if place is None:
            if source.repo is None:
                raise UserError(
                    "data.not_found",
                    f'data.name = "{name}": the data set is not on the Hugging Face hub',
                    "data.root",
                    f"set data.root or FEDRECALL_DATA to a folder that has a folder {' or '.join(source.folders)}",
                )
            table = read_hub(source.repo, split, columns)
        elif isinstance(place, Path):
            table = read_image_folder(place, classes, grouped=source.group is not None)
        else:
            table = read_parquet(place, columns)
        classes = classes or table.classes
        x, y, members = decode_images(table, f"{name} {split}", source.channels, size)
        tensors[f"{part}.x"] = x
        labels.append(y)
        if members is not None:
            groups.append([table.groups[m] for m in members] if table.groups else members)
    numbers, classes = encode_labels(labels, classes, "labels", name)
    members_of, group_names = encode_labels(groups, None, "groups", name) if groups else ([], ())
    tensors |= {f"{part}.y": y for part, y in zip(("train", "test"), numbers, strict=False)}
    tensors |= {f"{part}.groups": g for part, g in zip(("train", "test"), members_of, strict=False)}
    return tensors, {"classes": json.dumps(classes), "groups": json.dumps(group_names)}


def _split_grouped(
    name: str, source: DatasetSpec, stored: CachedTensors, classes: int | None, limit: int | None, seed: int
) -> Dataset:
    """A data set that comes in one piece with groups: choose classes, hold out some of every group, limit the rest."""
    tensors, about = stored
    names, group_names = tuple(json.loads(about["classes"])), tuple(json.loads(about["groups"]))
    x, y, groups = tensors["train.x"], tensors["train.y"], tensors["train.groups"]
    if classes is not None and classes != source.num_classes:
        rows, y, names = _femnist_subset(y, names, classes)
        x, groups = x[rows], groups[rows]
        present, dense = np.unique(groups.numpy(), return_inverse=True)  # a writer may have written none of them
        groups, group_names = torch.from_numpy(dense), tuple(group_names[i] for i in present)
    train, test = stratified_holdout(groups, source.holdout, seed if name == "femnist" else 0)
    if limit is not None:
        train = train[first_per_group(groups[train], limit)]
    return Dataset(
        name,
        x[train],
        y[train],
        x[test],
        y[test],
        names,
        groups[train],
        groups[test],
        group_names,
        source.test_transform,
    )


def _femnist_subset(y: Tensor, names: tuple[str, ...], classes: int) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """FEMNIST's digits, or its letters with upper and lower case of a letter as one class (the papers leave that open).

    Rows, labels, names.
    """
    chosen = digits if classes == 10 else ascii_uppercase
    new = torch.tensor([chosen.find(name.upper()) for name in names])[y]
    rows = (new >= 0).nonzero().squeeze(1)
    return rows, new[rows], tuple(chosen)
