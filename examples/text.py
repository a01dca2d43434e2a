"""Train a text classifier on clients that have texts of few topics.

Run it with `python examples/text.py`. It takes a few seconds and needs no download. The texts are about two thousand
docstrings of Python's standard library, and the label is the package of a docstring. The script reads the source files
and does not import them. Another version of Python has slightly different texts.

Expected result: FedAvg is far less accurate than training on the pooled data. The two methods that distil from the
global model recover a part of the difference. docs/beyond-images.md has more seeds, a third method, and the choice of
these settings.
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
METHODS = ["fedavg", "fedlmd", "fedntd"]  # the first is the reference of the differences
SETTINGS = {
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 5, "batch": 16, "lr": 0.5, "momentum": 0.0},
    "run": {"local_accuracy": True},  # also evaluate the client models: the table then has a column "forgotten"
    "engine": {"name": "serial"},  # the model is so small that worker processes would cost more than they save
}


def docstrings(package: str) -> Iterator[str]:
    """Yield all docstrings of five words or more in a package or module of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted((root / package).rglob("*.py")) or [root / f"{package}.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text.split()) >= 5:
                    yield text


def read_texts() -> fr.Dataset:
    """Convert every text to a bag of words of 600 weights. A quarter of the texts is the test set."""
    pairs = [(text, package) for package in PACKAGES for text in docstrings(package)]
    texts, labels = zip(*pairs, strict=True)
    words = TfidfVectorizer(max_features=600, sublinear_tf=True, stop_words="english")
    return fr.from_arrays(words.fit_transform(texts), labels, test=0.25, name="docstrings")


def skewed(data: fr.Dataset, seeds: int, methods: list[str] = METHODS, rounds: int = 25) -> fr.Comparison:
    """Compare methods on twenty clients with two or three packages each; four clients train per round."""
    federation = {"clients": 20, "sample": 4, "alpha": 0.1, "rounds": rounds}
    return fr.compare(methods, data=data, seeds=seeds, config=SETTINGS, baselines=["majority"], **federation)


def pooled(data: fr.Dataset) -> float:
    """Return the accuracy of the same network, trained on the pooled data."""
    alone = {"federation": {"clients": 1, "partition": {"name": "iid"}}}
    return float(fr.run({**SETTINGS, **alone}, data=data, rounds=10).summary["last10"])


def main(seeds: int = 3, rounds: int = 25) -> None:
    """Print the comparison, and the accuracy of pooled training for reference."""
    data = read_texts()
    print(f"{len(data.train_y)} docstrings of {len(data.classes)} packages, {data.shape[0]} words\n")
    print(skewed(data, seeds, rounds=rounds))
    print(f"\nall texts pooled: {100 * pooled(data):.2f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))  # python examples/text.py 10: with ten seeds; 2 10: two seeds, ten rounds
