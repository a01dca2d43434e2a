"""What was run: the settings in words, the configuration of every row, the machine."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedrecall.config.tables import Value, dotted
from fedrecall.studies.results import Results, read_json
from fedrecall.studies.study import read

HASH = 12  # digits of a hash that are shown; all are in environment.json

MOST = 6  # different values that are listed; more are counted

ENVIRONMENT = {
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


def configurations(results: Results) -> dict[str, dict[str, Any]]:
    """The complete configuration of each row: that of its first finished run, or of the first that is to be made."""
    out = {}
    for row in results.study.rows:
        finished = results.outcomes(row)
        first = results.study.cell(row, next(iter(results.study.columns)), results.study.seeds[0])
        out[row] = read(finished[0].path / "config.toml") if finished else results.study.experiment(first).tables()
    return out


def settings(results: Results) -> dict[str, str]:
    """The settings that a reader asks for first; where runs differ, all their values."""
    paths = {outcome.path for outcome in results.outcomes()}
    found = [read(path / "config.toml") for path in sorted(paths)] or list(configurations(results).values())
    seen: dict[str, dict[str, None]] = {}
    for tables in found:
        for name, said in _described(dotted(tables)):
            seen.setdefault(name, {})[said] = None
    return {name: listed(values) for name, values in seen.items()}


def _described(c: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
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


def environment(results: Results) -> dict[str, str]:
    """Versions and machine, as the runs recorded them."""
    seen: dict[str, dict[str, None]] = {}
    for path in dict.fromkeys(outcome.path for outcome in results.outcomes()):
        file = path / "environment.json"
        for key, value in (read_json(file) if file.exists() else {}).items():
            if key == "config":  # told elsewhere
                continue
            said = str(value)[:HASH] if key in ("data", "partition") else str(value)
            seen.setdefault(key, {})[said] = None
    order = [key for key in ENVIRONMENT if key in seen]
    return {ENVIRONMENT.get(key, key): listed(seen[key]) for key in [*order, *(k for k in seen if k not in order)]}


def listed(values: Iterable[str]) -> str:
    """A few values one by one; many are counted.

    >>> listed(["a", "b"])
    'a; b'
    """
    values = list(values)
    more = f"; and {len(values) - MOST} more" if len(values) > MOST else ""
    return "; ".join(values[:MOST]) + more
