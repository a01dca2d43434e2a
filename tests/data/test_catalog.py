"""Named data sets: small ones that the tests write, and real ones where they exist."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import datasets as hub_library
import huggingface_hub
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedrecall.data.catalog import DATASETS, load_named
from fedrecall.errors import UserError

load_part = partial(load_named, partial=True)  # the tests write a few examples of each
TEN = [f"class{i}" for i in range(10)]
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
Write = Callable[..., Path]
MakeImage = Callable[..., Image.Image]


@pytest.fixture
def cifar(tmp_path: Path, empty_cache: Path, write_parquet: Write, random_image: MakeImage) -> Path:
    """Return a folder with a CIFAR-10 of 22 images, the training part in two files."""
    folder = tmp_path / "data" / "cifar10"
    images = [random_image(i, mode="L" if i == 3 else "RGB") for i in range(22)]
    labels = [i % 10 for i in range(22)]
    write_parquet(folder / "train-00000-of-00002.parquet", images[:8], labels[:8], TEN, image="img")
    write_parquet(folder / "train-00001-of-00002.parquet", images[8:12], labels[8:12], TEN, image="img")
    write_parquet(folder / "test-00000-of-00001.parquet", images[12:], labels[12:], TEN, image="img")
    return tmp_path / "data"


def test_digits_need_nothing_and_are_always_the_same(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_named("digits", seed=0)
    assert (digits.shape, digits.num_classes, digits.train_x.dtype) == ((1, 8, 8), 10, torch.uint8)
    assert (len(digits.train_y), len(digits.test_y)) == DATASETS["digits"].sizes
    assert sorted(digits.train_x.unique().tolist()) == [round(i * 255 / 16) for i in range(17)]
    assert torch.bincount(digits.test_y).tolist() == [36, 37, 36, 37, 37, 37, 37, 36, 35, 36]  # a fifth, rounded up
    x = digits.test_transform.apply_test(torch.cat([digits.train_x, digits.test_x]))
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert load_named("digits", seed=1).fingerprint == digits.fingerprint
    assert not empty_cache.exists()


def test_parquet_in_order_with_grey_made_colour(cifar: Path, random_image: MakeImage) -> None:
    data = load_part("cifar10", root=cifar)
    assert data.classes == tuple(TEN)
    assert data.train_x.shape == (12, 3, 6, 6)
    assert data.train_y.tolist() == [i % 10 for i in range(12)]
    assert data.test_y.tolist() == [i % 10 for i in range(12, 22)]
    assert np.array_equal(data.train_x[9].permute(1, 2, 0).numpy(), np.asarray(random_image(9)))
    grey = np.asarray(random_image(3, mode="L"))
    assert all(np.array_equal(channel.numpy(), grey) for channel in data.train_x[3])
    assert data.test_transform == DATASETS["cifar10"].test_transform


def test_the_root_is_read_from_the_environment_or_is_the_folder_itself(
    cifar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_part("cifar10", root=str(cifar)).fingerprint
    assert load_part("cifar10", root=cifar / "cifar10").fingerprint == first
    monkeypatch.setenv("FEDRECALL_DATA", str(cifar))
    assert load_part("cifar10").fingerprint == first


def test_decoded_once_and_again_when_a_file_changes(
    cifar: Path, empty_cache: Path, write_parquet: Write, random_image: MakeImage
) -> None:
    first = load_part("cifar10", root=cifar).fingerprint
    assert load_part("cifar10", root=cifar).fingerprint == first
    assert len(list(empty_cache.glob("*.safetensors"))) == 1
    write_parquet(cifar / "cifar10" / "test-00000-of-00001.parquet", [random_image(99)], [1], TEN, image="img")
    changed = load_part("cifar10", root=cifar)
    assert changed.fingerprint != first
    assert len(changed.test_y) == 1


def test_a_cached_set_needs_none_of_the_slow_libraries(cifar: Path) -> None:
    code = (
        "import sys; from fedrecall.data.catalog import load_named; import fedrecall.data.custom;"
        "before = [m for m in ('datasets', 'sklearn', 'PIL', 'pyarrow', 'pandas', 'rich') if m in sys.modules];"
        f"load_named('cifar10', root={str(cifar)!r}, partial=True);"
        "print(before, [m for m in ('datasets', 'PIL', 'pyarrow') if m in sys.modules])"
    )
    load_part("cifar10", root=cifar)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[] []"


def test_two_processes_loading_at_once_get_the_same(cifar: Path, empty_cache: Path) -> None:
    code = (
        "from fedrecall.data.catalog import load_named;"
        f"print(load_named('cifar10', root={str(cifar)!r}, partial=True).fingerprint)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outs = [p.communicate(timeout=120) for p in processes]
    assert outs == [(load_part("cifar10", root=cifar).fingerprint + "\n", "")] * 2  # and no progress bar in a pipe
    assert len(list(empty_cache.glob("*.safetensors"))) == 1


def test_a_progress_bar_on_a_terminal_only(
    cifar: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load_part("cifar10", root=cifar)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    load_part("cifar10", root=cifar, size=4)
    out, err = capsys.readouterr()
    assert out == ""
    assert "cifar10 train" in err


def test_cinic_from_folders_of_images_without_valid(tmp_path: Path, empty_cache: Path, write_images: Write) -> None:
    for split, count in (("train", 3), ("valid", 5), ("test", 2)):
        for name in ("airplane", "truck"):
            write_images(tmp_path / "CINIC-10" / split / name, count)
    data = load_part("cinic10", root=tmp_path)
    assert (len(data.train_y), len(data.test_y), data.classes) == (6, 4, ("airplane", "truck"))
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]


def test_tiny_imagenet_as_published(tmp_path: Path, empty_cache: Path, write_images: Write) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for name in ("n01", "n02"):
        write_images(root / "train" / name / "images", 2, "jpeg", size=(64, 64))
    write_images(root / "val" / "images", 3, "jpeg", size=(64, 64))
    (root / "val" / "val_annotations.txt").write_text("0.jpeg\tn02\t0\t0\n1.jpeg\tn01\t0\t0\n2.jpeg\tn02\t0\t0\n")
    data = load_part("tiny-imagenet", root=tmp_path, size=32)
    assert (data.shape, data.train_y.tolist(), data.test_y.tolist()) == ((3, 32, 32), [0, 0, 1, 1], [1, 0, 1])


def test_labels_without_names_are_numbered_densely(
    tmp_path: Path, empty_cache: Path, write_parquet: Write, random_image: MakeImage
) -> None:
    write_parquet(tmp_path / "tiny_imagenet" / "train-0.parquet", [random_image(i) for i in range(3)], [7, 3, 7])
    write_parquet(tmp_path / "tiny_imagenet" / "valid-0.parquet", [random_image(1)], [9])
    data = load_part("tiny-imagenet", root=tmp_path)
    assert (data.classes, data.train_y.tolist(), data.test_y.tolist()) == (("3", "7", "9"), [1, 0, 1], [2])


@pytest.fixture
def femnist(tmp_path: Path, empty_cache: Path, write_parquet: Write, random_image: MakeImage) -> Path:
    """Return a folder: w2 has all 62 characters, w1 thirty of them twice, w0 one small letter."""
    labels = [*range(62), *range(30), *range(30), 40]
    writers = ["w2"] * 62 + ["w1"] * 60 + ["w0"]
    images = [random_image(i, (28, 28), "L") for i in range(len(labels))]
    file = tmp_path / "femnist" / "train-00000-of-00001.parquet"
    write_parquet(file, images, labels, CHARACTERS, label="character", writer_id=writers)
    return tmp_path


def test_femnist_holds_out_a_tenth_of_every_writer(femnist: Path) -> None:
    data = load_part("femnist", root=femnist)
    assert (data.num_classes, data.group_names, data.shape) == (62, ("w0", "w1", "w2"), (1, 28, 28))
    assert data.train_groups is not None
    assert data.test_groups is not None
    assert torch.bincount(data.train_groups).tolist() == [1, 54, 55]
    assert torch.bincount(data.test_groups).tolist() == [0, 6, 7]
    assert load_part("femnist", root=femnist).fingerprint == data.fingerprint
    assert load_part("femnist", root=femnist, seed=1).fingerprint != data.fingerprint


def test_femnist_digits_and_letters(femnist: Path) -> None:
    digits = load_part("femnist", root=femnist, classes=10)
    assert (digits.classes, digits.group_names) == (tuple("0123456789"), ("w1", "w2"))
    assert len(digits.train_y) + len(digits.test_y) == 30
    letters = load_part("femnist", root=femnist, classes=26)
    assert letters.group_names == ("w0", "w1", "w2")
    assert len(letters.train_y) + len(letters.test_y) == 52 + 40 + 1
    assert letters.train_groups is not None
    assert letters.train_y[letters.train_groups == 0].tolist() == [4]  # a small e is an E
    assert len(load_part("femnist", root=femnist, limit=3).train_y) == 1 + 3 + 3


def test_office_from_folders_of_domains(tmp_path: Path, empty_cache: Path, write_images: Write) -> None:
    for domain, count in (("webcam", 3), ("amazon", 5)):
        for name in ("bike", "mug"):
            write_images(tmp_path / "office_caltech_10" / domain / name, count, size=(9, 7))
    data = load_part("office-caltech-10", root=tmp_path, size=16)
    assert (data.group_names, data.classes, data.shape) == (("amazon", "webcam"), ("bike", "mug"), (3, 16, 16))
    assert data.test_groups is not None
    assert torch.bincount(data.test_groups).tolist() == [2, 2]
    assert load_part("office-caltech-10", root=tmp_path).shape == (3, 256, 256)


def test_from_the_hub_streamed_and_then_offline(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def from_hub(repo: str, *, split: str, revision: str, streaming: bool) -> object:
        requested.append((repo, split, revision, streaming))
        files = sorted((cifar / "cifar10").glob(f"{split}-*.parquet"))
        return hub_library.Dataset(pq.read_table(files)).to_iterable_dataset()

    monkeypatch.setattr(huggingface_hub, "dataset_info", lambda repo, timeout: SimpleNamespace(sha="abc"))
    monkeypatch.setattr(hub_library, "load_dataset", from_hub)
    data = load_part("cifar10")
    assert requested == [("uoft-cs/cifar10", "train", "abc", True), ("uoft-cs/cifar10", "test", "abc", True)]
    assert len(data.train_y) == 12

    def unreachable(repo: str, timeout: float) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "dataset_info", unreachable)
    assert load_part("cifar10").fingerprint == data.fingerprint  # from the cache
    with pytest.raises(UserError) as error:
        load_part("mnist")
    one_line(error, "data.download_failed", "ylecun/mnist", "no route", "data.root")


def one_line(error: pytest.ExceptionInfo[UserError], code: str, key: object, *facts: object) -> None:
    text = str(error.value)
    assert (error.value.code, error.value.key) == (code, str(key))
    assert "\n" not in text
    for fact in facts:
        assert str(fact) in text


def test_bad_options() -> None:
    for kwargs, code, key, *facts in (
        ({"name": "cifar"}, "config.unknown_name", "data.name", '"cifar"', '"cifar10"'),
        ({"name": "cifar10", "classes": 5}, "config.conflict", "data.classes", "femnist", '"cifar10"'),
        (
            {"name": "femnist", "classes": 5},
            "config.invalid_value",
            "data.classes",
            "10 (digits)",
            "26 (letters)",
            "62",
        ),
        ({"name": "mnist", "limit": 5}, "config.conflict", "data.limit", "femnist, office-caltech-10"),
        ({"name": "femnist", "limit": 0}, "config.invalid_value", "data.limit", "0", "1"),
        ({"name": "digits", "size": 16}, "config.conflict", "data.size", "16", "digits"),
        ({"name": "mnist", "size": 0}, "config.invalid_value", "data.size", "0"),
    ):
        with pytest.raises(UserError) as error:
            load_named(**kwargs)  # type: ignore[arg-type]
        one_line(error, code, key, *facts)


def test_missing_data(tmp_path: Path, empty_cache: Path, write_images: Write) -> None:
    with pytest.raises(UserError) as error:
        load_part("fashion-mnist", root=tmp_path)
    one_line(error, "data.not_found", tmp_path, "fashion-mnist", "fashion_mnist", "data.root")
    with pytest.raises(UserError) as error:
        load_part("office-caltech-10")
    one_line(error, "data.not_found", "data.root", "office_caltech_10", "FEDRECALL_DATA")
    write_images(tmp_path / "mnist" / "train" / "0", 1)
    with pytest.raises(UserError) as error:
        load_part("mnist", root=tmp_path)
    one_line(error, "data.not_found", tmp_path / "mnist", "test-*.parquet", "test/")
    (tmp_path / "mnist" / "test").mkdir()
    with pytest.raises(UserError) as error:
        load_part("mnist", root=tmp_path)
    one_line(error, "data.empty", tmp_path / "mnist" / "test", ".png")
    write_images(tmp_path / "mnist" / "test" / "1", 1)
    with pytest.raises(UserError) as error:
        load_part("mnist", root=tmp_path)
    one_line(error, "data.unknown_class", tmp_path / "mnist" / "test", '"1"')


def test_damaged_and_wrong_parquet(
    cifar: Path, empty_cache: Path, write_parquet: Write, random_image: MakeImage
) -> None:
    file = cifar / "cifar10" / "test-00000-of-00001.parquet"
    data = file.read_bytes()

    def check_error(code: str, *facts: object) -> None:
        with pytest.raises(UserError) as error:
            load_part("cifar10", root=cifar)
        assert error.value.key is not None
        assert error.value.key.startswith(str(file))
        one_line(error, code, error.value.key, file, *facts)
        assert not list(empty_cache.glob("*.safetensors"))

    file.write_bytes(data[: len(data) // 2])
    check_error("data.unreadable_file")
    file.write_bytes(b"")
    check_error("data.unreadable_file")
    broken = bytearray(data)
    broken[100:600] = bytes(500)
    file.write_bytes(broken)
    with pytest.raises(UserError) as several:
        load_part("cifar10", root=cifar)
    one_line(several, "data.several_problems", "cifar10 test", f"{file}, row 0", "10 problems")
    write_parquet(file, [random_image(0)], [0], TEN)
    check_error("data.missing_column", '"img"', "image, label")
    write_parquet(file, [random_image(0), random_image(1, (5, 6))], [0, 1], TEN, image="img")
    check_error("data.shape_mismatch", "row 1", "5 x 6", "6 x 6", "data.size")


def test_labels_out_of_range(cifar: Path, write_parquet: Write, random_image: MakeImage) -> None:
    file = cifar / "cifar10" / "test-00000-of-00001.parquet"
    write_parquet(file, [random_image(0)], [12], image="img")
    with pytest.raises(UserError) as error:
        load_part("cifar10", root=cifar)
    one_line(error, "data.invalid_labels", "labels", '"cifar10"', "from 12 to 12", "0..9")


@pytest.mark.data
def test_real_cifar10(real_data: Path) -> None:
    data = load_part("cifar10", root=real_data)
    assert (len(data.train_y), len(data.test_y)) == DATASETS["cifar10"].sizes
    assert torch.bincount(data.train_y).tolist() == [5000] * 10
    assert torch.bincount(data.test_y).tolist() == [1000] * 10
    x = data.train_x.double() / 255
    assert x.mean((0, 2, 3)).tolist() == pytest.approx([0.49140, 0.48216, 0.44653], abs=1e-5)
    assert x.std((0, 2, 3)).tolist() == pytest.approx([0.24703, 0.24349, 0.26159], abs=1e-5)
    assert data.classes[:2] == ("airplane", "automobile")


@pytest.mark.data
def test_real_mnist(real_data: Path) -> None:
    data = load_part("mnist", root=real_data)
    assert (len(data.train_y), len(data.test_y)) == DATASETS["mnist"].sizes
    x = data.test_transform.apply_test(data.train_x)
    assert float(x.mean()) == pytest.approx(0, abs=1e-3)
    assert float(x.std()) == pytest.approx(1, abs=1e-3)


@pytest.mark.data
def test_real_femnist(real_data: Path) -> None:
    data = load_part("femnist", root=real_data)
    assert len(data.train_y) + len(data.test_y) == 59_988
    assert (len(data.group_names), data.num_classes) == (376, 62)
    assert data.train_groups is not None
    assert torch.bincount(data.train_groups, minlength=376).min() >= 1
    assert (
        float(data.test_transform.apply_test(data.train_x[:, :, 0]).mean()) > 0.99
    )  # ink on white paper, as LEAF stores it
    assert load_part("femnist", root=real_data, classes=10).num_classes == 10


@pytest.mark.data
def test_real_office_caltech(real_data: Path) -> None:
    data = load_part("office-caltech-10", root=real_data, size=32)
    assert data.group_names == ("amazon", "caltech", "dslr", "webcam")
    assert data.train_groups is not None
    assert data.test_groups is not None
    assert torch.bincount(data.train_groups).tolist() == [766, 898, 125, 236]
    assert torch.bincount(data.test_groups).tolist() == [192, 225, 32, 59]
    few = load_part("office-caltech-10", root=real_data, size=32, limit=62)
    assert few.train_groups is not None
    assert torch.bincount(few.train_groups).tolist() == [62] * 4
    assert torch.bincount(few.train_y).min() >= 10  # a random 62 of each domain, not its first class
    assert torch.equal(few.test_x, data.test_x)


@pytest.mark.data
def test_real_tiny_imagenet_of_twenty_classes(real_data: Path) -> None:
    data = load_part("tiny-imagenet", root=real_data)
    assert (data.shape, data.num_classes) == ((3, 64, 64), 20)
    assert torch.bincount(data.train_y).tolist() == [200] * 20
    assert torch.bincount(data.test_y).tolist() == [50] * 20
    assert data.classes[0] == "n01443537"


def test_a_part_of_a_data_set_is_accepted_only_on_request(cifar: Path) -> None:
    with pytest.raises(UserError) as error:
        load_named("cifar10", root=cifar)
    assert (error.value.code, error.value.key) == ("data.incomplete", "data.partial")
    assert "12 of 50,000 training examples, 10 of 10,000 test examples" in str(error.value)
    assert len(load_named("cifar10", root=cifar, partial=True).train_y) == 12


def test_writers_of_femnist_are_drawn(femnist: Path) -> None:
    complete, drawn = load_part("femnist", root=femnist), load_part("femnist", root=femnist, writers=2)
    assert len(drawn.group_names) == 2 < len(complete.group_names)
    assert set(drawn.group_names) < set(complete.group_names)
    assert drawn.train_groups is not None
    assert sorted(drawn.train_groups.unique().tolist()) == [0, 1]
    assert load_part("femnist", root=femnist, writers=2).fingerprint == drawn.fingerprint
    for key, name, writers in (("data.writers", "femnist", 99), ("data.writers", "cifar10", 2)):
        with pytest.raises(UserError) as error:
            load_part(name, root=femnist, writers=writers)
        assert error.value.key == key


def test_digits_are_those_of_scikit_learn_without_its_import() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    data = load_named("digits")
    assert sorted(torch.cat([data.train_y, data.test_y]).tolist()) == sorted(labels.tolist())
    x = np.rint(pixels * (255 / 16)).astype(np.uint8)
    stored = {row.tobytes() for row in torch.cat([data.train_x, data.test_x]).reshape(-1, 64).numpy()}
    assert stored == {row.tobytes() for row in x}
    code = "import sys, fedrecall.data.catalog as c; c.load_named('digits'); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
