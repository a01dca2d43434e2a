"""Method: the nine hooks of a federated learning method, in the order of a round. The defaults are FedAvg."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from fedrecall.core.method_extensions import MethodExtensions
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server, Step, require_payload
from fedrecall.errors import UserError


@dataclass(frozen=True)
class Method(MethodExtensions):
    """FedAvg: clients train on their own data, the server averages their weights.

    Communication-Efficient Learning of Deep Networks from Decentralized Data.
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. https://arxiv.org/abs/1602.05629

    A method overrides the hooks that its paper changes. It is a frozen dataclass: its fields are its hyper-parameters
    and the keys of its configuration.

    >>> @dataclass(frozen=True)
    ... class Calm(Method):
    ...     weight: float = 0.1
    ...
    ...     def loss(self, s, r):
    ...         return super().loss(s, r) + self.weight * s.z.square().mean()
    >>> Calm(weight=0.5)
    Calm(weight=0.5)
    """

    # --- server ---------------------------------------------------------------------------
    def init(self, w: Tensor) -> Payload:
        """Return the initial extra state of the server."""
        return {}

    def broadcast(self, server: Server) -> Payload:
        """Return extra tensors to broadcast this round, besides the weights. May use `server.require_auxiliary`."""
        return {}

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Aggregate the replies into the next server state. `replies` is a stream: iterate once.

        After the last reply `cohort.size` is the number of accepted replies.
        """
        mean = server.mean(replies)
        if "w" not in mean:
            what = f'{type(self).__name__}: its replies have no "w", which its aggregate averages'
            raise UserError("method.no_weights", what, "method", 'return "w" in reply, or override aggregate')
        return server.step(mean["w"])

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Run one communication round: broadcast, train, aggregate. Override for more than one exchange."""
        extra = require_payload(self.broadcast(server), f"method = {type(self).__name__}: the result of broadcast")
        return self.aggregate(server, cohort.run("train", {"w": server.w, **extra}), cohort)

    # --- client ---------------------------------------------------------------------------
    def memory(self, w: Tensor) -> Payload:
        """Return the state of a client before its first round."""
        return {}

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return models to evaluate without gradient (teachers), by name: weights [d] or complete states [d + e].

        The training loop evaluates them; their outputs are in `Step.frozen`.
        """
        return {}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return the training loss of one batch."""
        return r.cross_entropy(s.z, s.y)

    def correct(self, g: Tensor, r: Local) -> Tensor:
        """Return the gradient that the optimiser uses in place of g."""
        return g

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Return (tensors to send, new client state) after local training."""
        return {"w": w}, r.memory
