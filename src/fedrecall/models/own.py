"""Anyone's own module, made to speak as the models here do: features and logits."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedrecall.errors import UserError

ADVICE = "let its forward return (features, logits)"


def adapt(
    module: nn.Module, sample: Tensor | None = None, classes: int | None = None, *, copy: bool = True
) -> nn.Module:
    """Return a copy of the module whose forward gives (h [B, D], z [B, K]); names and weights stay as they are.

    A module that returns two tensors is taken to return (features, logits). For one that returns logits, h is the
    input of the linear layer that ran last, which has to be the one that makes the logits. With a `sample` batch, and
    the number of classes, this is tried out at once. Lazy layers (`nn.LazyLinear`) take their sizes from the sample and
    their weights from torch's global generator, which the caller seeds. Without `copy` it is the module itself.
    """
    module = _copied(module) if copy else module
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        _materialise(module, sample)
    catch = _Catch()
    # Hooks rather than a wrapper: parameters keep their names, and hooks are copied and pickled with the module.
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_pre_hook(catch.before_linear)
    module.register_forward_hook(catch.after_module)
    if sample is not None:
        _try_out(module, sample, classes)
    return module


class _Catch:
    """The hooks, and what they remember between the last linear layer and the end of the module's forward."""

    def __init__(self) -> None:
        self.seen: tuple[Tensor, int] | None = None  # input and output width of the latest linear layer

    def __getstate__(self) -> dict[str, None]:
        return {"seen": None}  # after a forward that failed there would be a graph, which cannot be copied

    def before_linear(self, linear: nn.Linear, args: tuple[Tensor, ...]) -> None:
        if args:
            self.seen = args[0], linear.out_features

    def after_module(self, module: nn.Module, args: tuple[Tensor, ...], output: object) -> tuple[Tensor, Tensor]:
        seen, self.seen = self.seen, None  # so that no graph outlives its batch
        name = type(module).__name__
        match output:
            case (Tensor() as h, Tensor() as z):
                pass
            case Tensor() as z if seen is not None and z.shape[-1:] == (seen[1],):
                h = seen[0]
            case Tensor():
                raise UserError(f"the logits of {name} are not made by a torch.nn.Linear: {ADVICE}")
            case _:
                raise UserError(f"{name} returns {_kind(output)}, neither logits nor two tensors: {ADVICE}")
        if z.ndim != 2 or h.ndim < 2 or len(h) != len(z):
            shapes = f"features {tuple(h.shape)} and logits {tuple(z.shape)}"
            raise UserError(f"{name} gives {shapes}; they must be [B, D] and [B, K]: {ADVICE}")
        return h.flatten(1), z


def _copied(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except (RuntimeError, ValueError, TypeError) as e:
        what = "it has lazy layers" if "uninitialized" in str(e) else " ".join(str(e).split())
        name = type(module).__name__
        raise UserError(f"{name} cannot be copied ({what}): give the class or a function that makes it") from e


def _materialise(module: nn.Module, sample: Tensor | None) -> None:
    """Give lazy layers their sizes and weights, by one pass in evaluation mode."""
    name = type(module).__name__
    if sample is None:
        raise UserError(f"{name} has lazy layers, whose sizes are not known yet: call it once on a batch before")
    training = module.training
    _pass(module.eval(), sample)
    module.train(training)
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        raise UserError(f"{name} has lazy layers that its forward does not use: remove them")


def _try_out(module: nn.Module, sample: Tensor, classes: int | None) -> None:
    _, z = _pass(deepcopy(module).eval(), sample)  # whatever the trial changes is thrown away
    if classes is not None and z.shape[1] != classes:
        raise UserError(
            f"{type(module).__name__} gives {z.shape[1]} logits, the data has {classes} classes: they must agree"
        )


def _pass(module: nn.Module, sample: Tensor) -> Any:
    name, shape = type(module).__name__, tuple(sample.shape[1:])
    try:
        with torch.no_grad():
            return module(sample)
    except (RuntimeError, ValueError, TypeError, IndexError) as e:
        raise UserError(f"{name} cannot take samples of shape {shape}: {' '.join(str(e).split())}") from e


def _kind(output: object) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
