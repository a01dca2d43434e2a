"""Where stored examples come from: Parquet files, the Hugging Face hub, folders of images. Read, decoded, numbered."""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrecall.errors import UserError, first_line

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from datasets import IterableDataset as HubStream
    from PIL.Image import Image
    from pyarrow import Table as ArrowTable


READ_BATCH = 1000  # images between two steps of the progress bar


class ColumnNames(NamedTuple):
    """Their names in a table."""

    image: str
    label: str
    group: str | None = None


class RawBatch(NamedTuple):
    """Some stored examples: encoded images, what they are called in messages, their labels and groups."""

    images: list[bytes]
    origins: Sequence[str]
    labels: list[Any]
    groups: list[Any] | None


class RawSplit(NamedTuple):
    """All stored examples of a split, read as they are asked for."""

    chunks: Iterator[RawBatch]
    total: int | None
    classes: tuple[str, ...] | None  # the names, when labels are numbers of names
    groups: tuple[str, ...] | None


SplitLocation = tuple[Path, ...] | Path

"""Of a split on disk: its Parquet files, or the folder above its classes (or its groups)."""


def read_parquet(files: Sequence[Path], columns: ColumnNames) -> RawSplit:
    """Examples in Parquet files that Hugging Face `datasets` wrote (features are in the schema's metadata)."""
    import pyarrow.parquet as pq
    from datasets import Features

    tables, total = [], 0
    for file in files:
        try:
            total += pq.read_metadata(file).num_rows
            features = Features.from_arrow_schema(pq.read_schema(file))
        except Exception as error:  # pyarrow and datasets each have their own
            raise unreadable_error(file, error) from error
        tables.append(_table(_batches(file, columns), features, str(file), columns))
    chunks = (chunk for table in tables for chunk in table.chunks)
    return RawSplit(chunks, total, tables[0].classes, tables[0].groups)


def _batches(file: Path, columns: ColumnNames) -> "Iterator[ArrowTable]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(READ_BATCH, columns=[column for column in columns if column is not None]):
            yield pa.Table.from_batches([batch])


def read_hub(repo: str, split: str, columns: ColumnNames) -> RawSplit:
    """Examples of a repository on the hub, streamed: the cache holds the only copy that stays on this disk."""
    import huggingface_hub
    from datasets import load_dataset

    try:
        revision = huggingface_hub.dataset_info(repo, timeout=20).sha  # fails at once where streaming would retry long
        stream = load_dataset(repo, split=split, revision=revision, streaming=True)
    except Exception as error:
        raise UserError(
            "data.download_failed",
            f"{repo}: cannot download from the Hugging Face hub ({first_line(error)})",
            repo,
            "connect to the network once, or set data.root or FEDRECALL_DATA to a folder that has the data",
        ) from error
    known = (stream.info.splits or {}).get(split)
    table = read_dataset(stream, f"{repo} {split}", columns)
    return table._replace(total=known.num_examples if known else None)


def read_dataset(data: "HubDataset | HubStream", where: str, columns: ColumnNames) -> RawSplit:
    """Examples of a Hugging Face dataset, in memory or streamed, with the images left encoded."""
    return _table(data.with_format("arrow").iter(batch_size=READ_BATCH), data.features or {}, where, columns)


def _table(
    batches: "Iterable[ArrowTable]", features: Mapping[str, object], where: str, columns: ColumnNames
) -> RawSplit:
    from datasets import ClassLabel

    image, label, group = columns
    for column in columns:
        if column is not None and features and column not in features:
            raise missing_column(where, column, sorted(features))

    def names(column: str | None) -> tuple[str, ...] | None:
        feature = None if column is None else features.get(column)
        return tuple(feature.names) if isinstance(feature, ClassLabel) else None

    def chunks() -> Iterator[RawBatch]:
        done = 0
        try:
            for batch in batches:
                stored = batch.column(image).combine_chunks()
                encoded = (stored.field("bytes") if hasattr(stored, "field") else stored).to_pylist()
                rows = [f"{where}, row {done + i}" for i in range(len(encoded))]
                groups = None if group is None else batch.column(group).to_pylist()
                yield RawBatch(encoded, rows, batch.column(label).to_pylist(), groups)
                done += len(encoded)
        except Exception as error:  # a page that does not decompress, a connection that breaks
            raise unreadable_error(where, error) from error

    return RawSplit(chunks(), None, names(label), names(group))


def subfolders(folder: Path) -> dict[str, Path]:
    """Sub-folders in alphabetical order; hidden ones are not meant."""
    return {p.name: p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")}


def decode_images(
    table: RawSplit, what: str, channels: int | None, size: int | None
) -> tuple[Tensor, list[Any], list[Any] | None]:
    """Images as uint8 [n, C, H, W], labels and groups as stored; with a progress bar on a terminal.

    Without `channels`: grey if every image is, else colour.
    """
    parts: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
    labels, groups = list[Any](), list[Any]()
    for chunk in _with_progress(table, f"decoding {what}"):
        arrays = _pixels(chunk, channels, size)
        shape = parts[0].shape[2:] if parts else arrays[0].shape[:2]
        for array, where in zip(arrays, chunk.origins, strict=True):
            if array.shape[:2] != shape:
                raise UserError(
                    "data.shape_mismatch",
                    f"{where}: the image is {array.shape[1]} x {array.shape[0]}, those before it"
                    f" {shape[1]} x {shape[0]}",
                    where,
                    "set size (data.size, --size) to resize all images",
                )
        depth = max(a.shape[2] for a in arrays)
        stacked = np.stack([a if a.shape[2] == depth else a.repeat(depth, axis=2) for a in arrays])
        parts.append(np.ascontiguousarray(stacked.transpose(0, 3, 1, 2)))
        labels += chunk.labels
        groups += chunk.groups or []
    if not parts:
        raise UserError("data.empty", f"{what}: there are no examples", what, "provide at least one")
    depth = max(p.shape[1] for p in parts)
    x = np.concatenate([p if p.shape[1] == depth else p.repeat(depth, axis=1) for p in parts])
    return torch.from_numpy(x), labels, groups or None


def _pixels(chunk: RawBatch, channels: int | None, size: int | None) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """The images of a chunk as [H, W, C] bytes."""
    from PIL import Image, UnidentifiedImageError

    arrays = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for data, where in zip(chunk.images, chunk.origins, strict=True):
            try:
                image = _convert_mode(Image.open(io.BytesIO(data)), channels)
                if size is not None and image.size != (size, size):
                    image = image.resize((size, size), Image.Resampling.BILINEAR)
                array = np.asarray(image)
            except UnidentifiedImageError as error:  # whose text is an address in memory
                raise _undecodable(where, "its image format is unknown") from error
            except Exception as error:  # every image format fails in its own way on damaged bytes
                raise _undecodable(where, first_line(error)) from error
            arrays.append(array if array.ndim == 3 else array[:, :, None])
    return arrays


def _convert_mode(image: "Image", channels: int | None) -> "Image":
    if image.mode.startswith(("I", "F")):
        raise ValueError("its pixels have more than 8 bits; save it with 8 bits a channel")
    mode = "L" if channels == 1 or (channels is None and image.mode in ("1", "L", "LA")) else "RGB"
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may have transparent entries, which RGB alone cannot express
    return image if image.mode == mode else image.convert(mode)


def _with_progress(table: RawSplit, description: str) -> Iterator[RawBatch]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=table.total)
        for chunk in table.chunks:
            yield chunk
            progress.advance(task, len(chunk.images))


def unreadable_error(where: object, error: Exception) -> UserError:
    """Stored examples that are damaged, or not there."""
    return UserError(
        "data.unreadable_file",
        f"{where}: cannot be read ({first_line(error)})",
        str(where),
        "download or copy it again, it may be incomplete",
    )


def missing_column(where: str, column: str, columns: Iterable[str]) -> UserError:
    """Return the error for a column that a table does not have."""
    hint = f"use one of {', '.join(columns)}"
    return UserError("data.missing_column", f'{where}: there is no column "{column}"', where, hint)


def _undecodable(where: str, why: str) -> UserError:
    hint = "replace or remove the image"
    return UserError("data.unreadable_file", f"{where}: the image cannot be decoded ({why})", where, hint)


_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


def image_files(folder: Path) -> list[Path]:
    """All images in a folder and below it."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())


def read_image_folder(
    folder: Path, classes: tuple[str, ...] | None = None, *, grouped: bool = False, within: Path | None = None
) -> RawSplit:
    """Images under folder/<class>, or under folder/<group>/<class>. `classes` fixes the numbering (training's).

    Links that lead out of the folder, or of the one above it that was named, are refused.
    """
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
    for group, below in groups.items():
        if annotated := _annotations(below):
            files += [(file, annotated[file.name], group) for file in image_files(below) if file.name in annotated]
        else:
            files += [(f, name, group) for name, inner in subfolders(below).items() for f in image_files(inner)]
    if not files:
        raise UserError(
            "data.empty",
            f"{folder}: the class folders have no images",
            str(folder),
            f"put images there ({', '.join(sorted(_SUFFIXES))})",
        )
    if new := {name for _, name, _ in files}.difference(names):
        raise UserError(
            "data.unknown_class",
            f'{folder}: the training data does not have the class "{min(new)}"',
            str(folder),
            f"remove the class here, or add it to the training data (classes: {', '.join(names[:20])})",
        )
    _refuse_outside_links([file for file, _, _ in files], within or folder)

    def chunks() -> Iterator[RawBatch]:
        for start in range(0, len(files), READ_BATCH):
            paths, labels, members = zip(*files[start : start + READ_BATCH], strict=True)
            ids = [names.index(label) for label in labels]
            try:
                images = [path.read_bytes() for path in paths]
            except OSError as error:
                raise unreadable_error(error.filename, error) from error
            yield RawBatch(images, [str(path) for path in paths], ids, list(members) if grouped else None)

    return RawSplit(chunks(), len(files), names, None)


def _refuse_outside_links(files: list[Path], folder: Path) -> None:
    """Whoever packed a folder decides what is in it, not what else of this machine is read."""
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
    """Tiny-ImageNet's validation set as published: all images in one folder, the classes in a text file beside it."""
    listed = sorted(folder.glob("*_annotations.txt"))
    return dict(line.split("\t")[:2] for line in listed[0].read_text().splitlines() if "\t" in line) if listed else {}
