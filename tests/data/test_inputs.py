"""Tests of fedrecall.data.inputs: integers, several inputs by name, one data set per client."""

import logging
from collections.abc import Callable
from typing import Any

import datasets as hub_library
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedrecall.data.custom import as_dataset, from_arrays, from_clients, from_huggingface, from_text, from_torch
from fedrecall.data.dataset import Dataset
from fedrecall.data.examples import Examples
from fedrecall.data.tabular import from_table
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError
from fedrecall.tensor_dict import TensorDict

N = 20
Y = [0, 1] * (N // 2)
IDS = np.arange(N * 6).reshape(N, 6) % 11
MASK = np.ones((N, 6), dtype=bool)
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)


class Items(TorchDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


def refused(call: Callable[[], object], code: str, key: str, *facts: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert (error.value.code, error.value.key) == (code, key)
    assert "\n" not in str(error.value)
    assert all(fact in str(error.value) for fact in facts), str(error.value)


def names_of(data: Dataset) -> tuple[str, ...]:
    assert isinstance(data.train_x, TensorDict)
    assert isinstance(data.test_x, TensorDict)
    return data.train_x.names


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint16])
def test_integers_stay_integers(dtype: type) -> None:
    data = from_arrays(IDS.astype(dtype), Y)
    assert data.train_x.dtype == torch.int64
    assert sorted(torch.cat([data.train_x, data.test_x]).flatten().tolist()) == sorted(IDS.flatten().tolist())
    assert data.num_values == {"": tuple((IDS.max(0) + 1).tolist())}


def test_other_numbers_are_float32() -> None:
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(IDS)
    for x in (IDS.astype(np.float64), IDS % 2 == 0, sparse, torch.from_numpy(IDS.astype(np.float64)).to_sparse()):
        data = from_arrays(x, Y)
        assert data.train_x.dtype == torch.float32
        assert data.num_values == {}
    standardised = from_arrays(IDS, Y, standardise=True)
    assert abs(float(standardised.train_x.mean())) < 1e-6


def test_a_dictionary_is_several_inputs() -> None:
    x = {"input_ids": IDS, "attention_mask": MASK, "image": PIXELS, "age": np.linspace(0, 1, N)}
    data = from_arrays(x, Y)
    assert data.shape == {"input_ids": (6,), "attention_mask": (6,), "image": (3, 8, 8), "age": ()}
    types = [torch.int64, torch.bool, torch.uint8, torch.float32]
    assert [data.train_x[name].dtype for name in names_of(data)] == types
    assert data.num_values == {"input_ids": tuple((IDS.max(0) + 1).tolist())}
    other = from_arrays(x | {"input_ids": IDS + 1}, Y)
    assert other.fingerprint != data.fingerprint


def test_bytes_are_images_by_their_shape() -> None:
    data = from_arrays({"image": PIXELS, "grey": PIXELS[..., 0], "kinds": PIXELS[:, 0, :, 0]}, Y)
    assert data.shape == {"image": (3, 8, 8), "grey": (1, 8, 8), "kinds": (8,)}
    assert data.train_x["kinds"].dtype == torch.int64


def test_only_images_are_transformed() -> None:
    data = from_arrays({"image": PIXELS, "kinds": PIXELS[:, 0, :, 0]}, Y)
    flipped = Examples(data.train_x, data.train_y, Transform(flip=True, mean=(0.0,) * 3, std=(1.0,) * 3))
    batch = flipped.batch(torch.arange(8), torch.Generator().manual_seed(0))
    plain = flipped.batch(slice(0, 8))
    assert torch.equal(batch["kinds"], data.train_x["kinds"][:8])
    assert torch.allclose(plain["image"], data.train_x["image"][:8].float() / 255)
    turned = [i for i in range(8) if not torch.equal(batch["image"][i], plain["image"][i])]
    assert 0 < len(turned) < 8
    assert all(torch.equal(batch["image"][i], plain["image"][i].flip(2)) for i in turned)
    once = Examples(data.train_x, data.train_y, Transform()).precomputed()
    assert once.x["image"].dtype == torch.float32
    assert once.x["kinds"].dtype == torch.int64
    words = Examples(from_arrays({"ids": IDS}, Y).train_x, data.train_y, Transform(flip=True))
    refused(lambda: words.batch(slice(0, 2), torch.Generator()), "config.conflict", "data.augment", "ids")


def test_torch_datasets_of_dictionaries() -> None:
    pairs = Items([({"ids": torch.tensor(IDS[i]), "age": 0.5 * i}, Y[i]) for i in range(N)])
    flat = Items([{"ids": IDS[i], "age": 0.5 * i, "label": torch.tensor(Y[i])} for i in range(N)])
    data, same = from_torch(pairs), from_torch(flat)
    assert data.shape == {"ids": (6,), "age": ()}
    assert data.fingerprint == same.fingerprint
    refused(lambda: from_torch(Items([{"ids": [1, 2]}])), "data.missing_column", "data", "ids", "label")
    refused(lambda: from_torch(Items([({"a": 1}, 0), ({"b": 1}, 1)])), "data.shape_mismatch", "inputs", "item 1", "a")
    ragged = Items([({"ids": [1, 2]}, 0), ({"ids": [1]}, 1)])
    refused(lambda: from_torch(ragged), "data.shape_mismatch", "ids", "pad")


def test_hugging_face_columns_are_inputs_by_name() -> None:
    rows = {"input_ids": IDS.tolist(), "attention_mask": MASK.astype(int).tolist(), "age": [0.5] * N, "label": Y}
    whole = hub_library.Dataset.from_dict(rows)
    data = from_huggingface(whole, inputs=["input_ids", "attention_mask", "age"])
    assert data.shape == {"input_ids": (6,), "attention_mask": (6,), "age": ()}
    assert data.train_x["input_ids"].dtype == torch.int64
    single = from_huggingface(whole, inputs="input_ids")
    assert (single.shape, single.train_x.dtype) == ((6,), torch.int64)
    ragged = hub_library.Dataset.from_dict({"input_ids": [[1], [1, 2]] * 10, "age": [0.5] * N, "label": Y})
    refused(lambda: from_huggingface(ragged, inputs=["input_ids", "age"]), "data.shape_mismatch", "input_ids", "pad")


def test_hugging_face_images_beside_numbers() -> None:
    features = hub_library.Features(
        photo=hub_library.Image(), age=hub_library.Value("float32"), label=hub_library.Value("int64")
    )
    rows = {"photo": [Image.fromarray(p) for p in PIXELS], "age": [0.5] * N, "label": Y}
    data = from_huggingface(hub_library.Dataset.from_dict(rows, features), inputs=["photo", "age"])
    assert data.shape == {"photo": (3, 8, 8), "age": ()}
    assert data.train_x["photo"].dtype == torch.uint8


def test_one_data_set_per_client() -> None:
    x = torch.arange(N * 2, dtype=torch.float32).view(N, 2)
    parts = [TensorDataset(x[:8], torch.tensor(Y[:8])), TensorDataset(x[8:], torch.tensor(Y[8:]))]
    data = as_dataset(parts)
    assert (data.group_names, data.classes) == (("0", "1"), ("0", "1"))
    rows, groups = torch.cat([data.train_x, data.test_x]), torch.cat([data.train_groups, data.test_groups])
    assert torch.equal((rows[:, 0] >= 16).long(), groups)
    named = as_dataset({"north": (x[:8].numpy(), Y[:8]), "south": parts[1]})
    assert named.group_names == ("north", "south")
    assert torch.equal(named.train_x, data.train_x)
    dictionaries = from_clients([({"ids": IDS[:8]}, Y[:8]), ({"ids": IDS[8:]}, Y[8:])])
    assert dictionaries.shape == {"ids": (6,)}
    own_tests = from_clients([from_arrays(x[:8], Y[:8], test=0.5), from_arrays(x[8:], ["0", "2"] * 6, test=0.25)])
    assert (own_tests.classes, len(own_tests.train_y), len(own_tests.test_y)) == (("0", "1", "2"), 12, 8)
    assert torch.bincount(own_tests.test_groups).tolist() == [4, 4]


def test_a_client_of_a_list_has_its_position_as_number() -> None:
    data = from_clients([(np.full((4, 1), i, dtype=np.float32), [0, 1, 0, 1]) for i in range(12)])
    assert data.group_names == tuple(map(str, range(12)))
    assert torch.equal(data.train_x[:, 0].long(), data.train_groups)
    refused(lambda: from_clients([(IDS[:0], []), (IDS, Y)]), "data.empty", "0")


def test_an_example_without_a_label_has_not_the_last_class() -> None:
    images = {"image": [Image.fromarray(pixels) for pixels in PIXELS[:4]], "label": [0, 1, -1, 0]}
    kinds = hub_library.Features({"image": hub_library.Image(), "label": hub_library.ClassLabel(names=["a", "b"])})
    part = hub_library.Dataset.from_dict(images, kinds)
    refused(lambda: from_huggingface(part), "data.invalid_labels", "labels")
    refused(lambda: from_clients([part, part]), "data.invalid_labels", "labels", "-1")


def test_clients_with_different_encodings_are_refused() -> None:
    frames = [pd.DataFrame({"ward": ["a", name] * 10, "ill": Y}) for name in ("b", "c")]
    tables = [from_table(frame, "ill") for frame in frames]
    refused(lambda: from_clients(tables), "data.shape_mismatch", "1", "columns", "from_table")
    raw = (tables[1].train_x, tables[1].train_y)
    refused(lambda: from_clients({"a": tables[0], "b": raw}), "data.shape_mismatch", "b", "columns")
    scaled = [from_arrays(x, Y, standardise=True) for x in (IDS * 1.0, IDS * 2.0)]
    refused(lambda: from_clients(scaled), "data.shape_mismatch", "1", "scaling")
    texts = [from_text(["a red rose"] * N, Y, max_tokens=n) for n in (3, 4)]
    refused(lambda: from_clients(texts), "data.shape_mismatch", "1", "text")


def test_clients_with_the_same_encoding_keep_it() -> None:
    frame = pd.DataFrame({"ward": ["a", "b"] * 10, "ill": Y})
    table = from_table(frame, "ill", categorical="integers")
    assert from_clients([table, table]).columns == table.columns
    texts = from_text(["a red rose"] * N, Y)
    joined = from_clients([texts, texts])
    assert (joined.vocabulary, joined.text, joined.test_transform) == (
        *(texts.vocabulary, texts.text),
        Transform(trim=True),
    )
    scaled = from_arrays(IDS * 1.0, Y, standardise=True)
    assert torch.equal(from_clients([scaled, scaled]).scaling[0], scaled.scaling[0])


def test_the_units_of_clients_stay_apart() -> None:
    units = np.arange(N) // 2
    parts = [from_arrays(IDS, Y, groups=units), from_arrays(IDS, Y), from_arrays(IDS, Y, groups=units)]
    data = from_clients(parts)
    sizes = [len(part.train_y) for part in parts]
    first, none, last = data.train_units.split(sizes)
    for found, part in ((first, parts[0]), (last, parts[2])):
        same = part.train_units[:, None] == part.train_units
        assert torch.equal(found[:, None] == found, same)
    assert len(none.unique()) == sizes[1]
    assert len(data.train_units.unique()) == sum(len(found.unique()) for found in (first, none, last))
    assert from_clients([parts[1], parts[1]]).train_units is None
    mixed = from_clients({"a": parts[0], "b": (IDS, Y)}, test=0.3)
    assert len(mixed.train_units) == len(mixed.train_y)


def test_bfloat16_becomes_float32() -> None:
    x = torch.rand(N, 3).bfloat16()
    for data in (from_arrays(x, Y, test=0), from_torch(TensorDataset(x, torch.tensor(Y)), test=0)):
        assert data.train_x.dtype == torch.float32
        assert torch.equal(data.train_x, x.float())


def test_one_hot_labels_of_a_torch_dataset_are_refused() -> None:
    one_hot = torch.nn.functional.one_hot(torch.arange(N) % 2)
    refused(lambda: from_torch(TensorDataset(torch.rand(N, 3), one_hot)), "data.invalid_labels", "labels", "[20, 2]")
    column = TensorDataset(torch.rand(N, 3), (torch.arange(N) % 2)[:, None])
    assert from_torch(column).classes == ("0", "1")


def test_two_arrays_in_a_list_are_inputs_and_labels() -> None:
    x = np.zeros((4, 2), dtype=np.float32)
    assert as_dataset([x, [0, 1, 0, 1]]).group_names == ()


def test_invalid_inputs_by_name() -> None:
    refused(lambda: from_arrays({}, Y), "data.empty", "inputs")
    refused(lambda: from_arrays({"ids": IDS, "age": IDS[:3, 0]}, Y), "data.length_mismatch", "age", "3", "20")
    refused(lambda: from_arrays({"ids": [["a"]] * N}, Y), "data.invalid_inputs", "ids", "text")
    refused(lambda: from_arrays({"ids": IDS}, Y, standardise=True), "config.conflict", "standardise")
    other = ({"id": IDS}, Y)
    refused(lambda: from_arrays({"ids": IDS}, Y, test=other), "data.shape_mismatch", "test_x", "ids", "missing")
    refused(lambda: from_clients([]), "data.empty", "data")
    refused(lambda: from_clients([(IDS, Y), (IDS * 0.5, Y)]), "data.shape_mismatch", "1", "int64", "float32")
    refused(lambda: from_clients([(IDS, Y), (IDS, Y[:3])]), "data.length_mismatch", "labels", "client 1")
    refused(lambda: from_clients([(IDS, Y), 3]), "data.unsupported_type", "data", "int")


def test_labels_that_differ_by_blanks_only_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        from_arrays(IDS, ["cat", "cat "] * 10, name="blanks")
        from_arrays(IDS, ["cat", "cat "] * 10, name="blanks")
        from_arrays(IDS, ["cat", "dog "] * 10, name="no blanks")
    assert [record.getMessage().count("'cat '") for record in caplog.records] == [1]
