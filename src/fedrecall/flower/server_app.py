"""The ServerApp: a run whose engine sends the tasks to Flower nodes."""

import json
import logging
import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrecall.config.choices import require
from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_code, own_code_hashes
from fedrecall.errors import UserError
from fedrecall.files import parse_json, write_atomic
from fedrecall.flower.app_config import OUT_KEY, read_experiment
from fedrecall.flower.engine import FlowerEngine
from fedrecall.flower.nodes import NodeRegistry
from fedrecall.flower.server_data import (
    check_without_server_data,
    prepare_federation,
    read_data_schema,
    save_data_schema,
)
from fedrecall.flower.status import StatusFile
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.engine import EngineFactory
from fedrecall.runs.notices import warn_of_no_effect
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.run import Run
from fedrecall.runs.setup import Setup
from fedrecall.simulation import ClientFailure, ClientStateStore, FailurePolicy

DEFAULT_TASK_TIMEOUT = 600.0  # seconds for a task, if engine.timeout is not set

RUN_ID_FILE = "federation.json"  # in the run directory: the run's key, under which nodes store client states

log = logging.getLogger("flwr.fedrecall")


def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the app's configuration, or resume it from its last checkpoint."""
    status = None
    try:
        experiment = read_experiment(context.run_config)
        hashes = tuple(f"{name}={digest}" for name, digest in own_code_hashes(experiment).items())
        experiment = import_own_code(experiment)
        engine, federation = experiment.engine, experiment.federation
        if experiment.run.start is not None and require(experiment.method).traits.personalised:
            raise UserError(
                "config.conflict",
                f"run.start = {experiment.run.start}: a file on the server, and personal models start on the nodes",
                "run.start",
                "remove run.start",
            )
        check_without_server_data(experiment)
        out = Path(str(context.run_config.get(OUT_KEY) or "run")).expanduser().absolute()
        log.info("run directory: %s", out)
        status = StatusFile(out, experiment.run.rounds, show_sizes=experiment.server.privacy is None)
        timeout = engine.timeout or DEFAULT_TASK_TIMEOUT
        min_clients, resume = engine.min_replies or federation.clients, (out / "config.toml").exists()
        nodes = NodeRegistry(grid, federation.clients, timeout, status.registry_changed, hashes, read_data_schema(out))
        nodes.wait_for_clients(min_clients)
        setup = prepare_federation(experiment, nodes, min_clients)
        with Run(setup, out, resume=resume, engine=engine_factory(nodes, RunDirectory(out), status)) as run:
            save_data_schema(out, nodes.schema)
            for record in run:
                _log_round(experiment, record)
        status.end()
    except UserError as error:
        log.error("error: %s [%s]", error, error.code)
        if status is not None and error.code != "run.finished":
            status.end(error)
        raise
    warn_of_no_effect(run.result)
    summary = run.result.summary
    accuracy = "" if summary["final"] is None else f", accuracy {100 * summary['final']:.2f} %"
    log.info("finished: %s rounds%s", summary["rounds"], accuracy)


def engine_factory(nodes: NodeRegistry, directory: RunDirectory, status: StatusFile) -> EngineFactory:
    """Return the function that makes the engine of a run on these nodes, in this run directory."""

    def make_engine(setup: Setup, failures: FailurePolicy, client_state: ClientStateStore) -> FlowerEngine:
        timeout = setup.experiment.engine.timeout or DEFAULT_TASK_TIMEOUT
        return FlowerEngine(
            clients=setup.clients,
            f=setup.server.f,
            nodes=nodes,
            run_id=_run_id(directory.path / RUN_ID_FILE),
            timeout=timeout,
            failures=replace(failures, save_traceback=partial(log_failure, failures)),
            watch=status.exchange,
            record_nodes=status.show_sizes,
            client_state=client_state,
            oldest_checkpoint_round=directory.checkpoints.oldest_round,
        )

    def log_failure(failures: FailurePolicy, failure: ClientFailure) -> str | None:
        log.warning("round %d: client %d failed: %s [%s]", failure.t + 1, failure.client, failure.error, failure.code)
        status.failed(failure)
        return None if failures.save_traceback is None else failures.save_traceback(failure)

    return make_engine


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
