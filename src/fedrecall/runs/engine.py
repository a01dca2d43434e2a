"""From a setup to its engine, and what surrounds it: availability of clients, validation of replies, privacy."""

from collections.abc import Callable
from typing import Any, Protocol, Self

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.dry_run import DryRun
from fedrecall.core.exchange import ReplyPolicy
from fedrecall.core.failures import FailurePolicy
from fedrecall.core.preaggregation import ExampleCountLimit
from fedrecall.core.precision import require_working
from fedrecall.core.privacy import PrivacyLedger, PrivateAggregation
from fedrecall.core.reply_validation import ReplyValidator
from fedrecall.core.robust import AggregationRule
from fedrecall.core.types import Engine
from fedrecall.errors import UserError
from fedrecall.runs.setup import Setup
from fedrecall.simulation import PoolEngine, SerialEngine
from fedrecall.simulation.availability import UnreliableClients
from fedrecall.simulation.collusion import ColludingClients, Collusion
from fedrecall.simulation.devices import make_deterministic, worker_device


class ManagedEngine(Engine, Protocol):
    """An engine as a context manager: its workers or connections live as long as the context."""

    @property
    def client_state(self) -> ClientStateStore:
        """Client states, as checkpoints store them."""
        ...

    def round_details(self) -> dict[str, Any]:
        """Return what the engine adds to the record of the last round, and clear it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


EngineFactory = Callable[[Setup, FailurePolicy, ClientStateStore], ManagedEngine]


def make_engine(setup: Setup, failures: FailurePolicy, client_state: ClientStateStore) -> ManagedEngine:
    """Make the engine that the experiment names."""
    choice, clients, f = setup.experiment.engine, setup.clients, setup.server.f
    if choice.name == "flower":
        raise UserError(
            "flower.needs_app",
            'engine.name = "flower": it runs as a Flower app',
            "engine.name",
            "make one with fedrecall flower new DIR --config CONFIG.toml, or simulate the same configuration with "
            '--set engine.name="pool"',
        )
    if choice.name == "ray":
        from fedrecall.simulation.ray import RayEngine

        address = setup.experiment.ray.address
        return RayEngine(
            clients, f, failures, client_state, address=address, workers=choice.workers, device=choice.device
        )
    clients = clients.precomputed()
    device = worker_device(0, choice.device)
    require_working(clients.training.precision, device)
    if choice.name == "serial":
        if choice.device != "auto":  # the reference runs on the CPU unless a device is named
            make_deterministic(device)
            f = f.to(device)
        return SerialEngine(clients, f, failures, client_state)
    return PoolEngine(
        clients, f, failures, client_state, workers=choice.workers, timeout=choice.timeout, device=choice.device
    )


def make_reply_policy(setup: Setup, ledger: PrivacyLedger) -> ReplyPolicy:
    """Return the validation and the aggregation rules that every reply passes. Private releases go into the ledger.

    Replies are compared with those of a dry run only if they come from other machines, or if a round may continue
    without some of them. Otherwise a malformed reply is a bug in the method's code, whose own error states more.
    """
    experiment = setup.experiment
    min_replies, federation, server = experiment.engine.min_replies, experiment.federation, experiment.server
    untrusted = min_replies is not None or experiment.engine.name == "flower"
    dry_run = DryRun(setup.clients, setup.server.f, setup.data.sample)
    validator = ReplyValidator(
        min_replies=min_replies,
        max_norm=federation.max_norm,
        max_examples=federation.max_examples or int(setup.data.partition.sizes.max()) or None,  # 0: sizes unknown
        expected_spec=dry_run.expected_spec if untrusted else None,
        extra_checks=(dry_run.find_report_error, setup.clients.method.validate_reply) if untrusted else (),
    )
    rules: list[AggregationRule] = []
    if federation.max_examples_ratio is not None:
        rules.append(ExampleCountLimit(federation.max_examples_ratio))
    rules += [rule for rule in (server.preaggregation, server.robust) if rule is not None]
    if server.privacy is not None:
        rules.append(PrivateAggregation(server.privacy, setup.clients.seed, setup.schedule.population, ledger))
    return ReplyPolicy(validator, tuple(rules), setup.clients.seed)


def with_simulated_faults(engine: Engine, setup: Setup) -> Engine:
    """Wrap the engine so that malicious clients collude and some clients do not reply, as the configuration states."""
    federation = setup.experiment.federation
    if isinstance(federation.attack, Collusion):
        engine = ColludingClients(engine, federation.attack, setup.clients.malicious)
    if federation.dropout is None and federation.straggler is None:
        return engine
    return UnreliableClients(
        engine,
        sizes=setup.data.partition.sizes.tolist(),
        target_replies=federation.clients_per_round,
        seed=setup.schedule.seed,
        dropout=federation.dropout or 0.0,
        straggler=federation.straggler,
    )
