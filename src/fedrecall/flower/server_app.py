"""The ServerApp: a run like any other, whose engine is the federation."""

import json
import logging
import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrecall.config.choices import Own
from fedrecall.config.experiment import Experiment
from fedrecall.data.partition import Partition
from fedrecall.data.partitioners import PARTITIONS
from fedrecall.errors import UserError
from fedrecall.files import write
from fedrecall.flower.app_config import OUT, configured
from fedrecall.flower.engine import Federation
from fedrecall.flower.nodes import Roll
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.records import Record
from fedrecall.runs.run import Past, execute
from fedrecall.runs.setup import Setup, setup
from fedrecall.simulation import Failure, Faults, Memories

TIMEOUT = 600.0  # seconds that a task may take, where the configuration does not say

KEY = "federation.json"  # in the run directory

log = logging.getLogger("flwr.fedrecall")


def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the app's configuration; one that was interrupted goes on from its last checkpoint."""
    try:
        experiment = configured(context.run_config)
        choice, federation = experiment.engine, experiment.federation
        if experiment.run.start is not None and experiment.method.personal:
            raise UserError(
                "config.conflict",
                f"run.start = {experiment.run.start}: a file on the server, and personal models start on the nodes",
                "run.start",
                "remove run.start",
            )
        roll = Roll(grid, federation.clients, choice.timeout or TIMEOUT)
        roll.gather(choice.min_replies or federation.clients)
        own = any(member.own for member in roll.members.values())
        ready = without_clients(experiment) if own else setup(experiment)
        out = Path(str(context.run_config.get(OUT) or "run")).expanduser().absolute()
        log.info("run directory: %s", out)
        resume = (out / "config.toml").exists()
        result = execute(ready, out, partial(_tell, experiment), resume=resume, engine=partial(federate, roll))
    except UserError as error:
        log.error("error: %s [%s]", error, error.code)
        raise
    final = result.summary["final"]
    log.info(
        "finished: %s rounds%s", result.summary["rounds"], "" if final is None else f", accuracy {100 * final:.2f} %"
    )


def federate(roll: Roll, ready: Setup, directory: RunDirectory | None, past: Past) -> Federation:
    """The engine of a run that is set up, with the receipts of its last checkpoint."""
    assert directory is not None
    choice = ready.experiment.engine

    def keep(failure: Failure) -> str:
        log.warning("round %d: client %d failed: %s [%s]", failure.t + 1, failure.client, failure.error, failure.code)
        return directory.keep(failure)

    return Federation(
        world=ready.world,
        f=ready.server.f,
        roll=roll,
        run=_key(directory.path / KEY),
        timeout=choice.timeout or TIMEOUT,
        classes=ready.dealt.dataset.classes,
        faults=Faults(choice.min_replies, keep),
        memories=Memories(directory.checkpoints.memories, filed=past.filed),
        oldest=directory.checkpoints.oldest,
    )


def without_clients(experiment: Experiment) -> Setup:
    """A run whose clients' data are on their nodes: of the configured data the server uses test and auxiliary part."""
    nominal = experiment.federation.model_copy(update={"partition": PARTITIONS["iid"]()})
    ready = setup(experiment.model_copy(update={"federation": nominal}))
    nobody = np.zeros(len(ready.dealt.partition) + 1, dtype=np.int64)
    partition = Partition(nobody[:0], nobody, ready.dealt.partition.samples, {"name": "nodes"}, 0)
    told = nominal.model_copy(update={"partition": Own("partition", "nodes")})
    return Setup(
        ready.experiment.model_copy(update={"federation": told}),
        ready.dealt._replace(partition=partition),
        replace(ready.world, partition=partition),
        ready.server,
        ready.plan,
    )


def _key(path: Path) -> str:
    """What nodes know this run by, the same after every restart."""
    if not path.exists():
        write(path, json.dumps({"run": secrets.token_hex(16)}).encode())
    return str(json.loads(path.read_text())["run"])


def _tell(experiment: Experiment, line: Record) -> None:
    accuracy = "" if line["accuracy"] is None else f"  accuracy {100 * line['accuracy']:.2f} %"
    came = f"  {line['replies']} of {len(line['clients'])} replies"
    log.info("round %d/%d%s%s  %.2f s", line["round"], experiment.run.rounds, accuracy, came, line["seconds"])


app = ServerApp()

app.main()(main)
