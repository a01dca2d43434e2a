"""Simulated clients and the engines that run them. Engines and methods are independent of each other."""

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.failures import ClientFailure, FailurePolicy
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.pool import PoolEngine
from fedrecall.simulation.serial import SerialEngine

ENGINES: dict[str, type[PoolEngine] | type[SerialEngine]] = {
    "pool": PoolEngine,
    "serial": SerialEngine,
}

__all__ = [
    "ENGINES",
    "ClientFailure",
    "ClientStateStore",
    "FailurePolicy",
    "PoolEngine",
    "SerialEngine",
    "SimulatedClients",
]
