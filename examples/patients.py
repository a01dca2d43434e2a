"""From a table of patients to a model in use: CSV, comparison, report, chosen model, predictions for new patients.

Run it with `python examples/patients.py [FOLDER]`. It takes half a minute and needs no download: the table is made on
the spot, from a fixed seed. 2,000 patients of five hospitals have twelve numbers and three categories, of which some
values are missing, and an outcome that is 75 % discharged, 20 % readmitted and 5 % died. Hospitals differ in their
patients, and may not pool them.

Expected result: all methods are ten points above the most frequent outcome, within two points of each other, and no
worse than training on the pooled table or in each hospital alone: there is nothing to win by another method, and the
table says so. The accuracy hides the rare outcome; the macro-averaged F1 and the recall by class in the report do not.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import fedrecall as fr

OUTCOMES = ["died", "discharged", "readmitted"]
HOSPITALS = ["Aspen", "Birch", "Cedar", "Elm", "Fir"]
NUMBERS = 12
SEED = 7

CONFIG = {
    "data": {"name": "table", "label": "outcome", "client": "hospital", "drop": ["patient_id"], "missing": "category"},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 2, "batch": 64, "lr": 0.1},
    "run": {"rounds": 12, "metrics": ["macro_f1"], "probes": ["forgotten", "confusion"]},
    "engine": {"name": "serial"},  # the model is so small that worker processes would cost more than they save
}


def make_patients(n: int, seed: int) -> pd.DataFrame:
    """Return a table of patients. Each hospital has its own mix of outcomes and its own calibration of devices."""
    rng = np.random.default_rng(seed)
    shape = np.random.default_rng(SEED)  # the same relation of features and outcomes in every table
    hospital = rng.choice(len(HOSPITALS), n, p=[0.3, 0.25, 0.2, 0.15, 0.1])
    mix = np.array([[5, 75, 20], [2, 88, 10], [3, 62, 35], [14, 71, 15], [4, 66, 30]]) / 100
    outcome = np.array([rng.choice(3, p=mix[h]) for h in hospital])
    centres, shift = shape.normal(0, 0.55, (3, NUMBERS)), shape.normal(0, 0.4, (len(HOSPITALS), NUMBERS))
    numbers = centres[outcome] + shift[hospital] + rng.normal(0, 1, (n, NUMBERS))
    table = pd.DataFrame(np.round(60 + 12 * numbers, 1), columns=[f"lab_{i + 1}" for i in range(NUMBERS)])
    table["sex"] = rng.choice(["female", "male"], n)
    table["admission"] = np.where(rng.random(n) < 0.3 + 0.2 * (outcome != 1), "emergency", "planned")
    table["smoker"] = rng.choice(["never", "former", "current"], n, p=[0.5, 0.3, 0.2])
    for column in ("lab_3", "lab_8", "smoker"):
        table.loc[rng.random(n) < 0.08, column] = None
    table.insert(0, "patient_id", [f"P{seed}-{i:05d}" for i in range(n)])
    return table.assign(hospital=np.array(HOSPITALS)[hospital], outcome=np.array(OUTCOMES)[outcome])


def main(folder: Path) -> None:
    """Go all the way; every file is in the folder."""
    make_patients(2000, SEED).to_csv(folder / "patients.csv", index=False)
    make_patients(200, SEED + 1).drop(columns=["outcome", "hospital"]).to_csv(folder / "new.csv", index=False)

    config = {**CONFIG, "data": {**CONFIG["data"], "path": str(folder / "patients.csv")}}
    comparison = fr.compare(
        ["fedavg", "fedprox", "fedlmd"],
        config=config,
        seeds=3,
        baselines=["central", "local", "majority"],
        out=folder / "study",
        progress=False,
    )
    print(comparison)

    page = comparison.report(folder / "report.html")
    print(f"\nreport: {page.name}, {page.stat().st_size // 1000} kB")

    chosen = max(comparison.methods, key=lambda name: comparison.to_dict()[name]["last 10"]["mean"])
    run = fr.load(next(run.path for run in comparison.runs if run.cell.row == chosen))
    print(f"chosen model: {chosen}, macro-averaged F1 {run.runs[0].summary['metrics']['macro_f1']['final']:.2f}")

    predictions = run.predict(folder / "new.csv")
    predictions.to_csv(folder / "predictions.csv", index=False)
    print(f"predictions for {len(predictions)} new patients:", predictions["prediction"].value_counts().to_dict())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as temporary:
            main(Path(temporary))
