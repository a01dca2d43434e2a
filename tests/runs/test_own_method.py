"""Methods of one's own: a mistake in them is one line, before a worker crashes."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import fedrecall as fr

QUICK = {"federation": {"clients": 2}, "local": {"epochs": 1}, "run": {"rounds": 1}}


@dataclass(frozen=True)
class Overwrites(fr.Method):
    """Method that writes to a received tensor."""

    name: str = "w"

    def broadcast(self, server: fr.Server) -> fr.Payload:
        return {"c": torch.ones(3)}

    def loss(self, s: fr.Step, r: fr.Local) -> Tensor:
        tensor = r.w if self.name == "w" else r.down["c"]
        tensor.mul_(0.5)
        return super().loss(s, r)


@pytest.mark.parametrize("engine", ["serial", "pool"])
@pytest.mark.parametrize("name", ["w", "c"])
def test_a_method_that_writes_to_the_payload_is_refused(engine: str, name: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(QUICK | {"engine": {"name": engine}}, method=Overwrites(name))
    assert (error.value.code, error.value.key) == ("method.writes_to_payload", "method")
    assert ("r.w" if name == "w" else 'r.down["c"]') in str(error.value)
