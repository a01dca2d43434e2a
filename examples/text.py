"""A text classifier: clients that have seen few topics, and methods that keep the others in mind.

Run it with `python examples/text.py`; it takes some seconds and needs no download. The texts are about two thousand
docstrings of Python's own standard library, and the question is which package a docstring is from. They are read from
the source files, so that nothing is imported; another version of Python has somewhat other texts.

What to expect: FedAvg stays far below what the same network learns from all texts at once, and the two methods that
distil from the global model get a part of that back. docs/beyond-images.md has more seeds and a third method, and says
how these settings were chosen.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer

import fedrecall as fr

PACKAGES = ["asyncio", "email", "http", "importlib", "logging"]
PACKAGES += ["mailbox", "multiprocessing", "unittest", "urllib", "xml"]
METHODS = ["fedavg", "fedlmd", "fedntd"]  # the first is what the others are compared with
SETTINGS = {
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 5, "batch": 16, "lr": 0.5, "momentum": 0.0},
    "run": {"local_accuracy": True},  # score the clients' own models too: the table then has a column "forgetting"
}


def docstrings(package: str) -> Iterator[str]:
    """All docstrings of five words or more in a package or module of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted((root / package).rglob("*.py")) or [root / f"{package}.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text.split()) >= 5:
                    yield text


def read_texts() -> fr.Dataset:
    """A bag of words: every text as one vector of 600 weights. A quarter of the texts is kept for the test."""
    pairs = [(text, package) for package in PACKAGES for text in docstrings(package)]
    texts, labels = zip(*pairs, strict=True)
    words = TfidfVectorizer(max_features=600, sublinear_tf=True, stop_words="english")
    return fr.from_arrays(words.fit_transform(texts), labels, test=0.25, name="docstrings")


def skewed(data: fr.Dataset, seeds: int, methods: list[str] = METHODS) -> fr.Comparison:
    """Twenty clients with two or three packages each, four of which train at a time."""
    return fr.compare(methods, data=data, clients=20, sample=4, alpha=0.1, rounds=25, seeds=seeds, config=SETTINGS)


def pooled(data: fr.Dataset) -> float:
    """What the same network reaches with all texts in one place: what a federation is measured by."""
    alone = {"federation": {"clients": 1, "partition": {"name": "iid"}}}
    return float(fr.run({**SETTINGS, **alone}, data=data, rounds=10).summary["last10"])


def main(seeds: int = 3) -> None:
    """Print the comparison, and what it is measured by."""
    data = read_texts()
    print(f"{len(data.train_y)} docstrings of {len(data.classes)} packages, {data.shape[0]} words\n")
    print(skewed(data, seeds))
    print(f"\nall texts in one place: {100 * pooled(data):.2f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))  # python examples/text.py 10: with ten seeds
