"""Tests of texts as token ids."""

import csv
from pathlib import Path

import datasets as hub_library
import pytest
import torch

from fedrecall.config.experiment import Experiment
from fedrecall.data.custom import from_huggingface, from_text
from fedrecall.data.examples import Examples
from fedrecall.data.tabular import from_table
from fedrecall.data.text import WordTokenizer, encode_texts
from fedrecall.errors import UserError
from fedrecall.tensor_dict import TensorDict
from support.tiny_transformer import make_texts, save_transformer

TEXTS, LABELS, CLIENTS = make_texts(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="needs the extra text")
    return save_transformer(tmp_path_factory.mktemp("bert"))


def test_words_are_hashed_to_the_same_ids_everywhere() -> None:
    tokenizer = WordTokenizer(1000)
    assert tokenizer.encode("A word, and a word") == [172, 937, 72, 292, 172, 937]
    assert tokenizer.encode("  ") == []
    ids = [i for text in TEXTS for i in WordTokenizer(50).encode(text)]
    assert 0 < min(ids) <= max(ids) < 50


def test_texts_are_token_ids_padded_to_the_longest() -> None:
    data = from_text(TEXTS, LABELS, clients=CLIENTS)
    assert data.train_x.dtype == torch.int64
    assert data.shape == (max(len(text.split()) for text in TEXTS),)
    assert data.classes == ("flower", "sky", "tree")
    assert data.num_values[""] == (8192,) * data.shape[0]
    assert from_text(TEXTS, LABELS, max_tokens=2).shape == (2,)
    own = from_text(TEXTS, LABELS, test=(["a rose"], ["flower"]))
    assert len(own.train_y) == 30
    assert own.test_x.shape == (1, own.shape[0])


def test_a_batch_has_the_length_of_its_longest_text() -> None:
    data = from_text(["one", "one two three", "one two"] * 4, [0, 1, 1] * 4, test=(["one two three four"], [0]))
    examples = Examples(data.train_x, data.train_y, data.test_transform)
    assert examples.batch(torch.tensor([0, 3])).shape == (2, 1)
    assert examples.batch(torch.tensor([0, 2])).shape == (2, 2)
    assert examples.batch(slice(0, 12)).shape == (12, 3)
    assert torch.equal(examples.precomputed().batch(torch.tensor([2])), data.train_x[2:3, :2])


def test_tokenizers_of_transformers_make_inputs_by_name(folder: Path) -> None:
    from transformers import AutoTokenizer

    data = from_text(TEXTS, LABELS, tokenizer=folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    same = from_text(TEXTS, LABELS, tokenizer=tokenizer)
    assert data.fingerprint == same.fingerprint
    assert isinstance(data.train_x, TensorDict)
    assert data.train_x.names == ("input_ids", "attention_mask")
    expected = tokenizer(TEXTS, padding=True, return_tensors="pt")["input_ids"]
    rows = torch.cat([data.train_x["input_ids"], data.test_x["input_ids"]])
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    assert data.num_values["input_ids"][0] == len(tokenizer)
    examples = Examples(data.train_x, data.train_y, data.test_transform)
    shortest = int(data.train_x["attention_mask"].sum(1).argmin())
    batch = examples.batch(torch.tensor([shortest]))
    assert batch["input_ids"].shape[1] == int(data.train_x["attention_mask"][shortest].sum())
    assert bool(batch["attention_mask"].all())


def test_texts_are_tokenised_once(folder: Path) -> None:
    from transformers import AutoTokenizer

    class Counting:
        """Tokenizer that counts its calls."""

        def __init__(self) -> None:
            self.inner, self.calls = AutoTokenizer.from_pretrained(folder), 0

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def __len__(self) -> int:
            return len(self.inner)

        def __call__(self, *args: object, **options: object) -> object:
            self.calls += 1
            return self.inner(*args, **options)

    tokenizer = Counting()
    texts = [*TEXTS, "a text that no other test has"]
    first = encode_texts([texts], tokenizer, 16, "once")[0][0]
    again = encode_texts([texts], tokenizer, 16, "once")[0][0]
    assert tokenizer.calls == 1
    assert all(torch.equal(first[name], again[name]) for name in first.names)
    encode_texts([texts], tokenizer, 8, "once")
    assert tokenizer.calls == 2


def test_tables_and_hugging_face_columns_of_text(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    with file.open("w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["note", "topic", "site", "unused"])
        rows.writerows(zip(TEXTS, LABELS, CLIENTS, [""] * len(TEXTS), strict=True))
    expected = from_text(TEXTS, LABELS, clients=CLIENTS, tokenizer=folder).fingerprint
    assert from_table(file, "topic", client="site", text="note", tokenizer=folder).fingerprint == expected
    whole = hub_library.Dataset.from_dict({"note": TEXTS, "topic": LABELS, "site": CLIENTS})
    data = from_huggingface(whole, text="note", label="topic", client="site", tokenizer=str(folder))
    assert data.fingerprint == expected
    splits = hub_library.DatasetDict(train=whole, test=whole.select(range(4)))
    assert len(from_huggingface(splits, text="note", label="topic").test_y) == 4
    tables = {"data": {"name": "table", "path": str(file), "label": "topic", "client": "site", "text": "note"}}
    model = {"name": "huggingface", "path": str(folder)}
    experiment = Experiment(**tables, model=model)
    assert experiment.data.load(experiment.model).fingerprint == expected
    assert experiment.data.load().shape != experiment.data.load(experiment.model).shape


@pytest.mark.parametrize(
    ("texts", "options", "code", "key"),
    [
        (["a", " "], {}, "data.invalid_text", "texts"),
        (["a", None], {}, "data.invalid_text", "texts"),
        (["a", "b"], {"max_tokens": 0}, "config.invalid_value", "max_tokens"),
        (["a", "b"], {"tokenizer": "no/such/folder"}, "data.tokenizer_not_found", "data.tokenizer"),
        (["a", "b"], {"tokenizer": str.split}, "data.invalid_tokenizer", "tokenizer"),
    ],
    ids=["empty", "none", "no tokens", "no folder", "a function"],
)
def test_invalid_texts(texts: list[str], options: dict[str, object], code: str, key: str) -> None:
    pytest.importorskip("transformers", reason="needs the extra text")
    with pytest.raises(UserError) as error:
        from_text(texts, [0, 1], **options)
    assert (error.value.code, error.value.key) == (code, key)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "code", "key"),
    [
        ({"name": "digits", "text": "note"}, "config.conflict", "data.text"),
        ({"name": "table", "path": "t.csv", "label": "y", "max_tokens": 8}, "config.conflict", "data.max_tokens"),
    ],
)
def test_keys_of_text_need_a_table_of_texts(table: dict[str, object], code: str, key: str) -> None:
    with pytest.raises(UserError) as error:
        Experiment(data=table)
    assert (error.value.code, error.value.key) == (code, key)
