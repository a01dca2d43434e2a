"""Cache of decoded data: written once, mapped afterwards, verified."""

import logging
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedrecall.data import cache
from fedrecall.data.cache import CachedTensors, cache_directory, cached, checksum, node_cache
from fedrecall.data.custom import from_folder
from fedrecall.errors import UserError

TENSORS = {"x": torch.arange(30_000, dtype=torch.int64).view(3, 10_000).to(torch.uint8), "y": torch.arange(3)}
ABOUT = {"classes": '["a", "b"]'}


class Build:
    """Builder that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> CachedTensors:
        self.calls += 1
        return dict(TENSORS), dict(ABOUT)


def same(stored: CachedTensors) -> bool:
    tensors, about = stored
    return about == ABOUT and set(tensors) == set(TENSORS) and all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


def the_file(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


def test_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "a"))
    assert cache_directory() == tmp_path / "a"
    monkeypatch.delenv("FEDRECALL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_directory() == tmp_path / "b" / "fedrecall"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert cache_directory() == tmp_path / "c" / ".cache" / "fedrecall"


def test_built_once_per_key(empty_cache: Path) -> None:
    build = Build()
    for _ in range(3):
        assert same(cached("toy", {"size": 1}, build))
    assert build.calls == 1
    cached("toy", {"size": 2}, build)
    cached("other", {"size": 1}, build)
    assert build.calls == 3
    assert not list(empty_cache.glob("*.part"))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what is mapped")
def test_loaded_tensors_are_the_mapped_file(empty_cache: Path) -> None:
    tensors, _ = cached("toy", {}, Build())
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(the_file(empty_cache)) in line
    ]
    assert any(low <= tensors["x"].data_ptr() < high for low, high in ranges)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_damage_is_noticed_and_repaired(empty_cache: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    build = Build()
    cached("toy", {}, build)
    file = the_file(empty_cache)
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.unlink()
    file.write_bytes({"flip": bytes(data), "cut": bytes(data[:-1]), "empty": b"", "text": b"no tensors"}[damage])
    with caplog.at_level(logging.WARNING):
        assert same(cached("toy", {}, build))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(file) in record.getMessage()
    assert same(cached("toy", {}, build))
    assert build.calls == 2


def test_altered_metadata_are_damage_too() -> None:
    assert checksum(TENSORS, ABOUT) != checksum(TENSORS, {"classes": "[]"})
    assert checksum(TENSORS, ABOUT) != checksum({**TENSORS, "y": TENSORS["y"] + 1}, ABOUT)
    assert checksum(TENSORS, ABOUT) != checksum({**TENSORS, "x": TENSORS["x"].view(30_000)}, ABOUT)


def test_a_folder_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "file" / "below"))  # a file cannot have folders, even for root
    with caplog.at_level(logging.WARNING):
        assert same(cached("toy", {}, Build()))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(tmp_path / "file" / "below") in record.getMessage()


def test_a_full_disk_costs_time_only(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: object, file: Path, **kwargs: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "save_file", full)
    with caplog.at_level(logging.WARNING):
        assert same(cached("toy", {}, Build()))
    assert "No space left on device" in caplog.text
    assert [p.suffix for p in empty_cache.iterdir() if p.suffix != ".lock"] == []


def test_a_builder_that_fails_leaves_no_file_and_releases_the_lock(empty_cache: Path) -> None:
    def fail() -> CachedTensors:
        raise UserError("data.unreadable_file", "broken file")

    with pytest.raises(UserError) as error:
        cached("toy", {}, fail)
    assert error.value.code == "data.unreadable_file"
    assert not list(empty_cache.glob("*.safetensors"))
    assert same(cached("toy", {}, Build()))


def test_files_of_a_killed_writer_are_overwritten(empty_cache: Path) -> None:
    cached("toy", {}, Build())
    file = the_file(empty_cache)
    file.rename(file.with_suffix(".part"))
    file.with_suffix(".part").write_bytes(b"half")
    assert same(cached("toy", {}, Build()))
    assert not list(empty_cache.glob("*.part"))


def test_two_processes_at_once_decode_once(empty_cache: Path, tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time, pathlib, torch
        from fedrecall.data.cache import cached
        folder, me = pathlib.Path(sys.argv[1]), sys.argv[2]
        (folder / f"ready{me}").touch()
        while len(list(folder.glob("ready*"))) < 2:
            time.sleep(0.005)
        def build():
            (folder / f"built{me}").touch()
            time.sleep(0.5)
            return {"x": torch.arange(1000)}, {"k": "v"}
        tensors, about = cached("toy", {}, build)
        print(int(tensors["x"].sum()), about["k"])
    """)
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    assert [p.communicate(timeout=60)[0].strip() for p in processes] == ["499500 v"] * 2
    assert len(list(tmp_path.glob("built*"))) == 1


def test_images_of_a_folder_are_decoded_once_in_a_private_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("aabb" * 3):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(folder / f"{number}.png")
    plain = from_folder(tmp_path / "images", test=0.0)
    assert not list(tmp_path.rglob("*.safetensors")), "only a private cache has the user's own images"
    cache_folder = tmp_path / "state" / "cache"
    with node_cache(cache_folder):
        first = from_folder(tmp_path / "images", test=0.0)
        with monkeypatch.context() as patch:
            patch.setattr("fedrecall.data.readers._decode", None)  # decoding would raise an error
            second = from_folder(tmp_path / "images", test=0.0)
        for data in (first, second):
            assert torch.equal(data.train_x, plain.train_x)
            assert torch.equal(data.train_y, plain.train_y)
            assert data.classes == plain.classes
        Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "images" / "a" / "0.png")
        assert not torch.equal(from_folder(tmp_path / "images", test=0.0).train_x, plain.train_x), "a changed image"
    assert stat.S_IMODE(cache_folder.stat().st_mode) == 0o700
    assert cache_directory() != cache_folder
