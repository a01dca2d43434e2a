"""Sequence labelling: texts as lists of words with a label for each word, such as parts of speech or named entities."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fedrecall.data.custom import make_dataset
from fedrecall.data.dataset import Dataset, encode_labels
from fedrecall.data.inputs import RawExamples
from fedrecall.data.text import MAX_TOKENS, Tokenizer, encode_words
from fedrecall.data.token_labels import NO_LABEL, label_per_example
from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError
from fedrecall.tensor_dict import POSITIONS, TensorDict

Words = Sequence[Sequence[str]]
Tags = Sequence[Sequence[Any]]


def from_tokens(
    words: Words,
    labels: Tags,
    *,
    tokenizer: Tokenizer | None = None,
    clients: Sequence[Any] | None = None,
    groups: Sequence[Any] | None = None,
    test: float | tuple[Words, Tags] = 0.2,
    max_tokens: int = MAX_TOKENS,
    classes: Sequence[str] | None = None,
    name: str = "tokens",
    seed: int = 0,
) -> Dataset:
    """Build a data set of texts in which every word has a label.

    `words` are lists of words, `labels` lists of as many labels. A word that the tokenizer divides has its label at its
    first token; the other tokens, special ones and padding have none, and take part neither in the loss nor in the
    accuracy. The model receives `input_ids` and `attention_mask`, and returns logits for every token; "huggingface" and
    your own modules do. Clients are weighted by texts. For partitions and splits a text counts by its rarest label. The
    other arguments are those of `from_text`.

    >>> data = from_tokens([["a", "red", "rose"], ["blue", "skies"]] * 10, [["D", "A", "N"], ["A", "N"]] * 10)
    >>> data.classes, data.train_y[0].tolist()
    (('A', 'D', 'N'), [1, 0, 2])
    """
    given = [(words, labels), *([test] if isinstance(test, tuple) else [])]
    for texts, tags in given:
        _check(texts, tags, name)
    inputs, places, vocabulary = encode_words([[list(t) for t in texts] for texts, _ in given], tokenizer, max_tokens)
    flat = [list(chain.from_iterable(tags)) for _, tags in given]
    numbers, names = encode_labels(flat, None if classes is None else tuple(classes), "labels", name)
    y = [_at_positions(n, tags, place) for n, (_, tags), place in zip(numbers, given, places, strict=True)]
    x = [TensorDict({**x.tensors, POSITIONS: own != NO_LABEL}) for x, own in zip(inputs, y, strict=True)]
    # the rows of a split are found by one label a text, and then taken from the labels of tokens
    rows = TensorDict({**x[0].tensors, "labels": y[0]})
    held_out: float | RawExamples = 0.0
    if isinstance(test, tuple):
        held_out = RawExamples(TensorDict({**x[1].tensors, "labels": y[1]}), label_per_example(y[1]).tolist())
    else:
        held_out = test
    data = make_dataset(
        name, RawExamples(rows, label_per_example(y[0]).tolist(), clients, groups), held_out, names, seed
    )
    data = _with_labels_of_tokens(data)
    if not isinstance(test, tuple):
        options: dict[str, Any] = {"tokenizer": tokenizer, "clients": clients, "groups": groups, "classes": classes}
        again = partial(from_tokens, words, labels, test=test, max_tokens=max_tokens, name=name, seed=seed, **options)
        data = replace(data, split_again=again)
    return replace(data, vocabulary=vocabulary, test_transform=Transform(trim=True))


def _check(texts: Sequence[Any], labels: Sequence[Any], name: str) -> None:
    if len(texts) != len(labels):
        message = f'data "{name}": {len(texts)} texts but {len(labels)} lists of labels'
        raise UserError("data.length_mismatch", message, "labels", "pass one list of labels for each text")
    for i, (text, tags) in enumerate(zip(texts, labels, strict=True)):
        if isinstance(text, str) or not len(text) or not all(isinstance(word, str) and word.strip() for word in text):
            message = f'data "{name}": text {i} is not a list of words that are not empty'
            raise UserError("data.invalid_text", message, "words", "pass lists of words; fill or drop empty ones")
        if isinstance(tags, str) or len(text) != len(tags):
            message = f'data "{name}": text {i} has {len(text)} words and {len(tags)} labels'
            raise UserError("data.length_mismatch", message, "labels", "pass one label for each word")


def _at_positions(numbers: Tensor, labels: Tags, places: Tensor) -> Tensor:
    """Return the labels [N, L] of words at the tokens that `places` maps to words of their text, -1 for none."""
    starts = torch.tensor([0, *map(len, labels)]).cumsum(0)[:-1]
    return torch.where(
        places < 0, NO_LABEL, numbers[(starts[:, None] + places.clamp(min=0)).clamp(max=len(numbers) - 1)]
    )


def _with_labels_of_tokens(data: Dataset) -> Dataset:
    """Return the data with the labels of tokens, which are an input there, as its labels."""
    parts: dict[str, Any] = {}
    for part, x in (("train", data.train_x), ("test", data.test_x)):
        assert isinstance(x, TensorDict)
        parts[f"{part}_x"] = TensorDict({name: t for name, t in x.tensors.items() if name != "labels"})
        parts[f"{part}_y"] = x["labels"]
    return replace(data, **parts, test_groups=None)  # groups of texts, and predictions are of tokens
