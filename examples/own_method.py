"""A new method: what it changes of FedAvg, and nothing else. Its tests come for free.

Run it with `python examples/own_method.py`; it takes some seconds and needs no download. docs/vocabulary.md has all
the hooks and what they are given.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

import fedrecall as fr
from fedrecall.core.types import Local, Step
from fedrecall.testing import check_method


@dataclass(frozen=True)
class FedAnchor(fr.Method):
    """Keeps the features of the examples that the global model knew, so that training on others cannot spoil them."""

    mu: float = 1.0  # weight of the anchor; a field is a hyper-parameter: fr.compare([FedAnchor(mu=0.1)])

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """The models that the loss wants to hear: the one that came down. It is heard once a round, not every step."""
        return {"global": r.w}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Cross-entropy, and the distance from the global model's features where its answer is right."""
        h, z = s.frozen["global"]  # features [batch, width] and logits [batch, classes]
        known = (z.argmax(-1) == s.y).to(s.h.dtype)  # a mask rather than a selection: every batch has the same shapes
        anchor = known * F.mse_loss(s.h, h, reduction="none").mean(-1)
        return F.cross_entropy(s.z, s.y) + self.mu * anchor.mean()


def main() -> None:
    """Check it as the library checks its own, then compare it: it is as good a method as those."""
    count = check_method(FedAnchor())  # raises an AssertionError that says what is broken
    print(f"{count} checks passed: finite numbers, same seed same bits, lost replies, every engine, ...\n")
    side = fr.compare(
        ["fedavg", "fedlmd", FedAnchor(), FedAnchor(mu=10.0)],
        data="digits",
        clients=20,
        sample=4,
        alpha=0.1,
        rounds=15,
        seeds=2,
        config={"local": {"lr": 0.05}},
    )
    print(side)


if __name__ == "__main__":
    main()
