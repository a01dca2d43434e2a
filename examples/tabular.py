"""Train on a table with a client column: records of patients that may not leave their clinics.

Run it with `python examples/tabular.py`. It takes a few seconds and needs no download. The table is scikit-learn's
diabetes data: ten measurements of 442 patients. The label is the progression of the disease after a year, in thirds.

Expected result: with the clinics as clients, FedAvg is about as accurate as training on the pooled data. With skewed
labels FedAvg is worse, and distillation does not help. docs/beyond-images.md has more seeds, a third method, and the
choice of these settings.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from sklearn.datasets import load_diabetes

import fedrecall as fr

METHODS = ["fedavg", "fedlmd", "fedcad"]  # the first is the reference of the differences
# A small network and many small local steps: the weights of the clients diverge.
SETTINGS = {
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 5, "batch": 16, "lr": 0.1, "momentum": 0.0},
    "engine": {"name": "serial"},  # the model is so small that worker processes would cost more than they save
}


def write_table(path: Path) -> None:
    """Write one line per patient. The table needs a label column and a client column."""
    patients = load_diabetes(as_frame=True, scaled=False).frame
    progression = pd.qcut(patients.pop("target"), 3, labels=["slow", "medium", "fast"])
    # Clinics have different patients: here each of the eight has one range of the body mass index.
    clinic = pd.qcut(patients["bmi"], 8, labels=[f"clinic {i}" for i in range(1, 9)])
    patients.assign(clinic=clinic, progression=progression).to_csv(path, index=False)


def read_table(path: Path) -> fr.Dataset:
    """Read the table: standardise numbers, one-hot encode strings, and hold out 30 % of the patients for the test."""
    return fr.from_table(path, label="progression", client="clinic", test=0.3)


def natural(data: fr.Dataset, seeds: int, methods: list[str] = METHODS, rounds: int = 20) -> fr.Comparison:
    """Compare methods with the clients that the table names. They are found without further settings."""
    return fr.compare(methods, data=data, sample=3, rounds=rounds, seeds=seeds, config=SETTINGS, baselines=["majority"])


def skewed(data: fr.Dataset, seeds: int, methods: list[str] = METHODS, rounds: int = 20) -> fr.Comparison:
    """Compare methods on ten clients with skewed labels: most have mainly one kind of progression."""
    partition = {"name": "dirichlet", "alpha": 0.1, "min_size": 5}
    federation = {"partition": partition, "clients": 10, "sample": 3, "rounds": rounds}
    return fr.compare(methods, data=data, seeds=seeds, config=SETTINGS, baselines=["majority"], **federation)


def pooled(data: fr.Dataset) -> float:
    """Return the accuracy of the same network, trained on the pooled data."""
    alone = {"federation": {"clients": 1, "partition": {"name": "iid"}}, "local": {**SETTINGS["local"], "epochs": 1}}
    return float(fr.run({**SETTINGS, **alone}, data=data, rounds=20).summary["last10"])


def main(seeds: int = 3, rounds: int = 20) -> None:
    """Print both comparisons, and the accuracy of pooled training for reference."""
    with TemporaryDirectory() as folder:
        write_table(Path(folder) / "patients.csv")
        data = read_table(Path(folder) / "patients.csv")
    print(f"{len(data.train_y)} patients of {len(data.group_names)} clinics, {data.shape[0]} features\n")
    print("The clinics are the clients\n===========================")
    print(natural(data, seeds, rounds=rounds))
    print("\nTen clients with skewed labels\n==============================")
    print(skewed(data, seeds, rounds=rounds))
    print(f"\nall patients pooled: {100 * pooled(data):.2f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))  # python examples/tabular.py 10: with ten seeds; 2 10: two seeds, ten rounds
