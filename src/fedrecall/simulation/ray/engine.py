"""The engine for a cluster: the same tasks as on `pool`, performed by Ray actors on any number of machines."""

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.failures import FailurePolicy
from fedrecall.core.flat_model import FlatModel
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.crewed import REPLY_BUFFER_BYTES, WorkerEngine
from fedrecall.simulation.ray.actor import make_actor_args
from fedrecall.simulation.ray.crew import ActorPool, ActorWorker
from fedrecall.simulation.ray.session import open_session


class RayEngine(WorkerEngine[ActorWorker]):
    """All clients of a run, and what each remembers; the actors start when there is something to do."""

    def __init__(
        self,
        world: SimulatedClients,
        f: FlatModel,
        faults: FailurePolicy | None = None,
        memories: ClientStateStore | None = None,
        *,
        address: str | None = None,
        workers: int | None = None,
        buffer: int = REPLY_BUFFER_BYTES,
    ) -> None:
        """Connect to the cluster at `address`, or start a Ray of one's own; at most `workers` actors."""
        self._session = open_session(address, workers)
        try:
            crew = ActorPool(self._session.ray, make_actor_args(world, f), workers)
        except BaseException:
            self._session.close()
            raise
        super().__init__(world, crew, faults, memories, buffer)

    def close(self) -> None:
        """End the actors at once, leave Ray, and give back what the engine holds outside this process's memory."""
        super().close()
        self._session.close()
