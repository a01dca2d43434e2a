"""From a configuration to what stands between clients and method: screening, robustness, privacy, absence."""

from fedrecall.core.exchange import ReplyPolicy
from fedrecall.core.privacy import PrivateAggregation, epsilon_after
from fedrecall.core.rounds import RoundSchedule, run_rounds
from fedrecall.core.reply_validation import ReplyValidator
from fedrecall.core.types import Engine
from fedrecall.simulation.availability import UnreliableClients
from fedrecall.core.dry_run import DryRun
from fedrecall.runs.setup import Setup
import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self
import torch
from fedrecall.core.exchange import Diverged
from fedrecall.core.method import Method
from fedrecall.core.rounds import RoundResult, run_rounds
from fedrecall.core.types import Engine, Server
from fedrecall.data.catalog import DATASETS
from fedrecall.simulation import FailurePolicy, ClientStateStore, PoolEngine, SerialEngine
from fedrecall.errors import UserError
from fedrecall.config.experiment import Experiment
from fedrecall.runs.directory import ROUNDS, RunDirectory, locked, require_empty
from fedrecall.runs.live import run_progress
from fedrecall.runs.probes import ProbeRecord, ProbeContext, feature_tensors, run_probes
from fedrecall.runs.records import RoundRecord, make_record, summarise
from fedrecall.runs.result import Result, run_title
from fedrecall.runs.setup import MODEL_FILE, UserModel, Setup, prepare_run
from fedrecall.runs.trackers import SafeTracker



def make_reply_policy(ready: Setup) -> ReplyPolicy:
    """What every reply goes through.

    The form of replies is rehearsed, and they are looked at closely, only where they come from other machines, or a
    round may go on without some of them: else an odd reply is a mistake in the method's code, and its own error says
    more.
    """
    experiment = ready.experiment
    least, federation, server = experiment.engine.min_replies, experiment.federation, experiment.server
    strange = least is not None or experiment.engine.name == "flower"
    rehearsal = DryRun(ready.clients, ready.server.f)
    screen = ReplyValidator(
        min_replies=least,
        max_norm=federation.max_norm,
        max_examples=federation.max_examples or int(ready.data.partition.sizes.max()) or None,  # 0: nobody knows
        expected_spec=rehearsal.expected_spec if strange else None,
        extra_checks=(rehearsal.find_report_error, ready.clients.method.validate_reply) if strange else (),
    )
    private = None if server.privacy is None else PrivateAggregation(server.privacy, ready.clients.seed)
    return ReplyPolicy(screen, server.robust if private is None else private)


def with_unreliable_clients(engine: Engine, ready: Setup) -> Engine:
    """The engine, without the clients that do not answer."""
    federation = ready.experiment.federation
    if federation.dropout is None and federation.straggler is None:
        return engine
    return UnreliableClients(
        engine,
        sizes=ready.data.partition.sizes.tolist(),
        target_replies=federation.clients_per_round,
        seed=ready.schedule.seed,
        dropout=federation.dropout or 0.0,
        straggler=federation.straggler,
    )


def check_privacy(ready: Setup) -> None:
    """Refuse what server.privacy does not cover before anything runs: a round with the server as its only client."""
    privacy = ready.experiment.server.privacy
    if privacy is None:
        return
    epsilon_after(privacy, ready.schedule.population, ready.schedule.sample, 1)
    rule, alone = PrivateAggregation(privacy, ready.clients.seed), RoundSchedule(rounds=1, population=1, sample=1, seed=0)
    next(run_rounds(ready.clients.method, ready.server, DryRun(ready.clients, ready.server.f), alone, ReplyPolicy(rule=rule)))


def epsilon_spent(ready: Setup, number: int) -> float | None:
    """Epsilon after so many rounds, where there is a promise to account for."""
    privacy = ready.experiment.server.privacy
    return None if privacy is None else epsilon_after(privacy, ready.schedule.population, ready.schedule.sample, number)


if TYPE_CHECKING:
    from fedrecall.runs.run import RunState


class ManagedEngine(Engine, Protocol):
    """An engine, from its start to its end."""

    @property
    def client_state(self) -> ClientStateStore:
        """What clients remember, as it is kept in checkpoints."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def make_engine(ready: Setup, directory: RunDirectory | None, past: "RunState") -> ManagedEngine:
    """The engine that the experiment names; what clients leave behind goes to the run directory."""
    choice = ready.experiment.engine
    if choice.name == "flower":
        raise UserError(
            "flower.needs_app",
            'engine.name = "flower": it runs as a Flower app',
            "engine.name",
            "make one with fedrecall flower new DIR --config CONFIG.toml, or simulate the same configuration with "
            '--set engine.name="pool"',
        )
    faults = FailurePolicy(choice.min_replies, directory.save_traceback if directory else None)
    memories = ClientStateStore(directory.checkpoints.client_state_folder if directory else None, files=past.client_state_files)
    if choice.name == "ray":
        from fedrecall.simulation.ray import RayEngine

        address = ready.experiment.ray.address
        return RayEngine(ready.clients, ready.server.f, faults, memories, address=address, workers=choice.workers)
    if choice.name == "serial":
        return SerialEngine(ready.clients, ready.server.f, faults, memories)
    return PoolEngine(ready.clients, ready.server.f, faults, memories, workers=choice.workers)
