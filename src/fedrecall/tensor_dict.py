"""Several tensors as the inputs of one example: rows are selected and moved in all of them at once."""

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True, eq=False)
class TensorDict:
    """Tensors by name, with one row for each example. A model receives them as keyword arguments.

    Indexing, length and moving are those of one tensor: `x[rows]`, `len(x)`, `x.to(device)`. A name returns its tensor.

    >>> x = TensorDict({"image": torch.zeros(4, 3, 8, 8), "age": torch.tensor([61, 35, 48, 70])})
    >>> len(x), x[1:3]["age"].tolist(), x.names
    (4, [35, 48], ('image', 'age'))
    """

    tensors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @overload
    def __getitem__(self, rows: str) -> Tensor: ...

    @overload
    def __getitem__(self, rows: Tensor | slice) -> "TensorDict": ...

    def __getitem__(self, rows: str | Tensor | slice) -> "Tensor | TensorDict":
        return self.tensors[rows] if isinstance(rows, str) else self.map(lambda t: t[rows])

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a TensorDict is not iterable: iterate over its names")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in the order of the data."""
        return tuple(self.tensors)

    def keys(self) -> KeysView[str]:
        """Return the names, as `model(**x)` needs them."""
        return self.tensors.keys()

    def map(self, function: Callable[[Tensor], Tensor]) -> "TensorDict":
        """Return the results of a function on every tensor."""
        return TensorDict({name: function(t) for name, t in self.tensors.items()})

    def to(self, device: torch.device) -> "TensorDict":
        """Return the tensors on a device."""
        return self.map(lambda t: t.to(device))

    def unsqueeze(self, dim: int) -> "TensorDict":
        """Return the tensors with an additional dimension."""
        return self.map(lambda t: t.unsqueeze(dim))


POSITIONS = "positions"
"""Name of the input that marks tokens with a label, bool [N, L], where labels are those of tokens."""

Inputs = Tensor | TensorDict
"""Inputs of examples: one tensor, or several by name."""


def named_tensors(x: Inputs, name: str) -> dict[str, Tensor]:
    """Return inputs as tensors by name: `name` for one tensor, `name.key` for each of several."""
    return {name: x} if isinstance(x, Tensor) else {f"{name}.{key}": t for key, t in x.tensors.items()}


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """Return the rows of all parts in order. All have the same names."""
    named = [part for part in parts if isinstance(part, TensorDict)]
    if not named:
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return TensorDict({name: torch.cat([part[name] for part in named]) for name in named[0].names})


def _flatten(x: TensorDict) -> tuple[list[Tensor], tuple[str, ...]]:
    return list(x.tensors.values()), tuple(x.tensors)


def _unflatten(tensors: Any, names: Any) -> TensorDict:
    return TensorDict(dict(zip(names, tensors, strict=True)))


_pytree.register_pytree_node(TensorDict, _flatten, _unflatten)  # so that torch.func.vmap maps over the tensors
