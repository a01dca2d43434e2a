"""A table with a client column: patients whose records may not leave their clinics.

Run it with `python examples/tabular.py`; it takes some seconds and needs no download. The table is scikit-learn's
diabetes data: ten measurements of 442 patients, and how far their disease had gone a year later, here in thirds.

What to expect: with the clinics as clients FedAvg is about as good as one place that has all patients. With skewed
labels it is worse, and distillation does not help. docs/beyond-images.md has more seeds and a third method, and says
how these settings were chosen.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from sklearn.datasets import load_diabetes

import fedrecall as fr

METHODS = ["fedavg", "fedlmd", "fedcad"]  # the first is what the others are compared with
# A small network that takes many small steps on every client: that is when clients drift apart.
SETTINGS = {
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 5, "batch": 16, "lr": 0.1, "momentum": 0.0},
}


def write_table(path: Path) -> None:
    """One line a patient. Yours would come from a database; all that matters is the label and the client column."""
    patients = load_diabetes(as_frame=True, scaled=False).frame
    progression = pd.qcut(patients.pop("target"), 3, labels=["slow", "medium", "fast"])
    # Clinics see different patients. Here each of the eight has those of one band of the body mass index.
    clinic = pd.qcut(patients["bmi"], 8, labels=[f"clinic {i}" for i in range(1, 9)])
    patients.assign(clinic=clinic, progression=progression).to_csv(path, index=False)


def read_table(path: Path) -> fr.Dataset:
    """Numbers are standardised, words become columns of 0 and 1, and 30 % of the patients are kept for the test."""
    return fr.from_table(path, label="progression", client="clinic", test=0.3)


def natural(data: fr.Dataset, seeds: int, methods: list[str] = METHODS) -> fr.Comparison:
    """The clients are those that the table names: nothing else is to be said."""
    return fr.compare(methods, data=data, sample=3, rounds=20, seeds=seeds, config=SETTINGS)


def skewed(data: fr.Dataset, seeds: int, methods: list[str] = METHODS) -> fr.Comparison:
    """The same patients dealt out to ten clients, most of which see little but one kind of progression."""
    partition = {"name": "dirichlet", "alpha": 0.1, "min_size": 5}
    return fr.compare(
        methods, data=data, partition=partition, clients=10, sample=3, rounds=20, seeds=seeds, config=SETTINGS
    )


def pooled(data: fr.Dataset) -> float:
    """What the same network reaches with all patients in one place: what a federation is measured by."""
    alone = {"federation": {"clients": 1, "partition": {"name": "iid"}}, "local": {**SETTINGS["local"], "epochs": 1}}
    return float(fr.run({**SETTINGS, **alone}, data=data, rounds=20).summary["last10"])


def main(seeds: int = 3) -> None:
    """Print both comparisons, and what they are measured by."""
    with TemporaryDirectory() as folder:
        write_table(Path(folder) / "patients.csv")
        data = read_table(Path(folder) / "patients.csv")
    print(f"{len(data.train_y)} patients of {len(data.group_names)} clinics, {data.shape[0]} features\n")
    print("The clinics are the clients\n===========================")
    print(natural(data, seeds))
    print("\nTen clients with skewed labels\n==============================")
    print(skewed(data, seeds))
    print(f"\nall patients in one place: {100 * pooled(data):.2f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))  # python examples/tabular.py 10: with ten seeds
