"""Adapter that makes a user-defined module return features and logits, as the models of this library do."""

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
    """Return a copy of the module whose forward returns (h [B, D], z [B, K]), with the same names and weights.

    If the module returns two tensors, they are (features, logits). If it returns one tensor, the logits, h is the input
    of the linear layer that ran last, and this layer must compute the logits. With a `sample` batch and the number of
    classes, the output is checked at once. Lazy layers (`nn.LazyLinear`) get their sizes from the sample and their
    weights from torch's global generator, which the caller seeds. With `copy=False` the module itself is changed.
    """
    module = _copied(module) if copy else module
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        _materialise(module, sample)
    hooks = _FeatureHooks()
    # Hooks instead of a wrapper: parameters keep their names, and hooks are copied and pickled with the module.
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(hooks.before_linear)
    module.register_forward_hook(hooks.after_module)
    if sample is not None:
        _check_output(module, sample, classes)
    return module


class _FeatureHooks:
    """Forward hooks that record the input of the last linear layer until the module's forward returns."""

    def __init__(self) -> None:
        self.last: tuple[Tensor, int] | None = None  # input and output width of the last linear layer

    def __getstate__(self) -> dict[str, None]:
        return {"last": None}  # after a forward that failed it holds an autograd graph, which cannot be copied

    def before_linear(self, linear: nn.Linear, args: tuple[Tensor, ...]) -> None:
        if args:
            self.last = args[0], linear.out_features

    def after_module(self, module: nn.Module, args: tuple[Tensor, ...], output: object) -> tuple[Tensor, Tensor]:
        last, self.last = self.last, None  # so that no autograd graph outlives its batch
        name = type(module).__name__
        match output:
            case (Tensor() as h, Tensor() as z):
                pass
            case Tensor() as z if last is not None and z.shape[-1:] == (last[1],):
                h = last[0]
            case Tensor():
                message = f"{name}: the logits are not the output of a torch.nn.Linear"
                raise UserError("model.invalid_output", message, "model", FORWARD_HINT)
            case _:
                message = f"{name}: forward returns {_type_text(output)}, neither logits nor two tensors"
                raise UserError("model.invalid_output", message, "model", FORWARD_HINT)
        if z.ndim != 2 or h.ndim < 2 or len(h) != len(z):
            shapes = f"features {tuple(h.shape)} and logits {tuple(z.shape)}"
            message = f"{name}: forward returns {shapes}, but they must be [B, D] and [B, K]"
            raise UserError("model.invalid_output", message, "model", FORWARD_HINT)
        return h.flatten(1), z


def _copied(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except (RuntimeError, ValueError, TypeError) as e:
        reason = "it has lazy layers" if "uninitialized" in str(e) else " ".join(str(e).split())
        message = f"{type(module).__name__}: the module cannot be copied ({reason})"
        raise UserError("model.cannot_copy", message, "model", "pass the class or a function that builds it") from e


def _materialise(module: nn.Module, sample: Tensor | None) -> None:
    """Initialise lazy layers by one forward pass in evaluation mode."""
    name = type(module).__name__
    if sample is None:
        message = f"{name}: the sizes of its lazy layers are not known yet"
        raise UserError("model.lazy_layers", message, "model", "call the module once on a batch before")
    training = module.training
    _forward(module.eval(), sample)
    module.train(training)
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        message = f"{name}: forward does not use some of its lazy layers"
        raise UserError("model.lazy_layers", message, "model", "remove these layers")


def _check_output(module: nn.Module, sample: Tensor, classes: int | None) -> None:
    _, z = _forward(deepcopy(module).eval(), sample)  # a copy, so that the check changes no state
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
        message = f"{name}: the model cannot process samples of shape {shape} ({' '.join(str(e).split())})"
        raise UserError(
            "model.unsupported_input", message, "model", "change its input layer, or the shape of the data"
        ) from e


def _type_text(output: object) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
