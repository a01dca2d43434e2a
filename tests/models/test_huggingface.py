"""Tests of pretrained transformers: adapters, heads, types, and every method on them."""

import csv
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch

import fedrecall as fr
from fedrecall.core.flat_model import FlatModel
from fedrecall.errors import UserError
from fedrecall.models.huggingface import HuggingFace, Lora, _checksum
from support.interrupted_run import difference, kill, outcome, start_process
from support.processes import until
from support.tiny_transformer import make_texts, save_transformer

pytest.importorskip("transformers", reason="needs the extra text")
pytest.importorskip("peft", reason="needs the extra text")

SHAPE = {"input_ids": (10,), "attention_mask": (10,)}
VALUES = {"input_ids": (17,), "attention_mask": (2,)}
TEXTS, LABELS, CLIENTS = make_texts()


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_transformer(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def data(bert: Path) -> fr.Dataset:
    return fr.from_text(TEXTS, LABELS, clients=CLIENTS, tokenizer=bert)


def settings(bert: Path, **model: object) -> dict[str, object]:
    return {
        "model": {"name": "huggingface", "path": str(bert)} | (model or {"lora": {"targets": ["query", "value"]}}),
        "data": {"aux_per_class": 2},
        "federation": {"clients": 3, "partition": {"name": "groups"}},
        "local": {"epochs": 1, "batch": 8, "lr": 0.01, "optimiser": "adamw"},
        "engine": {"name": "serial"},
        "run": {"rounds": 2},
    }


def trained(module: torch.nn.Module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("pooling", ["model", "mean"])
def test_the_part_to_train_is_all_that_has_gradients(bert: Path, pooling: str) -> None:
    path = str(bert)
    full = HuggingFace(path, pooling=pooling).build(SHAPE, 3)
    assert trained(full) == {name for name, _ in full.named_parameters()}
    head = HuggingFace(path, train="head", pooling=pooling).build(SHAPE, 3)
    assert trained(head) == {"classifier.weight", "classifier.bias"}
    lora = HuggingFace(path, lora=Lora(r=4, targets=("query", "value")), pooling=pooling).build(SHAPE, 3)
    names = trained(lora)
    assert sum("lora_" in name for name in names) == 2 * 2 * 2  # layers, targets, matrices
    assert sum("classifier" in name for name in names) == 2
    assert len(names) == 10
    f = FlatModel(lora)
    assert len(f.w) == 8 * 4 * 16 + 16 * 3 + 3
    assert (len(f.b), len(f.int_buffers)) == (0, 0)


def test_a_new_adapter_changes_nothing_and_the_features_enter_the_head(bert: Path) -> None:
    torch.manual_seed(0)
    plain = HuggingFace(str(bert), pooling="mean").build(SHAPE, 3).eval()
    torch.manual_seed(0)
    adapted = HuggingFace(str(bert), pooling="mean", lora=Lora(targets=("query",))).build(SHAPE, 3).eval()
    inputs = {"input_ids": torch.tensor([[2, 5, 6, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
    with torch.no_grad():
        (h, z), (h2, z2) = plain(**inputs), adapted(**inputs)
    assert torch.equal(h, h2)
    assert torch.equal(z, z2)
    assert h.shape == (1, 16)
    assert torch.allclose(plain.classifier(h), z)


def test_padding_does_not_change_logits(bert: Path) -> None:
    for pooling in ("model", "mean"):
        module = HuggingFace(str(bert), pooling=pooling).build(SHAPE, 3).eval()
        ids = torch.tensor([[2, 5, 6, 3, 0, 0]])
        with torch.no_grad():
            _, padded = module(input_ids=ids, attention_mask=(ids > 0).long())
            _, short = module(input_ids=ids[:, :4], attention_mask=(ids > 0).long()[:, :4])
        assert torch.allclose(padded, short, atol=1e-6)


@pytest.mark.parametrize("pooling", ["model", "mean"])
def test_a_bfloat16_base_has_float32_adapters(bert: Path, data: fr.Dataset, pooling: str) -> None:
    model = HuggingFace(str(bert), lora=Lora(targets=("query",)), dtype="bfloat16", pooling=pooling)
    module = model.build(SHAPE, 3)
    types = {p.requires_grad: p.dtype for name, p in module.named_parameters() if "original_module" not in name}
    assert types == {True: torch.float32, False: torch.bfloat16}
    part = {"lora": {"targets": ["query"]}, "dtype": "bfloat16", "pooling": pooling}
    result = fr.run(settings(bert, **part), data=data, method="fedlmd", progress=False)
    assert result.server.w.dtype == torch.float32
    assert not torch.equal(result.server.w, FlatModel(module).w)


def test_teachers_share_the_base(bert: Path) -> None:
    f = FlatModel(HuggingFace(str(bert), lora=Lora(targets=("query",))).build(SHAPE, 3))
    student = {name: p.data_ptr() for name, p in f.model.named_parameters() if not p.requires_grad}
    teacher = f.frozen_module(f.w + 1, slot="teacher")
    assert student == {name: p.data_ptr() for name, p in teacher.named_parameters() if name in student}


@pytest.mark.parametrize("method", sorted(fr.METHODS))
def test_every_method_trains_adapters(method: str, bert: Path, data: fr.Dataset) -> None:
    config = settings(bert) | {"local": {"epochs": 1, "batch": 8}}
    table = {"name": method, "steps": 5} if method == "feddf" else {"name": method}
    result = fr.run(config, data=data, method=table, progress=False)
    pool = fr.run(config | {"engine": {"name": "pool", "workers": 2}}, data=data, method=table, progress=False)
    assert torch.equal(pool.server.evaluated_state, result.server.evaluated_state)
    assert len(result.rounds) == 2
    assert all(torch.isfinite(torch.tensor(record["train_loss"])) for record in result.rounds)
    assert len(result.server.w) + len(result.server.f.private.w) == 8 * 8 * 16 + 16 * 3 + 3


def test_a_decoder_is_trained_too(tmp_path: Path) -> None:
    folder = save_transformer(tmp_path / "gpt2", kind="gpt2")
    texts = fr.from_text(TEXTS, LABELS, clients=CLIENTS, tokenizer=folder)
    result = fr.run(settings(folder, lora={"targets": ["c_attn"]}), data=texts, method="moon", progress=False)
    assert len(result.rounds) == 2


def test_the_pool_gives_the_bits_of_serial(bert: Path, data: fr.Dataset) -> None:
    serial = fr.run(settings(bert), data=data, method="fedcad", progress=False)
    pool = settings(bert) | {"engine": {"name": "pool", "workers": 2}}
    assert torch.equal(fr.run(pool, data=data, method="fedcad", progress=False).server.w, serial.server.w)


def test_only_what_is_trained_is_sent_and_stored(bert: Path, data: fr.Dataset, tmp_path: Path) -> None:
    result = fr.run(settings(bert), data=data, out=tmp_path / "run", progress=False)
    assert result.rounds[0]["bytes_down"] == 4 * len(result.server.w)
    saved = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert sum(t.numel() for t in saved.values()) == len(result.server.w)
    assert saved.keys() == trained(result.model())
    again = fr.run(settings(bert) | {"run": {"rounds": 1, "start": str(tmp_path / "run")}}, data=data, progress=False)
    assert again.rounds[0]["accuracy"] is not None
    config = fr.Experiment.load(tmp_path / "run" / "config.toml")
    assert config.model.checksum == HuggingFace(str(bert)).sized_for(VALUES).checksum


def test_an_adapter_is_saved_in_the_format_of_peft(bert: Path, data: fr.Dataset, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    result = fr.run(settings(bert), data=data, progress=False)
    folder = result.save_adapter(tmp_path / "adapter")
    base = AutoModelForSequenceClassification.from_pretrained(bert, num_labels=3)
    loaded = PeftModel.from_pretrained(base, folder).eval()
    inputs = {name: data.test_x[name] for name in data.test_x.names}
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, result.model()(**inputs)[1])
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(bert)
    head = fr.run(settings(bert, train="head"), data=data, rounds=1, progress=False)
    with pytest.raises(UserError) as error:
        head.save_adapter(tmp_path / "none")
    assert error.value.code == "model.no_adapter"


def test_weights_that_the_base_lacks_are_trained_sent_and_saved(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    base = save_transformer(tmp_path / "base", pooler=False)
    head = HuggingFace(str(base), train="head").build(SHAPE, 3)
    assert trained(head) == {
        f"{name}.{part}" for name in ("classifier", "bert.pooler.dense") for part in ("weight", "bias")
    }
    data = fr.from_text(TEXTS, LABELS, clients=CLIENTS, tokenizer=base)
    result = fr.run(settings(base), data=data, progress=False)
    assert len(result.server.w) == 8 * 8 * 16 + 16 * 3 + 3 + 16 * 16 + 16
    folder = result.save_adapter(tmp_path / "adapter")
    torch.manual_seed(5)  # of the pooler that is replaced
    loaded = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, num_labels=3), folder)
    inputs = {name: data.test_x[name] for name in data.test_x.names}
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**inputs).logits, result.model()(**inputs)[1])


def test_a_killed_run_of_a_text_table_resumes_to_the_bit(bert: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    with file.open("w", newline="") as f:
        csv.writer(f).writerows([("note", "topic", "site"), *zip(TEXTS, LABELS, CLIENTS, strict=True)])
    table = {"name": "table", "path": str(file), "label": "topic", "client": "site", "text": "note"}
    config = settings(bert) | {"data": table, "method": {"name": "moon"}, "run": {"rounds": 4}}
    config |= {"engine": {"name": "pool", "workers": 2}}
    fr.run(config, out=tmp_path / "complete", progress=False)
    expected, out = outcome(tmp_path / "complete"), tmp_path / "killed"
    process = start_process(partial(fr.run, config, out=out))
    until(lambda: (out / "rounds.jsonl").exists() and (out / "rounds.jsonl").read_text().count("\n") >= 2)
    kill(process)
    if not (out / "summary.json").exists():  # else it was too fast to be killed
        fr.run(config, out=out, resume=True, progress=False)
    assert difference(out, expected) == ""


def test_another_base_is_refused(bert: Path, tmp_path: Path) -> None:
    checksum = HuggingFace(str(bert)).sized_for(VALUES).checksum
    copy = shutil.copytree(bert, tmp_path / "copy")
    assert HuggingFace(str(copy), checksum=checksum).sized_for(VALUES).checksum == checksum
    other = save_transformer(tmp_path / "other", seed=1)
    with pytest.raises(UserError) as error:
        HuggingFace(str(other), checksum=checksum).sized_for(VALUES)
    assert (error.value.code, error.value.key) == ("model.other_base", "model.checksum")


@pytest.mark.parametrize(
    ("model", "code", "key", "fact"),
    [
        ({"path": "no/such/folder"}, "model.base_not_found", "model.path", "no/such/folder"),
        ({"path": ""}, "config.missing_key", "model.path", "model.path"),
        ({"lora": {"targets": ["queri"]}}, "config.unknown_name", "model.lora.targets", 'did you mean "query"'),
        ({"lora": {"r": 0}}, "config.invalid_value", "model.lora.r", "0"),
        ({"lora": {}, "train": "head"}, "config.conflict", "model.lora", "head"),
        ({"dtype": "bfloat16"}, "config.conflict", "model.dtype", "bfloat16"),
        ({"train": "haed"}, "config.unknown_name", "model.train", "haed"),
    ],
)
def test_invalid_models(bert: Path, data: fr.Dataset, model: dict[str, object], code: str, key: str, fact: str) -> None:
    with pytest.raises(UserError) as error:
        fr.run(settings(bert, **model), data=data, progress=False)
    assert (error.value.code, error.value.key) == (code, key)
    assert fact in str(error.value)
    assert "\n" not in str(error.value)


def test_another_tokenizer_is_refused(bert: Path) -> None:
    words = fr.from_text(TEXTS, LABELS, clients=CLIENTS)
    with pytest.raises(UserError) as error:
        fr.run(settings(bert), data=words, progress=False)
    assert (error.value.code, error.value.key) == ("model.unsupported_input", "data.tokenizer")
    with pytest.raises(UserError) as error:
        HuggingFace(str(bert)).sized_for({"input_ids": (18,)})
    assert (error.value.code, error.value.key) == ("model.unsupported_input", "data.tokenizer")


def test_only_a_model_of_the_hub_is_downloaded_and_only_if_asked(
    bert: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    asked = []

    def download(name: str, **options: object) -> str:
        asked.append(name)
        return str(bert)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError) as error:
        HuggingFace("someone/some-model").folder()
    assert (error.value.code, error.value.key) == ("model.base_not_found", "model.path")
    assert HuggingFace(str(bert), download=True).folder() == str(bert)
    assert asked == []
    assert HuggingFace("someone/some-model", download=True).with_checksum().checksum == _checksum(str(bert))
    assert set(asked) == {"someone/some-model"}
