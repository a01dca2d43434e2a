"""A transformer of a few hundred weights with its tokenizer, made on the spot, and texts that it can learn."""

from pathlib import Path

import numpy as np
import torch

WORDS = ["the", "a", "red", "blue", "green", "rose", "sky", "leaf", "grows", "shines", "falls", "old", "new"]
TOPICS = {"flower": ["red", "rose", "grows"], "sky": ["blue", "sky", "shines"], "tree": ["green", "leaf", "falls"]}


def save_transformer(folder: Path, *, kind: str = "bert", seed: int = 0, pooler: bool = True) -> Path:
    """Write a transformer with random weights, and a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    ids = {word: i for i, word in enumerate([*special, *WORDS])}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=core, **named).save_pretrained(folder)
    size = {"vocab_size": len(ids), "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "bert":
            layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
            config = BertConfig(hidden_size=16, intermediate_size=24, **layers, **size)
            model = BertModel(config, add_pooling_layer=pooler)
        else:
            model = GPT2Model(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=32, **size))
        model.save_pretrained(folder)
    return folder


def make_texts(n: int = 60, seed: int = 0) -> tuple[list[str], list[str], list[str]]:
    """Make texts of 3 to 8 words with the words of a topic, their topics, and clients that have few topics."""
    rng = np.random.default_rng(seed)
    texts, labels, clients = [], [], []
    for i in range(n):
        topic = list(TOPICS)[i % 3]
        words = [
            rng.choice(TOPICS[topic]) if rng.random() < 0.6 else rng.choice(WORDS) for _ in range(rng.integers(3, 9))
        ]
        texts.append(" ".join(words))
        labels.append(topic)
        clients.append(f"site {i % 3 if rng.random() < 0.7 else (i + 1) % 3}")
    return texts, labels, clients
