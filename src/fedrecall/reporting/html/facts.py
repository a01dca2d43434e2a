"""What was run: the settings in words, the configuration of every row, the machine."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedrecall.config.tables import Scalar, flatten, read_toml
from fedrecall.studies.results import StudyResults, read_json

HASH_DIGITS = 12  # digits of a hash that are shown; all are in environment.json

MAX_LISTED = 6  # different values that are listed; more are counted

ENVIRONMENT_LABELS = {
    "fedrecall": "fedrecall",
    "python": "Python",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "platform": "system",
    "cpu": "instructions",
    "cores": "cores",
    "parameters": "model parameters",
    "data": "data fingerprint",
    "partition": "partition hash",
}


def configurations(results: StudyResults) -> dict[str, dict[str, Any]]:
    """The complete configuration of each row: that of its first finished run, or of the first that is to be made."""
    out = {}
    for row in results.study.rows:
        finished = results.finished_runs(row)
        first = results.study.cell(row, next(iter(results.study.columns)), results.study.seeds[0])
        out[row] = (
            read_toml(finished[0].path / "config.toml") if finished else results.study.experiment(first).to_tables()
        )
    return out


def main_settings(results: StudyResults) -> dict[str, str]:
    """The settings that a reader asks for first; where runs differ, all their values."""
    paths = {outcome.path for outcome in results.finished_runs()}
    found = [read_toml(path / "config.toml") for path in sorted(paths)] or list(configurations(results).values())
    seen: dict[str, dict[str, None]] = {}
    for tables in found:
        for name, said in _setting_texts(flatten(tables)):
            seen.setdefault(name, {})[said] = None
    return {name: join_limited(values) for name, values in seen.items()}


def _setting_texts(c: Mapping[str, Scalar]) -> Iterator[tuple[str, str]]:
    yield "data", str(c.get("data.name"))
    yield "model", str(c.get("model.name", "chosen for the data"))
    clients = c.get("federation.clients")
    fraction = c.get("federation.fraction")
    share = f"{fraction:.3g} of them" if isinstance(fraction, float) else "all"
    yield "clients", f"{clients}, {c.get('federation.sample', share)} a round"
    law = "federation.partition."
    given = [f"{key.removeprefix(law)} {value}" for key, value in c.items() if key.startswith(law)]
    yield "partition", ", ".join(given[:2]).removeprefix("name ")  # the first setting says how skewed it is
    yield (
        "local training",
        f"{c.get('local.epochs')} epochs, batches of {c.get('local.batch')}, learning rate {c.get('local.lr')}",
    )
    yield "rounds", str(c.get("run.rounds"))


def environment_table(results: StudyResults) -> dict[str, str]:
    """Versions and machine, as the runs recorded them."""
    seen: dict[str, dict[str, None]] = {}
    for path in dict.fromkeys(outcome.path for outcome in results.finished_runs()):
        file = path / "environment.json"
        for key, value in (read_json(file) if file.exists() else {}).items():
            if key == "config":  # told elsewhere
                continue
            said = str(value)[:HASH_DIGITS] if key in ("data", "partition") else str(value)
            seen.setdefault(key, {})[said] = None
    order = [key for key in ENVIRONMENT_LABELS if key in seen]
    return {
        ENVIRONMENT_LABELS.get(key, key): join_limited(seen[key])
        for key in [*order, *(k for k in seen if k not in order)]
    }


def join_limited(values: Iterable[str]) -> str:
    """A few values one by one; many are counted.

    >>> join_limited(["a", "b"])
    'a; b'
    """
    values = list(values)
    more = f"; and {len(values) - MAX_LISTED} more" if len(values) > MAX_LISTED else ""
    return "; ".join(values[:MAX_LISTED]) + more
