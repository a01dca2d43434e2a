"""Privacy of a run: the check before it starts, and the ledger of its releases."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrecall.core.dry_run import DryRun
from fedrecall.core.exchange import ReplyPolicy
from fedrecall.core.privacy import GaussianMechanism, PrivacyLedger, PrivateAggregation, epsilon_after
from fedrecall.core.rounds import RoundSchedule, run_rounds
from fedrecall.errors import UserError
from fedrecall.files import parse_json
from fedrecall.runs.directory import ENVIRONMENT_FILE, RunDirectory
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.setup import Setup

LEDGER_FILE = "privacy.jsonl"  # in the run directory: one line for each release

log = logging.getLogger(__name__)


def check_privacy(setup: Setup) -> None:
    """Reject a method that server.privacy does not cover, by a dry run of one round before anything else runs."""
    privacy = setup.experiment.server.privacy
    if privacy is None:
        return
    stated = setup.experiment.data.column_encodings or {}
    fitted = any(column != stated.get(column.name) for column in setup.data.dataset.columns)
    if fitted or setup.data.dataset.scaling is not None:
        raise UserError(
            "privacy.not_covered",
            f'data "{setup.data.dataset.name}": the inputs are scaled or encoded by statistics of all clients\' rows, '
            "so one client changes the inputs of the others, which server.privacy does not cover",
            "server.privacy",
            "state the mean and std or the categories of every column in data.columns, or pass scaled arrays",
        )
    method, server = setup.clients.method, setup.server
    epsilon_after(privacy, setup.schedule.population, setup.schedule.sample, 1)
    policy = ReplyPolicy(rules=(PrivateAggregation(privacy, setup.clients.seed, population=1),))
    schedule = RoundSchedule(rounds=1, population=1, sample=1, seed=0)
    next(run_rounds(method, server, DryRun(setup.clients, server.f, setup.data.sample), schedule, policy))


def open_ledger(setup: Setup, directory: RunDirectory | None, records: Sequence[RoundRecord]) -> PrivacyLedger:
    """Return the ledger of a run whose rounds so far have these records.

    Epsilon is infinite if a round was run without server.privacy, or if the run starts from weights that were trained
    on the same data without it.
    """
    path = None if directory is None else directory.path / LEDGER_FILE
    ledger = PrivacyLedger() if path is None else PrivacyLedger.load(path)
    privacy, start = setup.experiment.server.privacy, setup.experiment.run.start
    if privacy is None:
        if ledger.releases:
            ledger.declare_unbounded("rounds after private ones are run without server.privacy")
    else:
        ledger.attempt = 0 if directory is None else directory.num_forced_resumes
        released = {release.t + 1 for release in ledger.releases}
        if any("epsilon" not in record or record["round"] not in released for record in records):
            ledger.declare_unbounded("earlier rounds were run without server.privacy")
        if start is not None:
            _inherit(ledger, start, setup, privacy)
    if ledger.unbounded is not None:
        log.warning("%s: epsilon is infinite", ledger.unbounded)
    return ledger


def privacy_summary(setup: Setup, ledger: PrivacyLedger) -> dict[str, Any]:
    """Return epsilon and delta of a run for its summary, or why there is no bound; empty for a run without privacy."""
    privacy = setup.experiment.server.privacy
    if ledger.unbounded is not None:
        return {"privacy": {"epsilon": None, "unbounded": ledger.unbounded}}
    if privacy is None:
        return {}
    return {"privacy": {"epsilon": ledger.epsilon(privacy.delta), "delta": privacy.delta}}


def _inherit(ledger: PrivacyLedger, start: Path, setup: Setup, privacy: GaussianMechanism) -> None:
    """Add the releases that the initial weights depend on, unless an earlier start of this run has added them.

    Weights without a run directory, and those of a run on other data, count as independent of the clients' data.
    """
    folder = start if start.is_dir() else start.parent
    try:
        environment = parse_json((folder / ENVIRONMENT_FILE).read_text())
    except (OSError, ValueError):
        return
    if not isinstance(environment, dict) or environment.get("data") != setup.data.dataset.fingerprint:
        return
    before = PrivacyLedger.load(folder / LEDGER_FILE)
    seed = setup.clients.seed if privacy.source == "seed" else None
    if before.unbounded is not None or not before.releases:
        ledger.declare_unbounded(f"run.start = {start}: trained on the same data without server.privacy")
    elif seed is not None and seed in {release.seed for release in before.releases}:
        ledger.declare_unbounded(f"run.start = {start}: a run on the same data with the same noise (run.seed = {seed})")
    else:
        inherited = Counter(replace(release, attempt=-1 - abs(release.attempt)) for release in before.releases)
        for release in (inherited - Counter(ledger.releases)).elements():
            ledger.add(release)
