"""FedBABU: Toward Enhanced Representation for Federated Image Classification.

Oh, Kim, Yun. ICLR 2022. https://arxiv.org/abs/2106.06042

The head keeps its initial values, which all clients have in common: it is neither trained nor sent. A client's score
(`run.local_accuracy`) is that of the received model after fine-tuning on the client's data.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedrecall.constraints import NonNegativeInt
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.training import train
from fedrecall.core.types import Local, Payload


@dataclass(frozen=True)
class FineTuning(Method):
    """Local training of the private head, or of the complete model, whose result is the client's model."""

    part: Literal["private", "all"] = "private"

    def trained_part(self, epoch: int, r: Local) -> Literal["all", "shared", "private"]:
        """Return the part."""
        return self.part

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Return the shared part as client state, beside which the private one is stored."""
        return {}, {"w": w, "b": r.b}


@dataclass(frozen=True)
class FedBABU(Method):
    """Training of the body under a fixed random head; each client fine-tunes the head before its score."""

    finetune_epochs: NonNegativeInt = 5
    """Epochs of fine-tuning before a client is scored; 0 scores the received model."""
    finetune: Literal["head", "all"] = "head"
    """Part that is fine-tuned."""

    @property
    def traits(self) -> Traits:
        """The head stays at the client, and is the same on all of them: there is a global model."""
        return Traits(private="head")

    def trained_part(self, epoch: int, r: Local) -> Literal["all", "shared", "private"]:
        """Return the body."""
        return "shared"

    def personal_model(self, state: Tensor, r: Local) -> Tensor:
        """Return the received model, fine-tuned on the client's data."""
        tuned = r._replace(training=replace(r.training, epochs=self.finetune_epochs), scratch={})
        method = FineTuning("private" if self.finetune == "head" else "all")
        found = train(method, tuned, r.seed, 0).memory
        private = r.f.private.updated(found)
        return torch.cat([found["w"], private.w, found["b"], private.b])
