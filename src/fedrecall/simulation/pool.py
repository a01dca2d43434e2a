"""The default engine: worker processes with one thread each. The same bits as `serial`, for any number of workers."""

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.failures import FailurePolicy
from fedrecall.core.flat_model import FlatModel
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.crewed import REPLY_BUFFER_BYTES, WorkerEngine
from fedrecall.simulation.processes import ProcessPool, ProcessWorker, StartMethod, available_cores


class PoolEngine(WorkerEngine[ProcessWorker]):
    """All clients of a run, and what each remembers; the workers start when there is something to do."""

    def __init__(
        self,
        world: SimulatedClients,
        f: FlatModel,
        faults: FailurePolicy | None = None,
        memories: ClientStateStore | None = None,
        *,
        workers: int | None = None,
        start: StartMethod | None = None,
        buffer: int = REPLY_BUFFER_BYTES,
    ) -> None:
        """`workers` defaults to the cores there are, `start` to what is best on this system."""
        super().__init__(world, ProcessPool(world, f, workers or available_cores(), start), faults, memories, buffer)
