"""Where clients run. An engine knows no method, a method no engine."""

from fedrecall.engines.faults import Failure, Faults
from fedrecall.engines.memory import Memories
from fedrecall.engines.pool import Pool
from fedrecall.engines.serial import Serial
from fedrecall.engines.world import World

ENGINES: dict[str, type[Pool] | type[Serial]] = {
    "pool": Pool,
    "serial": Serial,
}

__all__ = ["ENGINES", "Failure", "Faults", "Memories", "Pool", "Serial", "World"]
