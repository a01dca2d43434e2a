"""Methods side by side: the same federation, cohorts and first weights for all of them."""

import re
from collections.abc import Sequence
from pathlib import Path

from fedrecall.errors import UserError, unknown
from fedrecall.experiment.config import Experiment, override, override_all
from fedrecall.experiment.results import Results, load
from fedrecall.experiment.study import Study, Tables, Target, merged, read
from fedrecall.experiment.sweep import Watch, sweep
from fedrecall.methods import METHODS

USUAL = ("fedavg", "fedprox", "fedntd", "fedlmd", "fedcad", "fedgkd")
SEEDS = 5
# Forgetting at work in a minute or two: each of 40 clients has two digits, and three of them train at a time.
DIGITS: Tables = {
    "data": {"name": "digits"},
    "federation": {"clients": 40, "sample": 3, "partition": {"name": "shards", "s": 2}},
    "local": {"epochs": 10, "batch": 16, "lr": 0.05},
    "run": {"rounds": 60, "local_accuracy": True, "checkpoint_every": 20},
}


def compare(
    methods: Sequence[str] = (),
    config: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    seeds: int = SEEDS,
    out: str | Path,
    watch: Watch | None = None,
) -> Results:
    """Run several methods with several seeds, each in its own run directory in `out`, or go on with that."""
    study = comparison_study(methods, config, overrides, seeds)
    refused = sweep(study, Path(out), watch or Watch())
    if refused:
        raise UserError(next(iter(refused)))
    return load(Path(out))


def comparison_study(
    methods: Sequence[str] = (), config: str | Path | None = None, overrides: Sequence[str] = (), seeds: int = SEEDS
) -> Study:
    """The study of some methods, given as `name` or `name:key=value,...`, with one configuration.

    The first method is what the others are compared with.
    """
    if seeds < 1:
        raise UserError(f"seeds = {seeds}: there must be at least one")
    if any(text.replace(" ", "").startswith(("method.name=", "method=")) for text in overrides):
        raise UserError("the methods to compare are arguments: leave --set method.name away")
    base = with_overrides(DIGITS if config is None else read(Path(config)), overrides)
    rows = {name: _row(name) for name in (re.sub(r"\s*([:=,])\s*", r"\1", text) for text in methods or USUAL)}
    if len(rows) < len(methods):
        raise UserError(f"a method is given twice: {' '.join(methods)}")
    experiment = Experiment(**base)
    data, first = experiment.data.name, next(iter(rows))
    study = Study(
        id=f"compare-{data}",
        title=f"Methods compared on {data}",
        base=base,
        rows=rows,
        columns={data: {}},
        seeds=tuple(range(experiment.run.seed, experiment.run.seed + seeds)),
        measure="last10",
        target=experiment.run.targets[0] if experiment.run.targets else Target(of=first, measure="best"),
    )
    for cell in study.cells():
        study.experiment(cell)
    return study


def with_overrides(tables: Tables, overrides: Sequence[str]) -> Tables:
    """Tables with "key=value" texts on top."""
    out = merged(tables)
    override_all(out, overrides)
    return out


def _row(given: str) -> Tables:
    """What `fedlmd:tau=3,local.prox=0.1` means: keys without a section are the method's."""
    name, _, settings = given.partition(":")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    tables: Tables = {"method": {"name": name}}
    for text in re.split(r",(?=[\w.]+\s*=)", settings) if settings else ():
        override(tables, text if "." in text.partition("=")[0] else f"method.{text}")
    return tables
