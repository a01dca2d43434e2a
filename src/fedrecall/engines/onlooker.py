"""What a client reports of its training beside its reply, when a probe asks for it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.flat import Flat
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Output, Payload, Step
from fedrecall.data.examples import Examples

SHIFTS = ("kl", "features", "accuracy")  # what is measured of a shift
MANY = 1000  # test examples whose features are kept


@dataclass(frozen=True)
class Observe:
    """What clients are asked to report. Each costs what its comment says, for every participant of a round."""

    predictions: bool = False  # what its trained model says of the test set: a pass over the test set
    own_data: bool = False  # accuracy of the received and the trained model on its own data: two passes over it
    shift: bool = False  # distance from the received model after each epoch: epochs + 1 passes over the test set
    distillation: bool = False  # what the method's loss does, batch by batch: some arithmetic
    features: int | None = None  # the round, from 0, after which to report features of some test examples


class Onlooker:
    """Observes one client's round."""

    def __init__(self, observe: Observe, method: Method, f: Flat, r: Local, test: Examples, client: int) -> None:
        self._observe, self._method, self._f, self._r, self._test = observe, method, f, r, test
        self._report: Payload = {"client": torch.tensor(client)}
        self._received = f.join(r.w, r.b)
        self._sums: Payload = {}
        self._shifts: list[Tensor] = []
        self._global = f.hear(self._received, test) if observe.shift else None

    @torch.no_grad()
    def step(self, s: Step, r: Local) -> None:
        """Add up what the loss does to this batch."""
        if self._observe.distillation:
            for name, values in self._method.observe(s, r).items():
                pair = torch.stack([values.nansum(), (~values.isnan()).sum()]).double()
                self._sums[name] = self._sums.get(name, 0) + pair

    @torch.no_grad()
    def epoch(self, state: Tensor) -> None:
        """How far the model has gone from the received one."""
        if self._global is not None:
            self._shifts.append(_distance(self._global, self._f.hear(state, self._test), self._test.y))

    def report(self, state: Tensor) -> Payload:
        """All that was asked for."""
        out = dict(self._report)
        if self._observe.predictions or self._method.personal:
            score = self._f.score(state, self._test, lambda said: self._method.judge(said, self._r.down))
            out |= {"predicted": score.predicted, "local_accuracy": torch.tensor(score.accuracy)}
        if self._observe.own_data:
            before, after = (self._f.score(w, self._r.data).accuracy for w in (self._received, state))
            out["own_data"] = torch.tensor([before, after], dtype=torch.float64)
        if self._shifts:
            out["shift"] = torch.stack(self._shifts)
        if self._observe.features == self._r.t:
            out["features"] = self._f.hear(state, some(self._test)).h
        return out | {f"observed.{name}": pair for name, pair in self._sums.items()}


def some(test: Examples) -> Examples:
    """At most a thousand of the examples, evenly spread."""
    return test.take(torch.arange(0, len(test), -(-len(test) // MANY)))


def _distance(was: Output, now: Output, y: Tensor) -> Tensor:
    """By the names of SHIFTS: mean KL(was || now) of the outputs, mean L2 distance of the features, accuracy now."""
    kl = F.kl_div(F.log_softmax(now.z, -1), F.log_softmax(was.z, -1), reduction="batchmean", log_target=True)
    far = (now.h.flatten(1) - was.h.flatten(1)).norm(dim=1).mean()
    right = (now.z.argmax(-1).cpu() == y).double().mean().to(kl.device)
    return torch.stack([kl.double(), far.double(), right])
