"""Tests of labels of tokens: their positions, splits, methods against slow references, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedrecall as fr
from fedrecall.core.flat_model import FlatModel
from fedrecall.data.examples import Examples
from fedrecall.data.token_labels import NO_LABEL, label_per_example
from fedrecall.data.tokens import from_tokens
from fedrecall.errors import UserError
from fedrecall.models.adapt import adapt
from support.tiny_transformer import TOPICS, make_texts, save_transformer

TEXTS, _, CLIENTS = make_texts(30)
WORDS = [text.split() for text in TEXTS]
KIND = {word: topic for topic, words in TOPICS.items() for word in words}
TAGS = [[KIND.get(word, "O") for word in text] for text in WORDS]


class Tagger(nn.Module):
    """Logits for every token, from the token alone."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8192, 6)
        self.classifier = nn.Linear(6, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.embedding(input_ids))
        return logits


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="needs the extra text")
    pytest.importorskip("peft", reason="needs the extra text")
    return save_transformer(tmp_path_factory.mktemp("bert"))


def settings(bert: Path) -> dict[str, object]:
    return {
        "model": {"name": "huggingface", "path": str(bert), "lora": {"targets": ["query", "value"]}},
        "data": {"aux_per_class": 1},
        "federation": {"clients": 3, "partition": {"name": "groups"}},
        "local": {"epochs": 1, "batch": 8},
        "engine": {"name": "serial"},
        "run": {"rounds": 2},
    }


def table_of(method: str) -> dict[str, object]:
    """Return the method with few steps at the server."""
    return {"name": method, "steps": 5} if method == "feddf" else {"name": method}


def test_labels_are_at_the_first_token_of_their_word(bert: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bert)
    texts = [["rose", "old-new"], ["sky"]]  # the tokenizer divides old-new into three
    data = from_tokens(texts, [["A", "B"], ["A"]], tokenizer=bert, test=([["sky", "rose"]], [["A", "B"]]))
    ids = data.train_x["input_ids"][0].tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "rose", "old", "[UNK]", "new", "[SEP]"]
    assert data.train_y.tolist() == [[-100, 0, 1, -100, -100, -100], [-100, 0, -100, -100, -100, -100]]
    assert torch.equal(data.train_x["positions"], data.train_y != NO_LABEL)
    assert data.test_y.tolist() == [[-100, 0, 1, -100, -100, -100]]
    short = from_tokens(texts, [["A", "B"], ["A"]], tokenizer=bert, test=0.0, max_tokens=3)
    assert short.train_y.tolist() == [[-100, 0, -100], [-100, 0, -100]]  # a label that is cut off is lost


def test_labels_of_a_view_are_those_of_its_tokens() -> None:
    labels = torch.tensor([[0, 2, NO_LABEL], [NO_LABEL, NO_LABEL, 1], [0, 0, 0]])
    data = Examples(torch.zeros(3, 3), labels, fr.from_arrays([[0.0], [1.0]], [0, 1], test=0.0).test_transform)
    assert data.y.tolist() == [0, 2, 1, 0, 0, 0]
    assert (len(data), data.class_counts(3).tolist()) == (3, [4, 1, 1])
    view = data.subset(torch.tensor([2, 0]))
    assert view.y.tolist() == [0, 0, 0, 0, 2]
    assert view.positions(torch.tensor([1, 0])).tolist() == [3, 4, 0, 1, 2]
    assert view.positions(slice(1, 2)).tolist() == [3, 4]
    assert view.example_labels.tolist() == [0, 2]
    assert label_per_example(labels).tolist() == [2, 1, 0]
    plain = Examples(torch.zeros(3, 3), torch.tensor([2, 0, 1]), data.transform)
    rows = torch.tensor([1])
    assert plain.positions(rows) is rows


def test_splits_and_partitions_go_by_the_rarest_label() -> None:
    data = from_tokens(WORDS, TAGS, clients=CLIENTS)
    assert data.classes == ("O", "flower", "sky", "tree")
    assert len(data.train_y) + len(data.test_y) == 30
    numbers = label_per_example(torch.cat([data.test_y, data.train_y]))
    twice = {c for c in range(4) if (numbers == c).sum() >= 2}
    assert set(numbers[: len(data.test_y)].tolist()) == twice  # a share of the texts of every rarest label
    assert data.split_again(seed=1).fingerprint != data.fingerprint
    again = from_tokens(WORDS, TAGS, clients=CLIENTS)
    assert again.fingerprint == data.fingerprint
    result = fr.run(data=data, model=Tagger, alpha=0.5, clients=2, rounds=1, progress=False)
    assert 0 <= result.rounds[0]["accuracy"] <= 1


def slow_loss(method: str, z: list[Tensor], teacher: list[Tensor], y: list[Tensor]) -> Tensor:
    """Return a method's loss on texts, one token at a time: FedAvg, FedNTD (beta 1, tau 1) and FedLMD (the same)."""
    total, tokens = torch.zeros(()), sum(map(len, y))
    counts = torch.bincount(torch.cat(y), minlength=4)
    for logits, global_logits, labels in zip(z, teacher, y, strict=True):
        for own, other, label in zip(logits, global_logits, labels, strict=True):
            total = total - torch.log_softmax(own, 0)[label]
            if method == "fedavg":
                continue
            others = [c for c in range(4) if c != label]
            kept = [c for c in others if method == "fedntd" or counts[c] <= tokens / 4]
            if not kept:
                continue
            log_p = own - torch.logsumexp(own[others], 0)
            log_q = other - torch.logsumexp(other[kept], 0)
            total = total + sum(log_q[c].exp() * (log_q[c] - log_p[c]) for c in kept)
    return total / tokens


@pytest.mark.parametrize("method", ["fedavg", "fedntd", "fedlmd"])
def test_methods_are_those_of_a_slow_reference(method: str) -> None:
    data = from_tokens(WORDS[:12], TAGS[:12], test=(WORDS[12:20], TAGS[12:20]))
    torch.manual_seed(0)
    module = Tagger()
    f = FlatModel(adapt(module, data.train_x[:2], 4))
    w = f.w.clone()
    table = {"name": method, "beta": 1.0, "tau": 1.0} if method != "fedavg" else {"name": method}
    config = {
        "federation": {"clients": 1, "partition": {"name": "iid"}},
        "local": {"epochs": 3, "batch": 100, "lr": 0.5, "momentum": 0.0},
        "engine": {"name": "serial"},
    }
    result = fr.run(config, data=data, model=module, method=table, rounds=2, progress=False)

    def outputs(x: object, y: Tensor) -> list[Tensor]:
        return [module(x["input_ids"][i : i + 1], None)[0][y[i] != NO_LABEL] for i in range(len(y))]

    labels = [row[row != NO_LABEL] for row in data.train_y]
    for _ in range(2):
        with torch.no_grad():
            teacher = [z.clone() for z in outputs(data.train_x, data.train_y)]
        for _ in range(3):
            loss = slow_loss(method, outputs(data.train_x, data.train_y), teacher, labels)
            grads = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for p, g in zip(module.parameters(), grads, strict=True):
                    p.sub_(0.5 * g)
    expected = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert not torch.allclose(expected, w, atol=1e-3)
    assert torch.allclose(result.server.w, expected, atol=2e-6)
    predicted = torch.cat([z.argmax(-1) for z in outputs(data.test_x, data.test_y)])
    truth = data.test_y[data.test_y != NO_LABEL]
    assert result.rounds[-1]["accuracy"] == pytest.approx(float((predicted == truth).double().mean()))


@pytest.mark.parametrize("method", sorted(fr.METHODS))
def test_every_method_trains_on_tokens_or_refuses(method: str, bert: Path) -> None:
    data = from_tokens(WORDS, TAGS, clients=CLIENTS, tokenizer=bert)
    if fr.METHODS[method]().traits.needs_one_label:
        with pytest.raises(UserError) as error:
            fr.run(settings(bert), data=data, method=method, progress=False)
        assert (error.value.code, error.value.key) == ("method.needs_one_label", "method.name")
        return
    result = fr.run(settings(bert), data=data, method=table_of(method), progress=False)
    assert all(torch.isfinite(torch.tensor(record["train_loss"])) for record in result.rounds)
    assert len(result.server.w) + len(result.server.f.private.w) == 8 * 8 * 16 + 16 * 4 + 4


def test_prototypes_weighted_by_size_need_one_label(bert: Path) -> None:
    data = from_tokens(WORDS, TAGS, clients=CLIENTS, tokenizer=bert)
    with pytest.raises(UserError) as error:
        fr.run(settings(bert), data=data, method={"name": "fedproto", "weighting": "size"}, progress=False)
    assert error.value.code == "method.needs_one_label"


def test_the_pool_gives_the_bits_of_serial_and_peft_loads_the_adapter(bert: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForTokenClassification

    data = from_tokens(WORDS, TAGS, clients=CLIENTS, tokenizer=bert)
    serial = fr.run(settings(bert), data=data, method="fedcad", out=tmp_path / "run", progress=False)
    pool = settings(bert) | {"engine": {"name": "pool", "workers": 2}}
    assert torch.equal(fr.run(pool, data=data, method="fedcad", progress=False).server.w, serial.server.w)
    folder = serial.save_adapter(tmp_path / "adapter")
    base = AutoModelForTokenClassification.from_pretrained(bert, num_labels=4)
    loaded = PeftModel.from_pretrained(base, folder).eval()
    inputs = {name: data.test_x[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = loaded(**inputs).logits[data.test_x["positions"]]
        assert torch.allclose(logits, serial.model()(**inputs, positions=data.test_x["positions"])[1], atol=1e-6)


@pytest.mark.parametrize(
    ("words", "labels", "code", "key"),
    [
        (["a rose"], [["A", "B"]], "data.invalid_text", "words"),
        ([["a", ""]], [["A", "B"]], "data.invalid_text", "words"),
        ([[]], [[]], "data.invalid_text", "words"),
        ([["a", "rose"]], [["A"]], "data.length_mismatch", "labels"),
        ([["a", "rose"]], [["A", "B"], ["A"]], "data.length_mismatch", "labels"),
        ([["a", "rose"]], [["A", None]], "data.invalid_labels", "labels"),
        ([["a", "rose"]], [["A", "A"]], "data.one_class", "labels"),
    ],
)
def test_invalid_words_and_labels(words: list[object], labels: list[object], code: str, key: str) -> None:
    with pytest.raises(UserError) as error:
        from_tokens(words * 4, labels * 4 if len(labels) == 1 else labels)
    assert (error.value.code, error.value.key) == (code, key)
    assert "\n" not in str(error.value)


def test_the_mean_over_tokens_is_refused(bert: Path) -> None:
    data = from_tokens(WORDS, TAGS, clients=CLIENTS, tokenizer=bert)
    config = settings(bert) | {"model": {"name": "huggingface", "path": str(bert), "pooling": "mean"}}
    with pytest.raises(UserError) as error:
        fr.run(config, data=data, progress=False)
    assert (error.value.code, error.value.key) == ("config.conflict", "model.pooling")
