"""Where clients run. An engine knows no method, a method no engine."""

from fedrecall.core.client_state import Memories
from fedrecall.core.failures import Failure, Faults
from fedrecall.simulation.clients import World
from fedrecall.simulation.pool import Pool
from fedrecall.simulation.serial import Serial

ENGINES: dict[str, type[Pool] | type[Serial]] = {
    "pool": Pool,
    "serial": Serial,
}

__all__ = ["ENGINES", "Failure", "Faults", "Memories", "Pool", "Serial", "World"]
