"""Folders of images: one folder a class, perhaps in one folder a group."""

from collections.abc import Iterator
from pathlib import Path

from fedrecall.data.readers import READ_BATCH, RawBatch, RawSplit, subfolders, unreadable_error
from fedrecall.errors import UserError

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
