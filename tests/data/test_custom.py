"""Data sets of users, valid and invalid."""

import csv
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets as hub_library
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import EpsImagePlugin, Image
from torch.utils.data import IterableDataset, TensorDataset

from fedrecall.config.experiment import Experiment
from fedrecall.data.custom import as_dataset, from_arrays, from_clients, from_folder, from_huggingface, from_torch
from fedrecall.data.readers import IMAGE_SUFFIXES
from fedrecall.data.tabular import from_table
from fedrecall.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 5))
Y = np.array(["cat", "ant"] * 10)
Write = Callable[..., None]
MakeImage = Callable[..., Image.Image]


def check_error(call: Callable[[], object], code: str, key: object, *facts: object) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert (error.value.code, error.value.key) == (code, str(key))
    text = str(error.value)
    assert "\n" not in text
    for fact in facts:
        assert str(fact) in text


class Pairs(torch.utils.data.Dataset[object]):
    """Map-style dataset of the given pairs."""

    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]


class Stream(IterableDataset[object]):
    def __iter__(self) -> Iterator[object]:
        return iter(())


def test_arrays_with_text_labels_and_client_names() -> None:
    data = from_arrays(X, Y, clients=["b"] * 5 + ["a"] * 15)
    assert (data.classes, data.group_names, data.shape) == (("ant", "cat"), ("a", "b"), (5,))
    assert torch.bincount(data.test_y).tolist() == [2, 2]
    assert data.train_x.dtype == torch.float32
    assert data.train_groups is not None
    assert data.test_groups is not None
    rows = torch.cat([data.train_groups, data.test_groups])
    assert torch.bincount(rows).tolist() == [15, 5]
    assert torch.allclose(torch.cat([data.train_x, data.test_x]).sum(), torch.tensor(X.sum()).float())
    assert data.test_transform.apply_test(data.train_x) is data.train_x


def test_the_held_out_part_is_fixed_by_the_seed_alone() -> None:
    first = from_arrays(X, Y).fingerprint
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert from_arrays(X, Y).fingerprint == first
    assert torch.equal(state, torch.get_rng_state())
    assert from_arrays(X, Y, seed=1).fingerprint != first
    assert len(from_arrays(X, Y, test=0.01).test_y) == 2  # never empty


def test_arrays_with_separate_test_data() -> None:
    data = from_arrays(X.tolist(), [1, 0] * 10, test=(X[:3], [0, 2, 1]), classes=["a", "b", "c"])
    assert (len(data.train_y), data.test_y.tolist(), data.classes) == (20, [0, 2, 1], ("a", "b", "c"))
    data = from_arrays(X, Y, test=(X[:1], ["bee"]), clients=range(20))
    assert (data.classes, data.test_y.tolist(), data.test_groups) == (("ant", "bee", "cat"), [1], None)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 8, 9, 3), (3, 8, 9)),
        ((6, 3, 8, 9), (3, 8, 9)),
        ((6, 1, 8, 3), (1, 8, 3)),
        ((6, 3, 3, 3), (3, 3, 3)),
        ((6, 8, 9, 1), (1, 8, 9)),
        ((6, 8, 9), (1, 8, 9)),
    ],
)
def test_images_are_channels_first(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = RNG.integers(0, 256, shape, dtype=np.uint8)
    data = from_arrays(x, [0, 1] * 3, test=0.5)
    assert data.shape == expected
    assert data.train_x.dtype == torch.uint8
    assert data.test_transform.apply_test(data.train_x).max() <= 1


def test_channels_last_is_moved_not_reshaped() -> None:
    x = RNG.integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)
    data = from_arrays(x, [0, 1, 0, 1], test=(x, [0, 1, 0, 1]))
    assert np.array_equal(data.train_x[2, 1].numpy(), x[2, :, :, 1])


def test_arrays_of_the_right_type_are_not_copied_even_when_read_only() -> None:
    x = np.ones((4, 3), dtype=np.float32)
    assert from_arrays(x, [0, 1, 0, 1], test=(x, [0, 1, 0, 1])).train_x.data_ptr() == x.ctypes.data
    x.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_arrays(x, [0, 1, 0, 1], test=(x, [0, 1, 0, 1])).train_x.data_ptr() == x.ctypes.data


def test_bad_arrays() -> None:
    check_error(lambda: from_arrays(X, Y[:-1]), "data.length_mismatch", "labels", "20", "19")
    check_error(lambda: from_arrays(X, Y, clients=[1]), "data.length_mismatch", "clients", "20", "1")
    check_error(lambda: from_arrays([[1, 2], [3]], [0, 1]), "data.shape_mismatch", "inputs")
    check_error(lambda: from_arrays([["a"], ["b"]], [0, 1]), "data.invalid_inputs", "inputs", "[examples, ...]")
    check_error(lambda: from_arrays([1.0, 2.0], [0, 1]), "data.invalid_inputs", "inputs", "[examples, ...]")
    check_error(lambda: from_arrays(X, [0.5] * 20), "data.invalid_labels", "labels")
    check_error(lambda: from_arrays(X, [3] * 20, classes=["a", "b"]), "data.invalid_labels", "labels", "3 to 3", "0..1")
    check_error(lambda: from_arrays(X, Y, test=1.0), "config.invalid_value", "test", "test = 1.0")
    check_error(lambda: from_arrays(X, [3] * 20), "data.one_class", "labels", "3")
    lists = [[0], [0, 1]] * 10
    check_error(lambda: from_arrays(X, lists), "data.invalid_labels", "labels", "lists of different lengths")
    check_error(lambda: from_clients([(X, lists), (X, [0, 1] * 10)]), "data.invalid_labels", "labels", "one label")
    check_error(lambda: from_arrays(X, np.eye(2)[[0, 1] * 10]), "data.invalid_labels", "labels", "[20, 2]", "argmax")
    check_error(lambda: from_arrays(X, range(20)), "data.cannot_hold_out", "test")
    check_error(lambda: from_arrays(X * np.inf, Y), "data.not_finite", "train_x")
    check_error(lambda: from_arrays(X[:0], []), "data.cannot_hold_out", "test")
    check_error(lambda: from_arrays(X, Y, test=(X[:, :2], Y)), "data.shape_mismatch", "test_x", "[5]", "[2]")
    bytes_ = X.astype(np.uint8)
    check_error(lambda: from_arrays(bytes_, Y, standardise=True), "config.conflict", "standardise")


def test_torch_datasets(random_image: MakeImage) -> None:
    data = from_torch(TensorDataset(torch.tensor(X), torch.arange(20) % 2), clients=[0, 1] * 10)
    assert (data.shape, data.classes, data.group_names) == ((5,), ("0", "1"), ("0", "1"))
    images = Pairs([(random_image(i), i % 2) for i in range(6)])
    data = from_torch(images, test=images, name="pictures")
    assert (data.name, data.shape, len(data.test_y), data.train_x.dtype) == ("pictures", (3, 6, 6), 6, torch.uint8)
    check_error(lambda: from_torch(Pairs([1, 2])), "data.unsupported_type", "data", "item 0")
    check_error(lambda: from_torch(Pairs([(torch.ones(2), 0), (torch.ones(3), 1)])), "data.shape_mismatch", "inputs")
    check_error(lambda: from_torch(Stream()), "data.unsupported_type", "data")
    check_error(lambda: from_torch(Pairs([])), "data.cannot_hold_out", "test")


def test_hugging_face_images(random_image: MakeImage) -> None:
    features = hub_library.Features(
        photo=hub_library.Image(), label=hub_library.ClassLabel(names=["x", "y", "z"]), site=hub_library.Value("string")
    )
    rows = {"photo": [random_image(i) for i in range(6)], "label": [0, 1] * 3, "site": list("abcabc")}
    content = hub_library.Dataset.from_dict(rows, features)
    data = from_huggingface(content, client="site")
    assert (data.classes, data.group_names, data.shape) == (("x", "y", "z"), ("a", "b", "c"), (3, 6, 6))
    assert (len(data.train_y), len(data.test_y)) == (4, 2)
    splits = hub_library.DatasetDict(train=content, validation=content.select([4, 1]))
    data = from_huggingface(splits, inputs="photo", size=4)
    assert (len(data.train_y), data.test_y.tolist(), data.shape) == (6, [0, 1], (3, 4, 4))
    assert np.array_equal(
        from_huggingface(splits).test_x[1].permute(1, 2, 0).numpy(), np.asarray(random_image(1))
    )  # the selected row, not the first
    name = "huggingface"
    check_error(
        lambda: from_huggingface(content, label="kind"), "data.missing_column", name, '"kind"', "label, photo, site"
    )
    check_error(lambda: from_huggingface(hub_library.DatasetDict(test=content)), "data.not_found", "train", "test")
    check_error(lambda: from_huggingface(content, inputs="site"), "data.invalid_inputs", "inputs")
    check_error(
        lambda: from_huggingface(content.remove_columns("photo")), "data.missing_column", "inputs", "label, site"
    )


def test_hugging_face_numbers() -> None:
    rows = {"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "v": X.tolist(), "label": Y.tolist()}
    content = hub_library.Dataset.from_dict(rows)
    assert from_huggingface(content, inputs=["a", "b"]).shape == (2,)
    assert from_huggingface(content, inputs="v").shape == (5,)
    assert from_huggingface(content, inputs="a").shape == (1,)
    check_error(
        lambda: from_huggingface(content, inputs=["a", "q"]), "data.missing_column", "huggingface", '"q"', "a, b, v"
    )


def test_folders(tmp_path: Path, write_images: Write) -> None:
    for name in ("ant", "bee"):
        write_images(tmp_path / "plain" / name, 4, mode="L")
        write_images(tmp_path / "split" / "train" / name, 3)
        write_images(tmp_path / "split" / "test" / name, 2, mode="L")
        for client in ("rome", "oslo"):
            write_images(tmp_path / "clients" / client / name, 2)
    (tmp_path / "plain" / ".hidden").mkdir()
    data = from_folder(tmp_path / "plain", test=0.25)
    assert (data.name, data.classes, data.shape) == ("plain", ("ant", "bee"), (1, 6, 6))
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1])
    data = from_folder(tmp_path / "split", size=5)
    assert (len(data.train_y), len(data.test_y), data.shape) == (6, 4, (3, 5, 5))
    data = from_folder(tmp_path / "clients", client=True, test=0.5)
    assert (data.group_names, data.classes, len(data.train_y)) == (("oslo", "rome"), ("ant", "bee"), 4)


def test_images_of_several_modes_in_one_folder(tmp_path: Path, random_image: MakeImage) -> None:
    folder = tmp_path / "mixed" / "a"
    folder.mkdir(parents=True)
    random_image(0, mode="L").save(folder / "0.png")
    random_image(1).save(folder / "1.png")
    random_image(2).convert("RGBA").save(folder / "2.png")
    palette = random_image(3).quantize(16)
    palette.save(folder / "3.png", transparency=bytes(range(16)))
    other = tmp_path / "mixed" / "b"
    other.mkdir()
    random_image(4, mode="L").convert("1").save(other / "4.png")
    data = from_folder(tmp_path / "mixed")
    assert data.shape == (3, 6, 6)
    everything = torch.cat([data.train_x, data.test_x])
    assert len(everything) == 5
    assert sum(bool((image[0] == image[1]).all()) for image in everything) == 2


def test_bad_folders(
    tmp_path: Path, write_images: Write, random_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_error(lambda: from_folder(tmp_path / "nowhere"), "data.not_found", tmp_path / "nowhere")
    check_error(lambda: from_folder(tmp_path), "data.empty", tmp_path, "<class>")
    (tmp_path / "a").mkdir()
    check_error(lambda: from_folder(tmp_path), "data.empty", tmp_path, ".png")
    write_images(tmp_path / "a", 3)
    write_images(tmp_path / "b", 1)
    random_image(0, (7, 6)).save(tmp_path / "a" / "z.png")
    check_error(
        lambda: from_folder(tmp_path), "data.shape_mismatch", tmp_path / "a" / "z.png", "7 x 6", "6 x 6", "size"
    )
    assert from_folder(tmp_path, size=4).shape == (3, 4, 4)
    Image.fromarray(np.ones((6, 6), dtype=np.uint16)).save(tmp_path / "a" / "z.png")
    check_error(lambda: from_folder(tmp_path), "data.unreadable_file", tmp_path / "a" / "z.png", "8 bits")
    content = (tmp_path / "a" / "0.png").read_bytes()
    for damaged in (content[: len(content) // 2], content[:20], b"", b"GIF89a but no more"):
        (tmp_path / "a" / "z.png").write_bytes(damaged)
        check_error(lambda: from_folder(tmp_path), "data.unreadable_file", tmp_path / "a" / "z.png")
    (tmp_path / "a" / "z.png").unlink()
    with monkeypatch.context() as patched:
        read = Path.read_bytes

        def fail(file: Path) -> bytes:
            if file == tmp_path / "a" / "0.png":
                raise PermissionError(13, "Permission denied", str(file))
            return read(file)

        patched.setattr(Path, "read_bytes", fail)
        check_error(
            lambda: from_folder(tmp_path), "data.unreadable_file", tmp_path / "a" / "0.png", "Permission denied"
        )
    random_image(0, (7, 6)).save(tmp_path / "a" / "z.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # 42 pixels: PIL only warns up to twice the limit
    check_error(lambda: from_folder(tmp_path), "data.unreadable_file", tmp_path / "a" / "z.png", "decompression bomb")


def test_all_problems_of_a_folder_are_in_one_error(
    tmp_path: Path, write_images: Write, random_image: MakeImage
) -> None:
    for name, count in (("cat", 3), ("dog", 2), ("eel", 0)):
        write_images(tmp_path / "train" / name, count)
    write_images(tmp_path / "test" / "cat", 1)
    write_images(tmp_path / "test" / "fox", 1)
    (tmp_path / "train" / "cat" / "damaged.png").write_bytes(b"no image")
    (tmp_path / "train" / "dog" / "half.jpg").write_bytes(b"")
    (tmp_path / "train" / "dog" / "scan.dcm").write_bytes(b"DICM")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("a companion of the images")
    (tmp_path / "train" / "dog" / ".hidden").touch()
    random_image(0, (7, 6)).save(tmp_path / "train" / "dog" / "wide.png")
    random_image(0, (6, 9)).save(tmp_path / "test" / "cat" / "tall.png")
    with pytest.raises(UserError) as raised:
        from_folder(tmp_path)
    error = raised.value
    assert (error.code, error.key) == ("data.several_problems", str(tmp_path))
    assert {(each.code, each.key) for each in error.found} == {
        ("data.empty", str(tmp_path / "train" / "eel")),
        ("data.unsupported_type", str(tmp_path / "train" / "dog" / "scan.dcm")),
        ("data.unreadable_file", str(tmp_path / "train" / "cat" / "damaged.png")),
        ("data.unreadable_file", str(tmp_path / "train" / "dog" / "half.jpg")),
        ("data.shape_mismatch", str(tmp_path / "train" / "dog" / "wide.png")),
        ("data.unknown_class", str(tmp_path / "test")),
        ("data.shape_mismatch", str(tmp_path / "test" / "cat" / "tall.png")),
    }
    assert "7 problems" in str(error)
    assert "train/eel" in str(error)
    assert "\n" not in str(error)
    assert str(error).count("set size") == 1, "what to do is stated once"
    with pytest.raises(UserError) as raised:  # by data.path, too
        Experiment(data={"name": "folder", "path": str(tmp_path)}).data.load()
    assert str(raised.value) == str(error)


def test_the_list_of_problems_is_bounded_and_has_every_kind(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path / "a", 2)
    write_images(tmp_path / "b", 50, size=(7, 7))
    (tmp_path / "b" / "z.png").write_bytes(b"no image")
    with pytest.raises(UserError) as raised:
        from_folder(tmp_path)
    text = str(raised.value)
    assert "51 problems" in text
    assert text.count("the image is 7 x 7") == 10, "half of 20: there are two kinds"
    assert "and 40 more" in text
    assert "b/z.png" in text


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_every_suffix_has_a_decoder(tmp_path: Path, random_image: MakeImage, suffix: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(2):
            random_image(i, mode="L").save(tmp_path / name / f"{i}{suffix}")
    assert len(from_folder(tmp_path, test=0.0).train_y) == 4


def test_no_program_is_started_for_postscript(
    tmp_path: Path, random_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[object]()

    def ghostscript(*arguments: object) -> object:
        started.append(arguments)
        return random_image(0).im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    postscript = io.BytesIO()
    random_image(0).save(postscript, "EPS")
    file = tmp_path / "a" / "0.png"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(postscript.getvalue())
    check_error(lambda: from_folder(tmp_path), "data.several_problems", tmp_path, "its image format is unknown")
    rows = {"image": [{"bytes": file.read_bytes(), "path": None}] * 2, "label": [0, 1]}
    features = hub_library.Features({"image": hub_library.Image(), "label": hub_library.Value("int64")})
    stored = hub_library.Dataset.from_dict(rows, features)
    check_error(lambda: from_huggingface(stored), "data.several_problems", "huggingface", "its image format is unknown")
    assert started == []


def test_empty_folders_of_clients_and_classes(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path / "north" / "a", 2)
    write_images(tmp_path / "north" / "b", 2)
    write_images(tmp_path / "south" / "a", 2)
    (tmp_path / "south" / "b").mkdir()
    assert from_folder(tmp_path, client=True).group_names == ("north", "south"), "a client may lack a class"
    (tmp_path / "south" / "c").mkdir()
    check_error(lambda: from_folder(tmp_path, client=True), "data.empty", tmp_path / "south" / "c")
    (tmp_path / "south" / "c").rmdir()
    (tmp_path / "west" / "a").mkdir(parents=True)
    check_error(lambda: from_folder(tmp_path, client=True), "data.empty", tmp_path / "west")


def test_another_split_of_a_folder_decodes_nothing(
    tmp_path: Path, write_images: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in ("north", "south"):
        for name in ("a", "b"):
            write_images(tmp_path / client / name, 10)
    options = {"client": True, "test": 0.3, "classes": ["b", "c", "a"]}
    data, other = from_folder(tmp_path, **options), from_folder(tmp_path, **options, seed=2)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("an image is decoded again"))
    assert data.fingerprint != other.fingerprint
    again = data.split_again(seed=2)
    assert again.fingerprint == other.fingerprint
    assert (again.classes, again.test_split) == (other.classes, other.test_split)
    assert again.split_again(seed=0).fingerprint == data.fingerprint


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "patients.csv"
    with file.open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["age", "time", "smoker", "flat", "hospital", "ill"])
        for i in range(40):
            out.writerow(
                [20 + i, 1_700_000_000 + i, ["yes", "no", "once"][i % 3], 7, f"h{i % 4}", ["no", "yes"][i % 2]]
            )
    return file


def test_tables_are_standardised_by_the_training_part(table: Path) -> None:
    data = from_table(table, "ill", client="hospital")
    assert (data.name, data.classes, data.group_names) == ("patients", ("no", "yes"), ("h0", "h1", "h2", "h3"))
    assert data.shape == (6,)  # age, time, three words, a constant
    assert torch.allclose(data.train_x[:, :2].mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(data.train_x[:, :2].std(0, correction=0), torch.ones(2), atol=1e-5)
    assert torch.allclose(data.train_x[:, 0], data.train_x[:, 1], atol=1e-4)  # seconds since 1970 keep their precision
    assert torch.equal(data.train_x[:, 2:5].sum(1), torch.ones(len(data.train_y)))
    assert set(data.train_x[:, 2:5].unique().tolist()) == {0.0, 1.0}
    assert data.train_x[:, 5].unique().tolist() == [0.0]
    assert data.test_x[:, 0].abs().max() > 0


def test_a_table_in_parquet_is_the_same(table: Path, tmp_path: Path) -> None:
    pq.write_table(arrow_csv.read_csv(table), tmp_path / "patients.parquet")
    assert from_table(tmp_path / "patients.parquet", "ill").fingerprint == from_table(table, "ill").fingerprint


def test_bad_tables(table: Path, tmp_path: Path) -> None:
    check_error(lambda: from_table(table, "sick"), "data.missing_column", table, '"sick"', "age, time, smoker")
    check_error(lambda: from_table(table, "ill", client="city"), "data.missing_column", table, '"city"')
    check_error(
        lambda: from_table(tmp_path / "x.txt", "ill"), "data.unsupported_type", tmp_path / "x.txt", ".csv", ".parquet"
    )
    check_error(lambda: from_table(tmp_path / "x.csv", "ill"), "data.unreadable_file", tmp_path / "x.csv")
    file = tmp_path / "t.parquet"

    def written(columns: dict[str, object]) -> Path:
        pq.write_table(pa.table(columns), file)
        return file

    y = [0, 1] * 30
    names = [f"n{i}" for i in range(60)]
    check_error(
        lambda: from_table(written({"name": names, "y": y}), "y"), "data.text_column", file, '"name"', "60", "50"
    )
    gaps = [None, 1.0] * 30
    check_error(lambda: from_table(written({"a": gaps, "y": y}), "y"), "data.missing_value", file, '"a"', "30 of 60")
    check_error(lambda: from_table(written({"a": [np.nan, 1.0] * 30, "y": y}), "y"), "data.not_finite", file, '"a"')
    check_error(lambda: from_table(written({"a": y, "y": [0.5] * 60}), "y"), "data.invalid_labels", "labels")
    check_error(lambda: from_table(written({"y": y}), "y"), "data.empty", file)
    check_error(lambda: from_table(written({"a": [], "y": []}), "y"), "data.empty", file)
    file.write_bytes(b"PAR1 and no more")
    check_error(lambda: from_table(file, "y"), "data.unreadable_file", file)
    (tmp_path / "ragged.csv").write_text("a,y\n1,2\n1,2,3\n")
    check_error(lambda: from_table(tmp_path / "ragged.csv", "y"), "data.unreadable_file", tmp_path / "ragged.csv")
    (tmp_path / "gap.csv").write_text("a,w,y\n1,u,0\n2,,1\n")
    check_error(
        lambda: from_table(tmp_path / "gap.csv", "y"), "data.missing_value", tmp_path / "gap.csv", '"w"', "1 of 2"
    )
    (tmp_path / "twice.csv").write_text("a,a,y\n1,2,0\n2,3,1\n")
    check_error(lambda: from_table(tmp_path / "twice.csv", "y"), "data.duplicate_column", tmp_path / "twice.csv", '"a"')


def test_as_dataset(tmp_path: Path, write_images: Write, table: Path) -> None:
    data = as_dataset((X, Y))
    assert as_dataset(data) is data
    assert as_dataset([X, Y, [0, 1] * 10]).group_names == ("0", "1")
    assert as_dataset(TensorDataset(torch.tensor(X), torch.arange(20) % 2)).name == "torch"
    write_images(tmp_path / "photos" / "a", 3)
    write_images(tmp_path / "photos" / "b", 3)
    assert as_dataset(str(tmp_path / "photos")).name == "photos"
    rows = {"image": [Image.fromarray(np.zeros((2, 2), dtype=np.uint8))] * 4, "label": [0, 1] * 2}
    features = hub_library.Features(image=hub_library.Image(), label=hub_library.Value("int64"))
    assert as_dataset(hub_library.Dataset.from_dict(rows, features)).shape == (1, 2, 2)
    check_error(lambda: as_dataset(str(table)), "data.missing_column", table, f'from_table("{table}", label=...)')
    check_error(lambda: as_dataset(7), "data.unsupported_type", "data", "int", "fedrecall.from_table(frame, label=...)")
    check_error(lambda: as_dataset((X, Y, Y, Y)), "data.unsupported_type", "data", "tuple")
