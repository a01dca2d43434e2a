"""Small data sets on disk, in the formats of Hugging Face `datasets` and of image folders."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

MakeImage = Callable[..., Image.Image]


@pytest.fixture
def random_image() -> MakeImage:
    """Return a function that makes a random image: seed, (width, height), mode."""

    def draw(seed: int, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> Image.Image:
        shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
        return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))

    return draw


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache for this test."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    """Write images and labels to a Parquet file with features; with `names` the labels are a ClassLabel."""

    def write(
        file: Path,
        images: Sequence[Image.Image],
        labels: Sequence[object],
        names: Sequence[str] | None = None,
        image: str = "image",
        label: str = "label",
        **more: Sequence[object],
    ) -> Path:
        features: dict[str, object] = {image: datasets.Image(), label: datasets.Value("int64")}
        if names is not None:
            features[label] = datasets.ClassLabel(names=list(names))
        features |= {key: datasets.Value("string" if isinstance(v[0], str) else "int64") for key, v in more.items()}
        rows: dict[str, list[object]] = {image: [], label: list(labels)}
        for i in images:
            out = io.BytesIO()
            i.save(out, "png")
            rows[image].append({"bytes": out.getvalue(), "path": None})
        data = datasets.Dataset.from_dict(rows | {k: list(v) for k, v in more.items()}, datasets.Features(features))
        file.parent.mkdir(parents=True, exist_ok=True)
        data.to_parquet(str(file))
        return file

    return write


@pytest.fixture
def write_images(random_image: MakeImage) -> Callable[..., None]:
    """Return a function that writes a number of images into a folder."""

    def write(folder: Path, count: int, suffix: str = "png", **kwargs: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            random_image(i, **kwargs).save(folder / f"{i}.{suffix}")

    return write
