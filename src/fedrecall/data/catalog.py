"""The named data sets (CIFAR-10, FEMNIST ...): their files, their Hugging Face repositories, and loading them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import ascii_uppercase, digits

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.cache import CachedTensors, cached, file_states
from fedrecall.data.dataset import Dataset, encode_labels
from fedrecall.data.readers import (
    ColumnNames,
    SplitLocation,
    decode_images,
    find_idx_files,
    image_files,
    read_hub,
    read_idx,
    read_image_folder,
    read_parquet,
    subfolders,
)
from fedrecall.data.splits import first_per_group, stratified_holdout
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError, unknown_name


@dataclass(frozen=True)
class DatasetSpec:
    """A named data set: its location, column names, and expected size and classes."""

    about: str
    folders: tuple[str, ...]  # possible names of the folder under `data.root`
    repo: str | None  # on the Hugging Face hub
    sizes: tuple[int, ...]  # examples in each split of the complete data set
    num_classes: int
    test_transform: Transform  # with the commonly used mean and std
    splits: tuple[str, ...] = ("train", "test")  # the training split first
    holdout: float = 0.0  # without a test split: the share of every group to hold out as one
    image: str = "image"
    label: str = "label"
    group: str | None = None
    channels: int = 3
    size: int | None = None  # height and width after decoding, in pixels; None: as stored


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
        folders=("mnist", "MNIST"),
        repo="ylecun/mnist",
        sizes=(60_000, 10_000),
        num_classes=10,
        test_transform=Transform(mean=(0.1307,), std=(0.3081,)),
        channels=1,
    ),
    "fashion-mnist": DatasetSpec(
        about="28 x 28 grey images of clothes",
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST"),
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
"""Values of `data.name`."""


def load_named(
    name: str,
    *,
    root: str | Path | None = None,
    classes: int | None = None,
    size: int | None = None,
    limit: int | None = None,
    writers: int | None = None,
    partial: bool = False,
    seed: int = 0,
) -> Dataset:
    """Load a named data set from the folder `root` or $FEDRECALL_DATA if one is set, else from the Hugging Face hub.

    Decoded images are cached on disk. `classes` selects FEMNIST's characters, `writers` draws so many of its writers.
    `size` resizes the images. `limit` keeps only the first training examples of every group. `partial` accepts files
    that have only a part of the data set. `seed` draws FEMNIST's writers and test examples; other splits are fixed.
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS, key="data.name")
    spec = DATASETS[name]
    _check_options(name, classes=classes, size=size, limit=limit, writers=writers)
    if name == "digits":
        return _digits(spec)
    folder = root or os.environ.get("FEDRECALL_DATA")
    locations = locate_splits(name, spec, Path(folder).expanduser()) if folder else None
    pixels = size or spec.size
    source = {"size": pixels, "source": _source_key(locations) if locations else spec.repo}
    tensors, about = decoded = cached(name, source, lambda: _read(name, spec, locations, pixels))
    if not partial:
        _require_complete(name, spec, tensors)
    if len(spec.splits) > 1:
        parts = (tensors["train.x"], tensors["train.y"], tensors["test.x"], tensors["test.y"])
        return Dataset(name, *parts, tuple(json.loads(about["classes"])), test_transform=spec.test_transform)
    if writers is not None:
        decoded = _draw_writers(decoded, writers, seed), about
    return _split_grouped(name, spec, decoded, classes, limit, seed)


def _check_options(name: str, *, classes: int | None, size: int | None, limit: int | None, writers: int | None) -> None:
    """Raise an error for options that the data set does not have, and for their invalid values."""
    for key, value in (("classes", classes), ("writers", writers)):
        if value is not None and name != "femnist":
            raise UserError(
                "config.conflict",
                f'data.{key} = {value}: only femnist has a choice of {key}, not data.name = "{name}"',
                f"data.{key}",
                f"remove data.{key}",
            )
    if classes not in (None, 10, 26, 62):
        raise UserError(
            "config.invalid_value",
            f"data.classes = {classes}: not possible for femnist",
            "data.classes",
            "use 10 (digits), 26 (letters) or 62",
        )
    if limit is not None and DATASETS[name].group is None:
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


def _require_complete(name: str, spec: DatasetSpec, tensors: Mapping[str, Tensor]) -> None:
    """Raise an error if the files have fewer (or more) examples or classes than the data set."""
    counts = {
        "classes": (len(np.unique(tensors["train.y"].numpy())), spec.num_classes),
        "training examples": (len(tensors["train.y"]), spec.sizes[0]),
    }
    if len(spec.sizes) > 1:
        counts["test examples"] = (len(tensors["test.y"]), spec.sizes[1])
    different = [f"{found:,} of {size:,} {what}" for what, (found, size) in counts.items() if found != size]
    if different:
        raise UserError(
            "data.incomplete",
            f'data.name = "{name}": the files are not the complete data set: {", ".join(different)}',
            "data.partial",
            "use the complete data set, or set data.partial = true for results that no paper's numbers compare with",
        )


def _draw_writers(decoded: CachedTensors, writers: int, seed: int) -> dict[str, Tensor]:
    """Keep the examples of some writers, drawn by the seed."""
    tensors, about = decoded
    total = len(json.loads(about["groups"]))
    if not 1 <= writers <= total:
        raise UserError(
            "config.invalid_value",
            f"data.writers = {writers}: the data set has {total} writers",
            "data.writers",
            f"use 1 to {total}",
        )
    drawn = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:writers]
    rows = torch.isin(tensors["train.groups"], drawn).nonzero().squeeze(1)
    return {key: t[rows] for key, t in tensors.items()}


def _digits(spec: DatasetSpec) -> Dataset:
    numbers = np.loadtxt(_digits_file(), delimiter=",")
    pixels, labels = numbers[:, :-1], numbers[:, -1]
    x = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)  # stored as 0..16
    y = torch.from_numpy(labels.astype(np.int64))
    train, test = (rows.sort().values for rows in stratified_holdout(y, 0.2, seed=0))
    return Dataset(
        "digits", x[train], y[train], x[test], y[test], tuple("0123456789"), test_transform=spec.test_transform
    )


def _digits_file() -> Path:
    """Return the path of scikit-learn's table of digits. Importing scikit-learn to read it takes seconds."""
    spec = find_spec("sklearn")
    file = Path(str(spec.origin)).parent / "datasets" / "data" / "digits.csv.gz" if spec else Path("digits.csv.gz")
    if not file.exists():
        raise UserError("data.not_found", f"{file}: scikit-learn lacks its digits", str(file), "install it again")
    return file


def locate_splits(name: str, spec: DatasetSpec, root: Path) -> dict[str, SplitLocation]:
    """Find the splits of a data set under a folder of data sets, or in the data set's own folder."""
    found = [root / f for f in spec.folders if (root / f).is_dir()] or [root] * (root.name in spec.folders)
    if not found:
        raise UserError(
            "data.not_found",
            f'{root}: no data set "{name}": the folder has no folder {" or ".join(spec.folders)}',
            str(root),
            "put the Parquet files or the images there, or set neither data.root nor FEDRECALL_DATA to use the hub",
        )
    return {split: _locate_split(found[0], split, grouped=spec.group is not None) for split in spec.splits}


def _locate_split(folder: Path, split: str, *, grouped: bool) -> SplitLocation:
    names = (split, "val") if split == "valid" else (split,)
    for pattern in (f"{below}{name}{end}.parquet" for below in ("", "data/") for name in names for end in ("-*", "")):
        if files := sorted(folder.glob(pattern)):
            return tuple(files)
    if idx := find_idx_files(folder, split):
        return idx
    for name in names:
        if (folder / name).is_dir():
            return folder / name
    if grouped and subfolders(folder):  # folder/<group>/<class>, without a folder per split
        return folder
    raise UserError(
        "data.not_found",
        f"{folder}: the data set is incomplete: there is no {split}-*.parquet, no IDX file and no folder {split}/ of "
        "images",
        str(folder),
        "download the data set again",
    )


def _source_key(locations: dict[str, SplitLocation]) -> list[list[str | int]]:
    """Return the state of every file."""
    return file_states(f for loc in locations.values() for f in (image_files(loc) if isinstance(loc, Path) else loc))


def _read(name: str, spec: DatasetSpec, locations: dict[str, SplitLocation] | None, size: int | None) -> CachedTensors:
    """Decode all splits. In the cache the first one is named "train" and the second "test"."""
    columns = ColumnNames(spec.image, spec.label, spec.group)
    tensors: dict[str, Tensor] = {}
    labels, groups = [], []
    classes: tuple[str, ...] | None = None
    for split, part in zip(spec.splits, ("train", "test"), strict=False):
        location = locations[split] if locations else None
        if location is None:
            if spec.repo is None:
                raise UserError(
                    "data.not_found",
                    f'data.name = "{name}": the data set is not on the Hugging Face hub',
                    "data.root",
                    f"set data.root or FEDRECALL_DATA to a folder that has a folder {' or '.join(spec.folders)}",
                )
            raw = read_hub(spec.repo, split, columns)
        elif isinstance(location, Path):
            raw = read_image_folder(location, classes, grouped=spec.group is not None)
        elif "idx" in location[0].name:
            raw = read_idx(*location)
        else:
            raw = read_parquet(location, columns)
        classes = classes or raw.classes
        tensors[f"{part}.x"], split_labels, split_groups = decode_images(raw, f"{name} {split}", spec.channels, size)
        labels.append(split_labels)
        if split_groups is not None:
            groups.append(split_groups)
    encoded, classes = encode_labels(labels, classes, "labels", name)
    encoded_groups, group_names = encode_labels(groups, None, "groups", name) if groups else ([], ())
    tensors |= {f"{part}.y": y for part, y in zip(("train", "test"), encoded, strict=False)}
    tensors |= {f"{part}.groups": g for part, g in zip(("train", "test"), encoded_groups, strict=False)}
    return tensors, {"classes": json.dumps(classes), "groups": json.dumps(group_names)}


def _split_grouped(
    name: str, spec: DatasetSpec, decoded: CachedTensors, classes: int | None, limit: int | None, seed: int
) -> Dataset:
    """Split a data set with groups and without a test split: select classes, hold out, limit the training examples."""
    tensors, about = decoded
    names, group_names = tuple(json.loads(about["classes"])), tuple(json.loads(about["groups"]))
    x, y, groups = tensors["train.x"], tensors["train.y"], tensors["train.groups"]
    if classes is not None and classes != spec.num_classes:
        rows, y, names = _femnist_subset(y, names, classes)
        x, groups = x[rows], groups[rows]
    present, dense = np.unique(groups.numpy(), return_inverse=True)  # not all writers are kept, or have the characters
    if len(present) < len(group_names):
        groups, group_names = torch.from_numpy(dense), tuple(group_names[i] for i in present)
    train, test = stratified_holdout(groups, spec.holdout, seed if name == "femnist" else 0)
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
        spec.test_transform,
    )


def _femnist_subset(y: Tensor, names: tuple[str, ...], classes: int) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Select FEMNIST's digits or letters; returns rows, labels and class names.

    Upper and lower case of a letter are one class, which the papers leave open.
    """
    characters = digits if classes == 10 else ascii_uppercase
    new_y = torch.tensor([characters.find(name.upper()) for name in names])[y]
    rows = (new_y >= 0).nonzero().squeeze(1)
    return rows, new_y[rows], tuple(characters)
