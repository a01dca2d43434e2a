"""Overhead of a real federation: `python -m benchmarks.flower`. It needs the extra `flower`.

Three SuperNodes run on this machine, over TLS with registered keys. The overhead over `serial` is the transport and the
process that Flower starts for every message, which imports torch and reads its data.
"""

import json
import statistics
import tempfile
from pathlib import Path

import numpy as np

from fedrecall import run
from fedrecall.config.experiment import Experiment
from fedrecall.flower.app_template import write_app
from fedrecall.flower.processes import LocalDeployment

ROUNDS = 4
WIDTHS = {"0.25 MB": 250, "100 MB": 5000}  # width of each of the two hidden layers


def main() -> None:
    """Measure all widths and print the table."""
    print("model     serial [s]  flower [s]  overhead a round [s]  of 3 nodes, bytes up a node")
    for name, width in WIDTHS.items():
        with tempfile.TemporaryDirectory() as folder:
            plain, real, size = measured(Path(folder), width)
        print(f"{name:8}  {plain:10.2f}  {real:10.2f}  {real - plain:20.2f}  {size / 1e6:.2f} MB", flush=True)


def measured(folder: Path, width: int) -> tuple[float, float, int]:
    """Measure the median round on `serial` and on Flower, without the first round, and the bytes of a reply."""
    rng = np.random.default_rng(0)
    rows = [",".join([*(f"{x:.3f}" for x in rng.normal(size=4)), "abc"[i % 3]]) for i in range(120)]
    (folder / "data.csv").write_text("\n".join(["p,q,r,s,kind", *rows]))
    changes = ["data.name=table", f"data.path={folder / 'data.csv'}", "data.label=kind", "federation.clients=3"]
    changes += ["model.name=mlp", f"model.hidden=[{width}, {width}]", "local.epochs=1", f"run.rounds={ROUNDS}"]
    changes += ["federation.partition.name=iid"]
    plain = run(Experiment.load(None, [*changes, "engine.name=serial"])).rounds
    write_app(folder / "app", None, changes)
    with LocalDeployment(folder / "federation", 3) as daemons:
        for client in range(3):
            daemons.start_supernode(client)
        process = daemons.start_run(folder / "app", f'out="{folder / "run"}"')
        process.communicate(timeout=1200)
        lines = (folder / "run" / "rounds.jsonl").read_text().splitlines()
    real = [json.loads(line) for line in lines]
    middle = [statistics.median(r["seconds"] for r in rounds[1:]) for rounds in (plain, real)]
    return middle[0], middle[1], real[-1]["bytes_up"]


if __name__ == "__main__":
    main()
