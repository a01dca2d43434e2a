"""The part of a model that stays at its client: neither sent nor averaged, stored as client state."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedrecall.errors import UserError

PrivateChoice = Literal["head", "body", "norm"] | tuple[str, ...]
"""Named part of a model, or patterns of names of parameters and buffers."""

PREFIX = "private."  # of the names in a client's state

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class PrivatePart(NamedTuple):
    """Values of the private part of one client's model."""

    w: Tensor  # trainable weights
    b: Tensor  # float buffers
    counters: Tensor  # integer buffers

    def to_payload(self) -> dict[str, Tensor]:
        """Return the values as client state."""
        return {f"{PREFIX}{name}": t for name, t in self._asdict().items() if len(t)}

    def updated(self, payload: dict[str, Tensor]) -> "PrivatePart":
        """Return this part with the values of a client's state, where it has some."""
        return self._replace(
            **{name: payload[f"{PREFIX}{name}"] for name in self._fields if f"{PREFIX}{name}" in payload}
        )


def without_private(payload: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a client's state that belong to the method."""
    return {name: t for name, t in payload.items() if not name.startswith(PREFIX)}


def private_names(model: nn.Module, choice: PrivateChoice | None) -> frozenset[str]:
    """Return the names of the trainable parameters and lasting buffers of a choice; an empty set for None."""
    if choice is None:
        return frozenset()
    parameters = [name for name, p in model.named_parameters() if p.requires_grad]
    lasting = [*parameters, *(name for name, _ in model.named_buffers() if name in model.state_dict())]
    if isinstance(choice, str):
        names = _named_part(model, choice, lasting)
    else:
        names = set()
        for pattern in choice:
            found = {name for name in lasting if fnmatchcase(name, pattern)}
            if not found:
                raise _error(choice, f'no parameter has a name like "{pattern}"', f"the model has {_some(lasting)}")
            names |= found
    if not names & set(parameters):
        raise _error(choice, "the model has no such trainable parameters", f"the model has {_some(parameters)}")
    if names >= set(parameters):
        raise _error(choice, "nothing is left to share", "choose a smaller part")
    return frozenset(names)


def _named_part(model: nn.Module, choice: str, names: Sequence[str]) -> set[str]:
    if choice == "norm":
        return {name for name in names if isinstance(model.get_submodule(name.rpartition(".")[0]), NORMS)}
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    head = {name for name in names if linear and name.rpartition(".")[0] == linear[-1]}
    return head if choice == "head" else set(names) - head


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:8])
    return shown if len(names) <= 8 else f"{shown}, ..."


def _error(choice: PrivateChoice, wrong: str, hint: str) -> UserError:
    value = choice if isinstance(choice, str) else list(choice)
    return UserError("config.invalid_value", f"federation.private = {value}: {wrong}", "federation.private", hint)
