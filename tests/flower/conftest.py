import random
from pathlib import Path

import pytest

from support.own_tables import TRAINING


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of three clients with a few skewed rows of a table each."""
    folder = tmp_path_factory.mktemp("config")
    rng = random.Random(0)
    rows = [(k, [rng.gauss(1.5 * (k == i), 1) for i in range(4)]) for k in range(3) for _ in range(40)]
    lines = [",".join([f"{x:.3f}" for x in xs] + ["abc"[k]]) for k, xs in rows]
    (folder / "data.csv").write_text("\n".join(["p,q,r,s,kind", *lines]) + "\n")
    (folder / "exp.toml").write_text(f"""
[data]
name = "table"
path = "{folder / "data.csv"}"
label = "kind"
aux_per_class = 4

[federation]
clients = 3
partition = {{ name = "dirichlet", alpha = 0.5, min_size = 5 }}
{TRAINING}""")
    return folder / "exp.toml"
