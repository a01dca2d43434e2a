"""Files from untrusted sources: no code in them runs, no other file is read or removed, an error is one line."""

import ast
import io
import json
import pickle
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedrecall as fr
from fedrecall.runs.checkpoints import _manifest_checksum

SOURCE = Path(fr.__file__).parent
SMALL = {
    "federation": {"clients": 4},
    "local": {"epochs": 1},
    "engine": {"name": "serial"},
    "run": {"rounds": 4},
    "method": {"name": "scaffold"},
}
FORBIDDEN = {"eval", "exec", "compile", "__import__", "torch.load", "np.load", "numpy.load", "pandas.read_pickle"}


class Trap:
    """Pickle that touches a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture
def trap(tmp_path: Path):
    """Return the bytes of a pickle that must not be opened by the test."""
    sprung = tmp_path / "sprung"
    content = pickle.dumps(Trap(sprung))
    pickle.loads(content)
    assert sprung.exists(), "the trap works"
    sprung.unlink()
    yield content
    assert not sprung.exists()


def interrupted(out: Path) -> None:
    def stop(line: dict[str, object]) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(SMALL, out=out, watch=stop)


def test_the_source_calls_no_unpickler() -> None:
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {alias.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
        names |= {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        assert not {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml"} & names, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in FORBIDDEN, f"{path}: {ast.unparse(node)}"
            assert not (isinstance(node, ast.keyword) and node.arg == "allow_pickle"), path


@pytest.mark.parametrize("file", ["model.safetensors", "config.toml"])
def test_a_pickle_for_a_model_or_a_configuration(file: str, trap: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(trap)
    given = tmp_path / file if file == "config.toml" else SMALL | {"run": {"start": str(tmp_path / file)}}
    with pytest.raises(fr.UserError) as error:
        fr.run(given)
    codes = ("config.unreadable_file", "config.invalid_toml") if file == "config.toml" else ("model.unreadable_file",)
    assert error.value.code in codes
    assert error.value.key == (str(given) if file == "config.toml" else "run.start")


@pytest.mark.parametrize("file_kind", ["round-000003.safetensors", "round-000003.json", "memories"])
@pytest.mark.parametrize("signed", [False, True])
def test_a_pickle_for_a_checkpoint(file_kind: str, signed: bool, trap: bytes, tmp_path: Path) -> None:
    out = tmp_path / "a"
    interrupted(out)
    folder = out / "checkpoints"
    manifest = json.loads((folder / "round-000003.json").read_text())
    name = next(iter(manifest["memories"]))
    (folder / "memories" / name if file_kind == "memories" else folder / file_kind).write_bytes(trap)
    if signed and file_kind != "round-000003.json":  # a forger can compute checksums too
        key = {"memories": manifest["memories"]}.get(file_kind, manifest)
        key[name if file_kind == "memories" else "tensors"] = sha256(trap).hexdigest()
        manifest["checksum"] = _manifest_checksum(manifest)
        (folder / "round-000003.json").write_text(json.dumps(manifest))
    with suppress(fr.UserError, OSError, ValueError):
        fr.run(SMALL, out=out, resume=True)


@pytest.mark.parametrize("reached", ["absolute", "above"])
def test_a_checkpoint_cannot_have_other_files_read_or_removed(reached: str, tmp_path: Path) -> None:
    out = tmp_path / "a"
    expected = fr.run(SMALL)
    interrupted(out)
    victim = tmp_path / "0-1.safetensors"
    folder = out / "checkpoints"
    for path in folder.glob("*.json"):  # all of them, so that none is passed over for another
        manifest = json.loads(path.read_text())
        client, files = next(iter(manifest["clients"].items()))
        victim.write_bytes((folder / "memories" / files).read_bytes())
        name = str(victim) if reached == "absolute" else "../../../0-1.safetensors"
        manifest["clients"][client] = name
        manifest["memories"][name] = manifest["memories"].pop(files)
        manifest["checksum"] = _manifest_checksum(manifest)
        path.write_text(json.dumps(manifest))
    resumed = fr.run(SMALL, out=out, resume=True)
    assert victim.exists()
    assert torch.equal(resumed.server.w, expected.server.w), "it began again"


def image(fmt: str, size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, fmt)
    return buffer.getvalue()


def bomb() -> bytes:
    """Return an image with 60 000 x 60 000 pixels in its header and a few bytes of content."""
    content = bytearray(image("BMP"))
    content[18:26] = (60_000).to_bytes(4, "little") * 2
    return bytes(content)


FALSE_HEADERS: dict[str, Callable[[bytes], bytes]] = {
    "pickle": lambda trap: trap,
    "text": lambda _: b"hello",
    "nothing": lambda _: b"",
    "truncated png": lambda _: image("PNG")[:-40],
    "truncated jpeg": lambda _: image("JPEG")[:200],
    "half a header": lambda _: image("PNG")[:20],
    "bomb": lambda _: bomb(),
    "sixteen bits": lambda _: _sixteen_bits(),
}


def _sixteen_bits() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


def folder_of(path: Path, odd: bytes) -> Path:
    for name in ("cat", "dog"):
        (path / name).mkdir(parents=True, exist_ok=True)
        for i in range(3):
            (path / name / f"{i}.png").write_bytes(image("PNG"))
    (path / "cat" / "1.png").write_bytes(odd)
    return path


@pytest.mark.parametrize("header", FALSE_HEADERS)
def test_images_with_false_headers_are_user_errors(header: str, trap: bytes, tmp_path: Path) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.from_folder(folder_of(tmp_path / "data", FALSE_HEADERS[header](trap)))
    assert error.value.code == "data.unreadable_file"
    assert error.value.key == str(tmp_path / "data" / "cat" / "1.png")
    assert "\n" not in str(error.value)


def test_an_image_with_a_wrong_suffix_is_read_by_its_content(tmp_path: Path) -> None:
    assert len(fr.from_folder(folder_of(tmp_path / "data", image("BMP"))).train_x)


def test_damaged_images_are_read_or_user_errors(tmp_path: Path) -> None:
    rng = random.Random(0)
    for i in range(60):
        content = bytearray(image(rng.choice(["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])))
        for _ in range(rng.choice([1, 3, 30])):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        with suppress(fr.UserError):
            fr.from_folder(folder_of(tmp_path / str(i), bytes(content)))


@pytest.mark.parametrize("link", ["file", "class", "split"])
def test_links_out_of_a_folder_of_images_are_errors(link: str, tmp_path: Path) -> None:
    secret = folder_of(tmp_path / "secret", image("PNG"))
    data = tmp_path / "data"
    if link == "file":
        (folder_of(data, image("PNG")) / "dog" / "9.png").symlink_to(secret / "cat" / "0.png")
    elif link == "class":
        (folder_of(data, image("PNG")) / "bird").symlink_to(secret / "cat")
    else:
        folder_of(data / "train", image("PNG"))
        (data / "test").symlink_to(secret)
    with pytest.raises(fr.UserError) as error:
        fr.from_folder(data)
    assert error.value.code == "data.link_outside_folder"
    assert Path(str(error.value.key)).is_relative_to(data)
    assert Path(str(error.value.key)).resolve().is_relative_to(secret.resolve())
    assert str(data) in str(error.value)
    assert str(secret) in str(error.value)


def test_links_that_stay_inside_and_a_folder_that_is_itself_a_link_are_read(tmp_path: Path) -> None:
    real = folder_of(tmp_path / "real" / "train", image("PNG")).parent
    (real / "test").symlink_to(real / "train")
    (real / "train" / "dog" / "9.png").symlink_to(real / "train" / "cat" / "0.png")
    (tmp_path / "named").symlink_to(real)
    assert len(fr.from_folder(tmp_path / "named").test_y) == 7


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_pickle_for_a_table(name: str, trap: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(trap)
    with pytest.raises(fr.UserError) as error:
        fr.from_table(tmp_path / name, "y")
    assert error.value.code.startswith("data.")
    assert str(tmp_path / name) in str(error.value)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_a_configuration_or_a_user_error(content: bytes) -> None:
    _load(content)


KEYS = ["data", "federation", "server", "method", "attack", "robust", "privacy", "straggler", "name", "share", "clip"]
VALUES = [
    "1",
    "-1",
    "1e999",
    "nan",
    '"krum"',
    '"x"',
    "[]",
    "{}",
    '{ name = "krum", attackers = -1 }',
    "true",
    "1979-05-27",
]


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), st.sampled_from(VALUES)), max_size=4)
)
def test_plausible_lines_are_a_configuration_or_a_user_error(lines: list[tuple[list[str], str]]) -> None:
    _load("\n".join(f"{'.'.join(keys)} = {value}" for keys, value in lines).encode())
    with suppress(fr.UserError):
        fr.Experiment.load(None, [f"{'.'.join(keys)}={value}" for keys, value in lines])


@pytest.mark.parametrize("content", ["x = " + "[" * 20_000, "x = " + "{a=" * 20_000, "[" + "a." * 20_000 + "b]"])
def test_deep_nesting_is_a_user_error(content: str) -> None:
    with pytest.raises(fr.UserError) as error:
        _loaded(content.encode())
    assert error.value.code in ("config.invalid_toml", "config.unknown_section")
    assert "\n" not in str(error.value)
    with suppress(fr.UserError):
        fr.Experiment.load(None, ["method.mu" + content.removeprefix("x ").strip()])


def _load(content: bytes) -> None:
    with suppress(fr.UserError):
        experiment = _loaded(content)
        assert fr.Experiment(**experiment.to_tables()) == experiment, "what is valid is written as it was read"


def _loaded(content: bytes) -> fr.Experiment:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        Path(file.name).write_bytes(content)
        return fr.Experiment.load(file.name)
