"""Privacy of a run: the check before it starts, and the ledger of its releases."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedrecall.core.dry_run import DryRun
from fedrecall.core.exchange import ReplyPolicy
from fedrecall.core.privacy import GaussianMechanism, PrivacyLedger, PrivateAggregation, Release, epsilon_after
from fedrecall.core.rounds import RoundSchedule, run_rounds
from fedrecall.errors import UserError
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
    if setup.data.dataset.columns or setup.data.dataset.scaling is not None:
        raise UserError(
            "privacy.not_covered",
            f'data "{setup.data.dataset.name}": the inputs are scaled or encoded by statistics of all clients\' rows, '
            "so one client changes the inputs of the others, which server.privacy does not cover",
            "server.privacy",
            "scale the inputs by fixed numbers, and pass them as arrays (fr.from_arrays)",
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
            log.warning("%s: earlier rounds were private, the next ones are not: epsilon is infinite", path)
        return ledger
    if directory is not None:
        ledger.attempt = directory.num_forced_resumes
    if {record["round"] for record in records} - {release.t + 1 for release in ledger.releases}:
        log.warning("%s: earlier rounds were run without server.privacy: epsilon is infinite", path)
        ledger.unbounded = True
    if start is not None and not ledger.releases:
        inherited = _releases_before(start, setup, privacy)
        if inherited is None:
            log.warning("run.start = %s: trained on the same data without server.privacy: epsilon is infinite", start)
            ledger.unbounded = True
        for release in inherited or ():
            ledger.add(release)
    return ledger


def _releases_before(start: Path, setup: Setup, privacy: GaussianMechanism) -> list[Release] | None:
    """Return the releases that the initial weights depend on; None if these depend on the data in other ways.

    Weights without a run directory, and those of a run on other data, count as independent of the clients' data.
    """
    folder = start if start.is_dir() else start.parent
    try:
        environment = json.loads((folder / ENVIRONMENT_FILE).read_text())
    except (OSError, ValueError):
        return []
    if environment.get("data") != setup.data.dataset.fingerprint:
        return []
    releases = PrivacyLedger.load(folder / LEDGER_FILE).releases
    same_noise = privacy.source == "seed" and environment["config"].get("run.seed") == setup.experiment.run.seed
    if not releases or same_noise:
        return None
    return [replace(release, attempt=-1 - release.attempt) for release in releases]  # no release of this run
