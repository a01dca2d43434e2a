"""The default engine: worker processes with one thread each. The same bits as `serial`, for any number of workers."""

from fedrecall.core.client_state import Memories
from fedrecall.core.failures import Faults
from fedrecall.core.flat_model import Flat
from fedrecall.simulation.clients import World
from fedrecall.simulation.crewed import BUFFER, Crewed
from fedrecall.simulation.processes import ProcessCrew, ProcessHand, Start, cores


class Pool(Crewed[ProcessHand]):
    """All clients of a run, and what each remembers; the workers start when there is something to do."""

    def __init__(
        self,
        world: World,
        f: Flat,
        faults: Faults | None = None,
        memories: Memories | None = None,
        *,
        workers: int | None = None,
        start: Start | None = None,
        buffer: int = BUFFER,
    ) -> None:
        """`workers` defaults to the cores there are, `start` to what is best on this system."""
        super().__init__(world, ProcessCrew(world, f, workers or cores(), start), faults, memories, buffer)
