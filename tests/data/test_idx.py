"""MNIST's own files (IDX), as published and as torchvision stores them."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedrecall.data.catalog import load_named
from fedrecall.data.custom import from_folder
from fedrecall.errors import UserError


def write_idx(file: Path, values: np.ndarray) -> None:
    content = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "", separator: str = "-") -> dict[str, np.ndarray]:
    rng, out = np.random.default_rng(0), {}
    for name, n in (("train", 30), ("t10k", 20)):
        out[f"{name}.x"] = rng.integers(0, 256, (n, 6, 5), dtype=np.uint8)
        out[f"{name}.y"] = (np.arange(n) % 10).astype(np.uint8)
        write_idx(folder / f"{name}-images{separator}idx3-ubyte{suffix}", out[f"{name}.x"])
        write_idx(folder / f"{name}-labels{separator}idx1-ubyte{suffix}", out[f"{name}.y"])
    return out


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_of_idx_files(tmp_path: Path, suffix: str) -> None:
    stored = write_mnist(tmp_path, suffix)
    data = from_folder(tmp_path)
    assert np.array_equal(data.train_x[:, 0].numpy(), stored["train.x"])
    assert np.array_equal(data.test_x[:, 0].numpy(), stored["t10k.x"])
    assert np.array_equal(data.test_y.numpy(), stored["t10k.y"])
    assert data.classes == tuple("0123456789")
    assert from_folder(tmp_path, size=8).shape == (1, 8, 8)


def test_mnist_by_name_in_torchvisions_layout(tmp_path: Path, empty_cache: Path) -> None:
    stored = write_mnist(tmp_path / "MNIST" / "raw", separator=".")
    data = load_named("mnist", root=tmp_path, partial=True)
    assert np.array_equal(data.train_x[:, 0].numpy(), stored["train.x"])
    assert len(data.test_y) == 20


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b"\0\0\x0d" + b[3:], lambda b: b"", lambda b: b[:9]])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, change) -> None:
    write_mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(UserError) as error:
        from_folder(tmp_path)
    assert (error.value.code, error.value.key) == ("data.unreadable_file", str(file))
