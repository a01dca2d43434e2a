"""Where clients run. An engine knows no method, a method no engine."""

from fedrecall.engines.serial import Serial
from fedrecall.engines.world import World

ENGINES = {
    "serial": Serial,
}

__all__ = ["ENGINES", "Serial", "World"]
