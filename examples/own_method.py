"""Write your own method: only its difference from FedAvg. The library supplies the tests.

Run it with `python examples/own_method.py`. It takes a few seconds and needs no download. docs/vocabulary.md describes
all hooks and their arguments.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

import fedrecall as fr
from fedrecall import Local, Step
from fedrecall.constraints import Weight
from fedrecall.testing import check_method


@dataclass(frozen=True)
class FedAnchor(fr.Method):
    """FedAvg with a penalty on feature changes for examples that the global model classifies correctly."""

    mu: Weight = 1.0
    """Weight of the penalty. Every field is a hyper-parameter: `fr.compare([FedAnchor(mu=0.1)])`."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the teachers of the loss: here the received model. The training loop evaluates them."""
        return {"global": r.w}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return the cross-entropy plus the distance to the teacher's features where its prediction is correct."""
        h, z = s.frozen["global"]  # features [batch, width] and logits [batch, classes]
        correct = (z.argmax(-1) == s.y).to(s.h.dtype)  # a mask, not an index: every batch has the same shapes
        anchor = correct * F.mse_loss(s.h, h, reduction="none").mean(-1)
        return r.cross_entropy(s.z, s.y) + self.mu * anchor.mean()


def main() -> None:
    """Check the method with the tests of the library's own methods, then compare it with two of them."""
    count = check_method(FedAnchor())  # raises an AssertionError that names the failed check
    print(f"{count} checks passed: finite numbers, same seed same bits, lost replies, every engine, ...\n")
    comparison = fr.compare(
        ["fedavg", "fedlmd", FedAnchor(), FedAnchor(mu=10.0)],
        data="digits",
        clients=20,
        sample=4,
        alpha=0.1,
        rounds=15,
        seeds=2,
        config={"local": {"lr": 0.05}},
    )
    print(comparison)


if __name__ == "__main__":
    main()
