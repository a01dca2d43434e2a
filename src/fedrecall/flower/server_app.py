"""The ServerApp: a run whose engine sends the tasks to Flower nodes."""

import json
import logging
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrecall.config.choices import PythonObject, require
from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_code
from fedrecall.data.partition import Partition
from fedrecall.data.partitioners import PARTITIONERS
from fedrecall.errors import UserError
from fedrecall.files import parse_json, write_atomic
from fedrecall.flower.app_config import OUT_KEY, read_experiment
from fedrecall.flower.engine import FlowerEngine
from fedrecall.flower.nodes import NodeRegistry
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.engine import EngineFactory
from fedrecall.runs.notices import warn_of_no_effect
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.run import Run
from fedrecall.runs.setup import Setup, prepare_run
from fedrecall.simulation import ClientFailure, ClientStateStore, FailurePolicy

DEFAULT_TASK_TIMEOUT = 600.0  # seconds for a task, if engine.timeout is not set

RUN_ID_FILE = "federation.json"  # in the run directory: the run's key, under which nodes store client states

log = logging.getLogger("flwr.fedrecall")


def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the app's configuration, or resume it from its last checkpoint."""
    try:
        experiment = import_own_code(read_experiment(context.run_config))
        engine, federation = experiment.engine, experiment.federation
        if experiment.run.start is not None and require(experiment.method).traits.personalised:
            raise UserError(
                "config.conflict",
                f"run.start = {experiment.run.start}: a file on the server, and personal models start on the nodes",
                "run.start",
                "remove run.start",
            )
        nodes = NodeRegistry(grid, federation.clients, engine.timeout or DEFAULT_TASK_TIMEOUT)
        nodes.wait_for_clients(engine.min_replies or federation.clients)
        have_own_data = any(member.has_own_data for member in nodes.members.values())
        setup = setup_without_client_data(experiment) if have_own_data else prepare_run(experiment)
        out = Path(str(context.run_config.get(OUT_KEY) or "run")).expanduser().absolute()
        log.info("run directory: %s", out)
        resume = (out / "config.toml").exists()
        with Run(setup, out, resume=resume, engine=engine_factory(nodes, RunDirectory(out))) as run:
            for record in run:
                _log_round(experiment, record)
    except UserError as error:
        log.error("error: %s [%s]", error, error.code)
        raise
    warn_of_no_effect(run.result)
    summary = run.result.summary
    accuracy = "" if summary["final"] is None else f", accuracy {100 * summary['final']:.2f} %"
    log.info("finished: %s rounds%s", summary["rounds"], accuracy)


def engine_factory(nodes: NodeRegistry, directory: RunDirectory) -> EngineFactory:
    """Return the function that makes the engine of a run on these nodes, in this run directory."""

    def make_engine(setup: Setup, failures: FailurePolicy, client_state: ClientStateStore) -> FlowerEngine:
        timeout = setup.experiment.engine.timeout or DEFAULT_TASK_TIMEOUT
        return FlowerEngine(
            clients=setup.clients,
            f=setup.server.f,
            nodes=nodes,
            run_id=_run_id(directory.path / RUN_ID_FILE),
            timeout=timeout,
            classes=setup.data.dataset.classes,
            failures=replace(failures, save_traceback=save_traceback),
            client_state=client_state,
            oldest_checkpoint_round=directory.checkpoints.oldest_round,
        )

    def save_traceback(failure: ClientFailure) -> str:
        log.warning("round %d: client %d failed: %s [%s]", failure.t + 1, failure.client, failure.error, failure.code)
        return directory.save_traceback(failure)

    return make_engine


def setup_without_client_data(experiment: Experiment) -> Setup:
    """Set up a run whose clients have their data on their nodes. The server uses only test and auxiliary data."""
    nominal = experiment.federation.model_copy(update={"partition": PARTITIONERS["iid"]()})
    setup = prepare_run(experiment.model_copy(update={"federation": nominal}))
    offsets = np.zeros(len(setup.data.partition) + 1, dtype=np.int64)
    empty = Partition(offsets[:0], offsets, setup.data.partition.samples, {"name": "nodes"}, 0)
    recorded = nominal.model_copy(update={"partition": PythonObject("partition", "nodes")})
    return replace(
        setup,
        experiment=setup.experiment.model_copy(update={"federation": recorded}),
        data=setup.data._replace(partition=empty),
        clients=replace(setup.clients, partition=empty),
    )


def _run_id(path: Path) -> str:
    """Return the key of the run, the same after every restart."""
    if not path.exists():
        write_atomic(path, json.dumps({"run": secrets.token_hex(16)}).encode())
    try:
        return str(parse_json(path.read_text())["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path}: the key of the run cannot be read ({type(error).__name__})"
        raise UserError("run.damaged_file", message, str(path), "restore the file, or start a new run") from None


def _log_round(experiment: Experiment, record: RoundRecord) -> None:
    accuracy = "" if record["accuracy"] is None else f"  accuracy {100 * record['accuracy']:.2f} %"
    replies = f"  {record['replies']} of {len(record['clients'])} replies"
    log.info("round %d/%d%s%s  %.2f s", record["round"], experiment.run.rounds, accuracy, replies, record["seconds"])


app = ServerApp()

app.main()(main)
