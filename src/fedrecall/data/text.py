"""Texts as token ids: a tokenizer without a vocabulary, or any tokenizer of Hugging Face's `transformers`."""

import hashlib
import json
import re
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.cache import cached
from fedrecall.data.preprocessing import TextEncoding
from fedrecall.errors import UserError, first_line, missing_extra
from fedrecall.tensor_dict import Inputs, TensorDict

PAD_ID = 0  # token id of positions after the end of a text, of `WordTokenizer`

INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")  # outputs of a tokenizer that models take

MAX_TOKENS = 64  # default length at which texts are cut


class HubTokenizer(Protocol):
    """Tokenizer of `transformers`, as far as it is used here."""

    def __call__(self, text: list[str], **options: Any) -> Any:
        """Return token ids and masks by name."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class WordTokenizer:
    """Lower-case words and punctuation, hashed to token ids. It has no vocabulary, so all clients have the same ids.

    >>> WordTokenizer(1000).encode("A word, and a word")
    [172, 937, 72, 292, 172, 937]
    """

    size: int = 8192
    """Number of token ids. 0 is padding; the words have 1 to size - 1, and few of them share one."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        return [self.encode_word(word) for word in words]

    def encode_word(self, word: str) -> int:
        """Return the token id of one word."""
        return 1 + crc32(word.lower().encode()) % (self.size - 1)


Tokenizer = str | Path | WordTokenizer | HubTokenizer
"""A tokenizer, or the folder of one of `transformers`."""


def load_tokenizer(path: str | Path) -> HubTokenizer:
    """Load a tokenizer of `transformers` from a folder, or from the cache of the Hugging Face hub: no download."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise missing_extra("transformers", "text") from None
    try:
        tokenizer: HubTokenizer = AutoTokenizer.from_pretrained(str(Path(path).expanduser()), local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(
            "data.tokenizer_not_found",
            f"data.tokenizer = {path}: there is no tokenizer ({first_line(error)})",
            "data.tokenizer",
            "use a folder with tokenizer.json, such as that of the model",
        ) from None
    return tokenizer


def describe_encoding(tokenizer: Tokenizer | None, max_tokens: int, column: str | None = None) -> TextEncoding:
    """Return what inference needs to encode texts as in training."""
    if tokenizer is None or isinstance(tokenizer, WordTokenizer):
        return TextEncoding(max_tokens, size=(tokenizer or WordTokenizer()).size, column=column)
    is_path = isinstance(tokenizer, str | Path)
    return TextEncoding(
        max_tokens, str(tokenizer if is_path else getattr(tokenizer, "name_or_path", "")), column=column
    )


def encode_as_in_training(texts: list[Any], encoding: TextEncoding, name: str) -> Inputs:
    """Return the inputs of texts, by the encoding of the training data."""
    tokenizer = encoding.tokenizer or WordTokenizer(encoding.size)
    return encode_texts([texts], tokenizer, encoding.max_tokens, name)[0][0]


def encode_texts(
    parts: list[list[Any]], tokenizer: Tokenizer | None, max_tokens: int, name: str
) -> tuple[list[Inputs], int]:
    """Encode the texts of several splits with one length; returns them and the number of token ids.

    The result of a tokenizer of `transformers` is cached on disk.
    """
    tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer or WordTokenizer()
    for texts in parts:
        odd = next((i for i, text in enumerate(texts) if not isinstance(text, str) or not text.strip()), None)
        if odd is not None:
            what = "empty" if isinstance(texts[odd], str) else f"not text but {type(texts[odd]).__name__}"
            message = f'data "{name}": text {odd} is {what}'
            raise UserError("data.invalid_text", message, "texts", "fill or drop it")
    if max_tokens < 1:
        message = f'data "{name}": max_tokens = {max_tokens}: too few'
        raise UserError("config.invalid_value", message, "max_tokens", "use at least 1")
    ends, every = np.cumsum([len(texts) for texts in parts]), [text for texts in parts for text in texts]
    if isinstance(tokenizer, WordTokenizer):
        ids = _padded([tokenizer.encode(text)[:max_tokens] for text in every], PAD_ID)
        return [ids[end - len(texts) : end] for texts, end in zip(parts, ends.tolist(), strict=True)], tokenizer.size
    _require_padding(tokenizer, name)
    key = {"texts": _digest(every), "tokenizer": _fingerprint(tokenizer), "max_tokens": max_tokens}
    tensors, _ = cached("text", key, lambda: (_encode(every, tokenizer, max_tokens), {}))
    x = TensorDict({key: tensors[key] for key in INPUT_NAMES if key in tensors})
    return [x[end - len(texts) : end] for texts, end in zip(parts, ends.tolist(), strict=True)], len(tokenizer)


def encode_words(
    parts: list[list[list[str]]], tokenizer: Tokenizer | None, max_tokens: int
) -> tuple[list[TensorDict], list[Tensor], int]:
    """Encode the words of several splits with one length; returns also the word that each token begins, -1 for none.

    The number of token ids comes last. The result of a tokenizer of `transformers` is cached on disk.
    """
    tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer or WordTokenizer()
    if max_tokens < 1:
        raise UserError("config.invalid_value", f"max_tokens = {max_tokens}: too few", "max_tokens", "use at least 1")
    every = list(chain.from_iterable(parts))
    if isinstance(tokenizer, WordTokenizer):
        ids = _padded([[tokenizer.encode_word(word) for word in text[:max_tokens]] for text in every], PAD_ID)
        mask = (ids != PAD_ID).long()
        words = torch.where(ids != PAD_ID, torch.arange(ids.shape[1]), -1)
        tensors, vocabulary = {"input_ids": ids, "attention_mask": mask, "words": words}, tokenizer.size
    else:
        hub, vocabulary = tokenizer, len(tokenizer)
        _require_padding(hub, "tokens", needs_words=True)
        digest = hashlib.sha256(json.dumps(every).encode()).hexdigest()
        key = {"words": digest, "tokenizer": _fingerprint(hub), "max_tokens": max_tokens}
        tensors, _ = cached("words", key, lambda: (_encode_words(every, hub, max_tokens), {}))
    ends = list(accumulate(map(len, parts)))
    slices = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    x = TensorDict({name: tensors[name] for name in INPUT_NAMES if name in tensors})
    return [x[rows] for rows in slices], [tensors["words"][rows] for rows in slices], vocabulary


def _encode_words(texts: list[list[str]], tokenizer: HubTokenizer, max_tokens: int) -> dict[str, Tensor]:
    options: dict[str, Any] = {"truncation": True, "max_length": max_tokens, "padding": True, "return_tensors": "pt"}
    encoded = tokenizer(texts, is_split_into_words=True, **options)  # type: ignore[arg-type]
    numbers = [[-1 if word is None else word for word in encoded.word_ids(i)] for i in range(len(texts))]
    words = torch.tensor(numbers, dtype=torch.int64)
    is_first = torch.cat([torch.ones_like(words[:, :1], dtype=torch.bool), words[:, 1:] != words[:, :-1]], 1)
    return _model_inputs(encoded) | {"words": torch.where(is_first, words, -1)}


def _encode(texts: list[str], tokenizer: HubTokenizer, max_tokens: int) -> dict[str, Tensor]:
    return _model_inputs(tokenizer(texts, truncation=True, max_length=max_tokens, padding=True, return_tensors="pt"))


def _model_inputs(encoded: Any) -> dict[str, Tensor]:
    found = {key: encoded[key] for key in INPUT_NAMES if key in encoded}
    if "token_type_ids" in found and not found["token_type_ids"].any():
        del found["token_type_ids"]  # zeros are the default of the models
    return found


def _padded(rows: list[list[int]], value: int) -> Tensor:
    length = max((len(row) for row in rows), default=1)
    return torch.tensor([row + [value] * (length - len(row)) for row in rows], dtype=torch.int64).view(-1, length)


def _require_padding(tokenizer: Any, name: str, *, needs_words: bool = False) -> None:
    if needs_words and getattr(tokenizer, "pad_token", None) is not None and not tokenizer.is_fast:
        message = f'data "{name}": {type(tokenizer).__name__} does not tell which word a token belongs to'
        raise UserError("data.invalid_tokenizer", message, "tokenizer", "use a fast tokenizer (tokenizer.json)")
    if getattr(tokenizer, "pad_token", None) is None:
        raise UserError(
            "data.invalid_tokenizer",
            f'data "{name}": {type(tokenizer).__name__} is not a tokenizer of transformers, or has no padding token',
            "tokenizer",
            "set tokenizer.pad_token, such as to its eos_token",
        )


def _digest(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _fingerprint(tokenizer: Any) -> str:
    """Return a checksum of everything that the token ids depend on."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    for call in ("truncation", "padding"):  # of the last call
        rules.pop(call, None)
    about = [type(tokenizer).__name__, tokenizer.padding_side, tokenizer.truncation_side, tokenizer.pad_token]
    return hashlib.sha256(json.dumps([about, rules], sort_keys=True).encode()).hexdigest()
