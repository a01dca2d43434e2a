"""Three nodes with tables of their own: columns in another order, a missing value, and the same rows in one table."""

import csv
import random
from pathlib import Path

COLUMNS = ["age", "pressure", "smoker", "weight", "outcome"]

TRAINING = """
[local]
epochs = 2
batch = 8

[engine]
name = "serial"

[run]
rounds = 3
"""

CONFIG = f"""
[data]
name = "table"
label = "outcome"
missing = "mean"
client_test = 0.25

[federation]
clients = 3
{TRAINING}metrics = ["log_loss", "confusion"]
"""


def make_rows(client: int, n: int) -> list[dict[str, object]]:
    """Return the rows of one site: other outcomes are frequent, and numbers have another mean on each of them."""
    rng = random.Random(client)
    shares = [(6, 3, 1), (1, 6, 3), (3, 1, 6)][client]
    rows: list[dict[str, object]] = []
    for _ in range(n):
        outcome = rng.choices(["ill", "unclear", "well"], shares)[0]
        shift = ["ill", "unclear", "well"].index(outcome)
        rows.append(
            {
                "age": rng.randint(20, 90) + 5 * client,
                "pressure": round(rng.gauss(120 + 12 * shift, 9), 2),
                "smoker": rng.choice([["no", "yes"], ["no", "yes", "former"], ["no"]][client]),
                "weight": round(rng.gauss(70 + 9 * shift, 8) * (1 + client), 3),
                "outcome": outcome,
            }
        )
    return rows


def write_table(path: Path, rows: list[dict[str, object]], columns: list[str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_federation(folder: Path) -> tuple[Path, list[Path]]:
    """Write the configuration of a coordinator without data, and the tables of three nodes.

    The columns of client 1 are reversed, and client 2 lacks a value. The configuration of a simulation has the rows of
    all clients in one table, pooled.csv, with the client of each row.
    """
    sites = [make_rows(client, 40 + 10 * client) for client in range(3)]
    sites[2][7]["weight"] = ""
    orders = [COLUMNS, COLUMNS[::-1], COLUMNS]
    tables = [write_table(folder / f"site-{k}.csv", sites[k], orders[k]) for k in range(3)]
    pooled = [{**row, "site": f"site-{k}"} for k, rows in enumerate(sites) for row in rows]
    write_table(folder / "pooled.csv", pooled, [*COLUMNS, "site"])
    (folder / "federation.toml").write_text(CONFIG)
    keys = f'path = "{folder / "pooled.csv"}"\nclient = "site"\ntest = 0.0\naux_per_class = 0\n'
    simulated = CONFIG.replace("[data]\n", f"[data]\n{keys}")
    (folder / "simulation.toml").write_text(simulated)
    return folder / "federation.toml", tables
