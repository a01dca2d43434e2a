"""The engine for a cluster: the same tasks as on `pool`, performed by Ray actors on any number of machines."""

from fedrecall.core.client_state import Memories
from fedrecall.core.failures import Faults
from fedrecall.core.flat_model import Flat
from fedrecall.simulation.clients import World
from fedrecall.simulation.crewed import BUFFER, Crewed
from fedrecall.simulation.ray.actor import load
from fedrecall.simulation.ray.crew import ActorCrew, ActorHand
from fedrecall.simulation.ray.session import connect


class Ray(Crewed[ActorHand]):
    """All clients of a run, and what each remembers; the actors start when there is something to do."""

    def __init__(
        self,
        world: World,
        f: Flat,
        faults: Faults | None = None,
        memories: Memories | None = None,
        *,
        address: str | None = None,
        workers: int | None = None,
        buffer: int = BUFFER,
    ) -> None:
        """Connect to the cluster at `address`, or start a Ray of one's own; at most `workers` actors."""
        self._session = connect(address, workers)
        try:
            crew = ActorCrew(self._session.ray, load(world, f), workers)
        except BaseException:
            self._session.close()
            raise
        super().__init__(world, crew, faults, memories, buffer)

    def close(self) -> None:
        """End the actors at once, leave Ray, and give back what the engine holds outside this process's memory."""
        super().close()
        self._session.close()
