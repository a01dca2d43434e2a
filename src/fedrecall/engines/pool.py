"""The default engine: worker processes with one thread each. The same bits as `serial`, for any number of workers."""

from fedrecall.core.flat import Flat
from fedrecall.engines.crew import ProcessCrew, ProcessHand, Start, cores
from fedrecall.engines.crewed import BUFFER, Crewed
from fedrecall.engines.faults import Faults
from fedrecall.engines.memory import Memories
from fedrecall.engines.world import World


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
