"""Readers of stored examples (Parquet files, the Hugging Face hub, folders of images) and the decoding of images."""

import gzip
import io
import math
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrecall.errors import Problems, UserError, first_line

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from datasets import IterableDataset as HubStream
    from PIL.Image import Image
    from pyarrow import Table as ArrowTable


READ_BATCH = 1000  # images decoded at a time, and between two steps of the progress bar

# Formats that are decoded, whatever the suffix: Pillow has others, such as PostScript, for which it starts a program.
# Pillow loads the decoders of all formats once one of the last two is tried.
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "WEBP", "TIFF")

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})

# Files beside images that are no images themselves: notes, annotations, and what file managers write.
COMPANION_SUFFIXES = frozenset({".txt", ".md", ".csv", ".tsv", ".json", ".xml", ".html", ".db", ".ini"})

_FORMATS = ", ".join(sorted(IMAGE_SUFFIXES))

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

SplitLocation = tuple[Path, ...] | Path
"""A split on disk: its Parquet or IDX files, or the folder that contains its class (or group) folders."""


class ColumnNames(NamedTuple):
    """Names of the columns of a table of images."""

    image: str
    label: str
    group: str | None = None


class RawBatch(NamedTuple):
    """Some stored examples: encoded images or their files, their origins for error messages, labels and groups."""

    images: Sequence[bytes | Path]
    origins: Sequence[str]
    labels: list[Any]
    groups: list[Any] | None


class RawSplit(NamedTuple):
    """Stored examples of a split, read lazily in batches."""

    batches: Iterator[RawBatch]
    total: int | None  # number of examples, for the progress bar; None: unknown
    classes: tuple[str, ...] | None  # class names, if the labels are positions in them
    groups: tuple[str, ...] | None  # group names, if the groups are positions in them
    files: tuple[Path, ...] = ()  # all files, in their order, if the split is a folder of images
    problems: tuple[UserError, ...] = ()  # found without decoding; `decode_images` raises them with its own


def read_parquet(files: Sequence[Path], columns: ColumnNames) -> RawSplit:
    """Read Parquet files that Hugging Face `datasets` wrote, with the features in the schema's metadata.

    `load_dataset("parquet")` is as fast, but expands patterns in paths and does not name the file that is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features

    splits, total = [], 0
    for file in files:
        try:
            table = pq.ParquetFile(file)
            features = Features.from_arrow_schema(table.schema_arrow)
        except Exception as error:  # pyarrow and datasets each have their own exceptions
            raise unreadable_error(file, error) from error
        total += table.metadata.num_rows
        rows = table.iter_batches(READ_BATCH, columns=[column for column in columns if column is not None])
        splits.append(_read_tables((pa.Table.from_batches([batch]) for batch in rows), features, str(file), columns))
    batches = (batch for split in splits for batch in split.batches)
    return RawSplit(batches, total, splits[0].classes, splits[0].groups)


def read_hub(repo: str, split: str, columns: ColumnNames) -> RawSplit:
    """Stream a repository of the Hugging Face hub. Nothing is stored on disk but the cache of decoded images."""
    import huggingface_hub
    from datasets import load_dataset

    try:
        revision = huggingface_hub.dataset_info(repo, timeout=20).sha  # fails at once; streaming would retry for long
        stream = load_dataset(repo, split=split, revision=revision, streaming=True)
    except Exception as error:
        raise UserError(
            "data.download_failed",
            f"{repo}: cannot download from the Hugging Face hub ({first_line(error)})",
            repo,
            "connect to the network once, or set data.root or FEDRECALL_DATA to a folder that has the data",
        ) from error
    known = (stream.info.splits or {}).get(split)
    return read_dataset(stream, f"{repo} {split}", columns)._replace(total=known.num_examples if known else None)


def read_dataset(data: "HubDataset | HubStream", where: str, columns: ColumnNames) -> RawSplit:
    """Read a Hugging Face dataset, in memory or streamed. The images stay encoded."""
    return _read_tables(data.with_format("arrow").iter(batch_size=READ_BATCH), data.features or {}, where, columns)


def _read_tables(
    tables: "Iterable[ArrowTable]", features: Mapping[str, object], where: str, columns: ColumnNames
) -> RawSplit:
    from datasets import ClassLabel

    image, label, group = columns
    for column in columns:
        if column is not None and features and column not in features:
            raise missing_column_error(where, column, sorted(features))

    def names(column: str | None) -> tuple[str, ...] | None:
        feature = None if column is None else features.get(column)
        return tuple(feature.names) if isinstance(feature, ClassLabel) else None

    def batches() -> Iterator[RawBatch]:
        start = 0
        try:
            for table in tables:
                stored = table.column(image).combine_chunks()
                encoded = (stored.field("bytes") if hasattr(stored, "field") else stored).to_pylist()
                origins = [f"{where}, row {start + i}" for i in range(len(encoded))]
                groups = None if group is None else table.column(group).to_pylist()
                yield RawBatch(encoded, origins, table.column(label).to_pylist(), groups)
                start += len(encoded)
        except Exception as error:  # for example a damaged page, or a lost connection
            raise unreadable_error(where, error) from error

    return RawSplit(batches(), None, names(label), names(group))


def read_image_folder(
    folder: Path, classes: tuple[str, ...] | None = None, *, grouped: bool = False, within: Path | None = None
) -> RawSplit:
    """Read images under folder/<class>/ or, if `grouped`, under folder/<group>/<class>/.

    `classes` are the classes of the training split; None: the class folders. Links to files outside of `within`, by
    default outside of the folder, are refused. Other problems of files and classes are in the result.
    """
    if folder.resolve() == Path(folder.resolve().anchor):
        what = f"{folder}: the root of the file system, not a folder of images"
        raise UserError("data.unsupported_type", what, str(folder), "give the folder that has the class folders")
    groups = subfolders(folder) if grouped else {"": folder}
    names = classes or tuple(sorted({name for g in groups.values() for name in subfolders(g)}))
    if not names:
        raise UserError(
            "data.empty",
            f"{folder}: the folder has no sub-folders",
            str(folder),
            f"put the images in one folder per class, {folder.name}/<class>/",
        )
    files: list[tuple[Path, str, str]] = []
    others: list[Path] = []
    for group, below in groups.items():
        if annotated := _annotations(below):
            files += [(file, annotated[file.name], group) for file in image_files(below) if file.name in annotated]
            continue
        for name, path in subfolders(below).items():
            images, further = _sort_by_format(path)
            files += [(file, name, group) for file in images]
            others += further
    if not files:
        instead = f" (but files *{', *'.join(sorted({file.suffix for file in others})[:5])})" if others else ""
        raise UserError(
            "data.empty",
            f"{folder}: the class folders have no images{instead}",
            str(folder),
            f"put images there ({_FORMATS})",
        )
    _refuse_outside_links([file for file, _, _ in files], within or folder)
    problems = [
        UserError(
            "data.unknown_class",
            f'{folder}: the training data does not have the class "{name}"',
            str(folder),
            f"remove the class here, or add it to the training data (classes: {', '.join(names[:20])})",
        )
        for name in sorted({name for _, name, _ in files}.difference(names))
    ]
    files = [entry for entry in files if entry[1] in names]
    if classes is None:  # a test split need not have all classes and clients
        hint = "put images there, or remove the folder"
        empty = [path for group, path in groups.items() if group not in {group for _, _, group in files}]
        for name in sorted(set(names).difference(name for _, name, _ in files)):
            empty += [found[name] for path in groups.values() if name in (found := subfolders(path))]
        problems += [UserError("data.empty", f"{path}: the folder has no images", str(path), hint) for path in empty]
    hint = f"convert or remove it (formats: {_FORMATS})"
    problems += [
        UserError("data.unsupported_type", f"{file}: not a format of images that can be read", str(file), hint)
        for file in others
    ]

    def batches() -> Iterator[RawBatch]:
        for start in range(0, len(files), READ_BATCH):
            paths, labels, members = zip(*files[start : start + READ_BATCH], strict=True)
            ids = [names.index(label) for label in labels]
            yield RawBatch(paths, [str(path) for path in paths], ids, list(members) if grouped else None)

    return RawSplit(batches(), len(files), names, None, tuple(file for file, _, _ in files), tuple(problems))


def find_idx_files(folder: Path, split: str) -> tuple[Path, Path] | None:
    """Return the files of images and labels in MNIST's own format, packed or not; None if the folder has none."""
    name = {"test": "t10k"}.get(split, split)
    for below in ("", "raw/", "MNIST/raw/", "FashionMNIST/raw/"):  # as published, and as torchvision stores them
        found = [
            sorted(folder.glob(f"{below}{name}-{kind}?idx{n}-ubyte*")) for kind, n in (("images", 3), ("labels", 1))
        ]
        if all(found):
            return found[0][0], found[1][0]
    return None


def read_idx(images: Path, labels: Path) -> RawSplit:
    """Read images and labels in MNIST's own format (IDX)."""
    pixels, classes = _read_idx_file(images, 3), _read_idx_file(labels, 1)
    if len(pixels) != len(classes):
        message = f"{images}: {len(pixels)} images, but {labels.name} has {len(classes)} labels"
        raise UserError("data.length_mismatch", message, str(images), "download both files again")
    head = f"P5 {pixels.shape[2]} {pixels.shape[1]} 255\n".encode()  # of a PGM image, which the decoder reads

    def batches() -> Iterator[RawBatch]:
        for start in range(0, len(pixels), READ_BATCH):
            rows = range(start, min(start + READ_BATCH, len(pixels)))
            encoded = [head + pixels[i].tobytes() for i in rows]
            yield RawBatch(encoded, [f"{images}, image {i}" for i in rows], classes[start : rows.stop].tolist(), None)

    return RawSplit(batches(), len(pixels), None, None)


def _read_idx_file(file: Path, dimensions: int) -> Pixels:
    """Return the bytes of an IDX file: a magic number with the type and the number of dimensions, the sizes, values."""
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable_error(file, error) from error
    start = 4 + 4 * dimensions
    sizes = struct.unpack(f">{dimensions}I", content[4:start]) if len(content) >= start else ()
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - start != math.prod(sizes):
        raise unreadable_error(file, ValueError(f"not an IDX file of bytes with {dimensions} dimensions"))
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def read_files(files: Sequence[Path]) -> RawSplit:
    """Read images without labels."""

    def batches() -> Iterator[RawBatch]:
        for start in range(0, len(files), READ_BATCH):
            paths = files[start : start + READ_BATCH]
            yield RawBatch(paths, [str(path) for path in paths], [0] * len(paths), None)

    return RawSplit(batches(), len(files), None, None)


def _refuse_outside_links(files: list[Path], folder: Path) -> None:
    """Refuse links to files outside of the folder: a folder from another machine must not select files of this one."""
    root = folder.resolve()
    for path in sorted({file.parent for file in files} | {file for file in files if file.is_symlink()}):
        if not path.resolve().is_relative_to(root):
            raise UserError(
                "data.link_outside_folder",
                f"{path}: a link to {path.resolve()}, which is outside of {folder}",
                str(path),
                "put the images themselves there, or name the folder that they are in",
            )


def _annotations(folder: Path) -> dict[str, str]:
    """Read class names by file name, as in Tiny-ImageNet's validation set: one folder of images and a text file."""
    found = sorted(folder.glob("*_annotations.txt"))
    return dict(line.split("\t")[:2] for line in found[0].read_text().splitlines() if "\t" in line) if found else {}


def subfolders(folder: Path) -> dict[str, Path]:
    """Return the sub-folders by name, in alphabetical order, without hidden ones."""
    try:
        return {p.name: p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")}
    except OSError as error:
        raise unreadable_error(folder, error) from error


def image_files(folder: Path) -> list[Path]:
    """Return all images in a folder and its sub-folders, sorted by path."""
    return _sort_by_format(folder)[0]


def _sort_by_format(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return all images in a folder and its sub-folders, and all files of formats that are not read."""
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise unreadable_error(folder, error) from error
    skipped = IMAGE_SUFFIXES | COMPANION_SUFFIXES
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    return images, [f for f in files if f.suffix.lower() not in skipped and not f.name.startswith(".")]


def decode_images(
    split: RawSplit, name: str, channels: int | None, size: int | None
) -> tuple[Tensor, list[Any], list[Any] | None]:
    """Decode all images to uint8 [n, C, H, W], with a progress bar on a terminal; returns images, labels and groups.

    If `channels` is None, the result is grey if all images are grey, else colour. If `size` is None, all images must
    have one size. Groups are names where the split has them. All images that are unreadable or of another size are
    reported in one error.
    """
    parts: list[Pixels] = []
    labels, groups = list[Any](), list[Any]()
    shape: tuple[int, ...] | None = None
    with Problems(name) as problems:
        problems.found += split.problems
        for batch in _with_progress(split, f"decoding {name}"):
            arrays: list[Pixels] = []
            for image, origin in zip(batch.images, batch.origins, strict=True):
                with problems.collected():
                    arrays.append(_decode(image, origin, channels, size))
                    shape = shape or arrays[-1].shape[:2]
                    if arrays[-1].shape[:2] != shape:
                        raise UserError(
                            "data.shape_mismatch",
                            f"{origin}: the image is {arrays[-1].shape[1]} x {arrays[-1].shape[0]}, the first one"
                            f" {shape[1]} x {shape[0]}",
                            origin,
                            "set size (data.size, --size) to resize all images",
                        )
            if problems.found:
                continue  # the other images are decoded to find all problems, not to be used
            depth = max(a.shape[2] for a in arrays)
            stacked = np.stack([a if a.shape[2] == depth else a.repeat(depth, axis=2) for a in arrays])
            parts.append(np.ascontiguousarray(stacked.transpose(0, 3, 1, 2)))
            labels += batch.labels
            groups += batch.groups or []
    if not parts:
        raise UserError("data.empty", f"{name}: there are no examples", name, "provide at least one")
    depth = max(p.shape[1] for p in parts)
    x = np.concatenate([p if p.shape[1] == depth else p.repeat(depth, axis=1) for p in parts])
    if split.groups:
        groups = [split.groups[group] for group in groups]
    return torch.from_numpy(x), labels, groups or None


def _decode(encoded: bytes | Path, origin: str, channels: int | None, size: int | None) -> Pixels:
    """Decode an image to uint8 [H, W, C]."""
    from PIL import Image, UnidentifiedImageError

    try:
        content = encoded.read_bytes() if isinstance(encoded, Path) else encoded
    except OSError as error:
        raise unreadable_error(origin, error) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = _convert_mode(Image.open(io.BytesIO(content), formats=IMAGE_FORMATS), channels)
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        array = np.asarray(image)
    except UnidentifiedImageError as error:  # its text is a memory address
        raise _undecodable_error(origin, "its image format is unknown") from error
    except Exception as error:  # each image format has its own exceptions for damaged bytes
        raise _undecodable_error(origin, first_line(error)) from error
    return array if array.ndim == 3 else array[:, :, None]


def _convert_mode(image: "Image", channels: int | None) -> "Image":
    if image.mode.startswith(("I", "F")):
        raise ValueError("its pixels have more than 8 bits; save it with 8 bits a channel")
    mode = "L" if channels == 1 or (channels is None and image.mode in ("1", "L", "LA")) else "RGB"
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may have transparent entries, which RGB cannot express
    return image if image.mode == mode else image.convert(mode)


def _with_progress(split: RawSplit, description: str) -> Iterator[RawBatch]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=split.total)
        for batch in split.batches:
            yield batch
            progress.advance(task, len(batch.images))


def unreadable_error(where: object, error: Exception) -> UserError:
    """Return the error for stored examples that are damaged or missing."""
    return UserError(
        "data.unreadable_file",
        f"{where}: cannot be read ({first_line(error)})",
        str(where),
        "download or copy it again, it may be incomplete",
    )


def missing_column_error(where: str, column: str, columns: Iterable[str]) -> UserError:
    """Return the error for a column that a table does not have."""
    hint = f"use one of {', '.join(columns)}"
    return UserError("data.missing_column", f'{where}: there is no column "{column}"', where, hint)


def _undecodable_error(origin: str, reason: str) -> UserError:
    hint = "replace or remove the image"
    return UserError("data.unreadable_file", f"{origin}: the image cannot be decoded ({reason})", origin, hint)
