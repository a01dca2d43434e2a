"""Fine-tune a transformer with adapters (LoRA) on texts that stay with their clients.

Run it with `python examples/transformer.py`. It takes less than a minute and needs no download, but the extra `text`:
`pip install ".[text]"`. The transformer is a tiny one with random weights that the script writes into a folder, with
its tokenizer. Replace the folder by that of any pretrained model, and the texts by your own.

Only the adapters and the classifier are trained, sent and stored; the base is one copy in the memory of the machine.
"""

import csv
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from peft import PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils import logging

import fedrecall as fr

TOPICS = {
    "garden": ["rose", "leaf", "seed", "soil", "rain"],
    "kitchen": ["salt", "oven", "bread", "knife", "soup"],
    "harbour": ["ship", "rope", "crane", "tide", "gull"],
}
OTHERS = ["the", "a", "old", "new", "small", "is", "was", "near", "under", "and"]


def write_base(folder: Path) -> None:
    """Write a small BERT with random weights, and a tokenizer that knows the words above."""
    words = ["[PAD]", "[UNK]", *OTHERS, *(word for topic in TOPICS.values() for word in topic)]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=len(words), pad_token_id=0, initializer_range=0.1, **size, **dropout)
    BertModel(config).save_pretrained(folder)


def make_texts(n: int = 300) -> tuple[list[str], list[str]]:
    """Make short texts, in which about three of five words belong to their topic."""
    rng, texts, labels = np.random.default_rng(0), [], []
    for i in range(n):
        topic = list(TOPICS)[i % len(TOPICS)]
        vocabulary = [TOPICS[topic] if rng.random() < 0.6 else OTHERS for _ in range(rng.integers(4, 12))]
        texts.append(" ".join(rng.choice(words) for words in vocabulary))
        labels.append(topic)
    return texts, labels


def main(folder: str | None = None) -> None:
    """Compare two methods with adapters, then train one and use its adapter without fedrecall."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with TemporaryDirectory() as name:
        base, adapter = Path(folder or name, "base"), Path(name, "adapter")
        write_base(base)
        texts, labels = make_texts()
        with Path(folder or name, "notes.csv").open("w", newline="") as f:
            csv.writer(f).writerows([("note", "topic"), *zip(texts, labels, strict=True)])
        data = fr.from_text(texts, labels, tokenizer=base, max_tokens=16)

        lora = {"r": 4, "alpha": 8, "targets": ["query", "value"]}
        settings = {
            "model": {"name": "huggingface", "path": str(base), "lora": lora},
            "local": {"optimiser": "adamw", "lr": 0.01, "epochs": 2, "batch": 16},
            "engine": {"name": "serial"},  # the base is so small that worker processes would cost more than they save
        }
        federation = {"data": data, "clients": 4, "alpha": 0.5, "rounds": 3}
        comparison = fr.compare(["fedavg", "fedlmd"], config=settings, seeds=2, baselines=["majority"], **federation)
        print(comparison)

        result = fr.run(settings, method="fedlmd", **federation)
        print(f"\n{result}\n{len(result.server.w)} weights are trained and sent")

        result.save_adapter(adapter)  # in the format of PEFT
        module = AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(TOPICS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PEFT's call of transformers
            module = PeftModel.from_pretrained(module, adapter).eval()
        inputs = {name: data.test_x[name][:4] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            same = torch.equal(module(**inputs).logits, result.model()(**inputs)[1])
        print(f"in PEFT the logits are {'the same' if same else 'different'}")


if __name__ == "__main__":
    main(*sys.argv[1:])  # python examples/transformer.py FOLDER: keeps the base and the texts there
