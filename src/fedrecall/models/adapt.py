"""Anyone's own module, made to speak as the models here do: features and logits."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedrecall.errors import UserError

FORWARD_HINT = "return (features, logits) from its forward"


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
    catch = _FeatureHooks()
    # Hooks rather than a wrapper: parameters keep their names, and hooks are copied and pickled with the module.
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_pre_hook(catch.before_linear)
    module.register_forward_hook(catch.after_module)
    if sample is not None:
        _check_output(module, sample, classes)
    return module


class _FeatureHooks:
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
                what = f"{name}: the logits are not the output of a torch.nn.Linear"
                raise UserError("model.invalid_output", what, "model", FORWARD_HINT)
            case _:
                what = f"{name}: forward returns {_kind(output)}, neither logits nor two tensors"
                raise UserError("model.invalid_output", what, "model", FORWARD_HINT)
        if z.ndim != 2 or h.ndim < 2 or len(h) != len(z):
            shapes = f"features {tuple(h.shape)} and logits {tuple(z.shape)}"
            what = f"{name}: forward returns {shapes}, but they must be [B, D] and [B, K]"
            raise UserError("model.invalid_output", what, "model", FORWARD_HINT)
        return h.flatten(1), z


def _copied(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except (RuntimeError, ValueError, TypeError) as e:
        why = "it has lazy layers" if "uninitialized" in str(e) else " ".join(str(e).split())
        what = f"{type(module).__name__}: the module cannot be copied ({why})"
        raise UserError("model.cannot_copy", what, "model", "pass the class or a function that builds it") from e


def _materialise(module: nn.Module, sample: Tensor | None) -> None:
    """Give lazy layers their sizes and weights, by one pass in evaluation mode."""
    name = type(module).__name__
    if sample is None:
        what = f"{name}: the sizes of its lazy layers are not known yet"
        raise UserError("model.lazy_layers", what, "model", "call the module once on a batch before")
    training = module.training
    _forward(module.eval(), sample)
    module.train(training)
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        what = f"{name}: forward does not use some of its lazy layers"
        raise UserError("model.lazy_layers", what, "model", "remove these layers")


def _check_output(module: nn.Module, sample: Tensor, classes: int | None) -> None:
    _, z = _forward(deepcopy(module).eval(), sample)  # whatever the trial changes is thrown away
    if classes is not None and z.shape[1] != classes:
        raise UserError(
            "model.wrong_class_count",
            f"{type(module).__name__}: the model returns {z.shape[1]} logits, but the data has {classes} classes",
            "model",
            f"give its last layer {classes} outputs",
        )


def _forward(module: nn.Module, sample: Tensor) -> Any:
    name, shape = type(module).__name__, tuple(sample.shape[1:])
    try:
        with torch.no_grad():
            return module(sample)
    except (RuntimeError, ValueError, TypeError, IndexError) as e:
        what = f"{name}: the model cannot process samples of shape {shape} ({' '.join(str(e).split())})"
        raise UserError(
            "model.unsupported_input", what, "model", "change its input layer, or the shape of the data"
        ) from e


def _kind(output: object) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
