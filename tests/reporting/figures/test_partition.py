"""Figure of a partition."""

import re
from pathlib import Path

import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedrecall.errors import UserError
from fedrecall.reporting.figures.partition import save_partition_figure


def counts(clients: int, classes: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 300, (clients, classes)) * (rng.random((clients, classes)) < 0.6)


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]
)
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / "new" / f"partition.{suffix}"
    save_partition_figure(counts(10, 10), path, title="Dirichlet 0.5")
    assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize("shape", [(1, 1), (4, 10), (100, 10), (100, 100), (2_000, 10), (3, 200)], ids=str)
def test_every_size_is_drawn(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = tmp_path / "p.png"
    save_partition_figure(counts(*shape), path)
    height, width, _ = matplotlib.image.imread(path).shape
    assert 300 < height < 2_000
    assert 300 < width < 2_400


def test_only_small_partitions_have_numbers_in_cells(tmp_path: Path) -> None:
    path = tmp_path / "p.svg"
    table = np.full((10, 10), 137)
    save_partition_figure(table, path)
    assert path.read_text().count("<!-- 137 -->") == 100
    save_partition_figure(np.full((100, 10), 137), path)
    assert "<!-- 137 -->" not in path.read_text()


def test_class_names_titles_and_omitted_clients(tmp_path: Path) -> None:
    path = tmp_path / "p.svg"
    save_partition_figure(counts(3, 2), path, class_names=["cat", "dog"], title="two classes")
    text = path.read_text()
    assert all(f"<!-- {word} -->" in text for word in ("cat", "dog", "two classes", "client", "samples"))
    save_partition_figure(counts(1_500, 2), path, title="many")
    (shown,) = re.findall("<!-- (many.*) -->", path.read_text())
    assert "1,000" in shown
    assert "1,500" in shown


def test_empty_clients(tmp_path: Path) -> None:
    save_partition_figure(np.zeros((3, 3), dtype=np.int64), tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 0


def test_no_global_state(tmp_path: Path) -> None:
    save_partition_figure(counts(3, 3), tmp_path / "p.png")
    assert not plt.get_fignums()


def test_an_unknown_format_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        save_partition_figure(counts(3, 3), tmp_path / "p.jpg")
    assert (error.value.code, error.value.key) == ("report.unsupported_format", str(tmp_path / "p.jpg"))
    assert all(suffix in str(error.value) for suffix in (".png", ".svg", ".pdf"))
    assert not list(tmp_path.iterdir())
