"""Adapter that makes a user-defined module return features and logits, as the models of this library do."""

import logging
from copy import deepcopy
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedrecall.errors import UserError, unknown_name, warn_once
from fedrecall.tensor_dict import POSITIONS, Inputs, TensorDict, named_tensors

log = logging.getLogger(__name__)

FORWARD_HINT = "return (features, logits) from its forward"


def adapt(
    module: nn.Module, sample: Inputs | None = None, classes: int | None = None, *, copy: bool = True
) -> nn.Module:
    """Return a copy of the module whose forward returns (h [B, D], z [B, K]), with the same names and weights.

    If the module returns two tensors, they are (features, logits). If it returns the logits, or an object that has
    them as `logits`, h is the input of the linear layer that ran last, and this layer must compute the logits. Several
    inputs by name become keyword arguments. Outputs for every token, h [B, L, D] and z [B, L, K], are reduced to the
    tokens that the input `positions` marks; the module itself does not receive this input. With a `sample` batch and
    the number of classes, the output is checked at once. Lazy layers (`nn.LazyLinear`) get their sizes from the sample
    and their weights from torch's global generator, which the caller seeds. With `copy=False` the module itself is
    changed.
    """
    module = _copied(module) if copy else module
    if isinstance(sample, TensorDict):
        call_by_name(module, sample)
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        _materialise(module, sample)
    hooks = _FeatureHooks()
    if isinstance(sample, TensorDict) and POSITIONS in sample.names:
        module.register_forward_pre_hook(hooks.take_positions, with_kwargs=True)
    # Hooks instead of a wrapper: parameters keep their names, and hooks are copied and pickled with the module.
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(hooks.after_linear)
    module.register_forward_hook(hooks.after_module)
    if sample is not None:
        _check_output(module, sample, classes)
    return module


def call_by_name(module: nn.Module, sample: TensorDict) -> None:
    """Make the module take a `TensorDict` as keyword arguments; raise an error if its forward lacks these names."""
    parameters = signature(module.forward).parameters.values()
    named = [p for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    valid, takes_all = [p.name for p in named], any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    for name in sample.names:
        if name != POSITIONS and name not in valid and not takes_all:
            error = unknown_name(f"argument of {type(module).__name__}.forward", name, valid, key="model")
            hint = error.hint or "rename or remove this input of the data"
            raise UserError("model.unsupported_input", error.message, "model", hint)
    if missing := [p.name for p in named if p.default is Parameter.empty and p.name not in sample.names]:
        raise UserError(
            "model.unsupported_input",
            f"{type(module).__name__}: forward needs {', '.join(missing)}, and the data has {', '.join(sample.names)}",
            "model",
            "rename the inputs of the data, or give the argument a default",
        )
    module.register_forward_pre_hook(_unpack, with_kwargs=True)


def _unpack(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    return ((), {**args[0], **kwargs}) if len(args) == 1 and isinstance(args[0], TensorDict) else None


def without_hooks(module: nn.Module) -> nn.Module:
    """Return a copy of an adapted module without the hooks of `adapt`: the user's own module, with these weights."""
    plain = deepcopy(module)
    for layer in plain.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks):
            for key, hook in tuple(hooks.items()):
                if hook is _unpack or isinstance(getattr(hook, "__self__", None), _FeatureHooks):
                    del hooks[key]
                    layer._forward_pre_hooks_with_kwargs.pop(key, None)
    return plain


class _FeatureHooks:
    """Forward hooks that record input and output of the last linear layer until the module's forward returns."""

    def __init__(self) -> None:
        self.last: tuple[Tensor, Tensor] | None = None
        self.positions: Tensor | None = None

    def __getstate__(self) -> dict[str, None]:
        return {
            "last": None,
            "positions": None,
        }  # after a forward that failed it holds an autograd graph, which cannot be copied

    def take_positions(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Remove the marks of tokens from the arguments of the module's forward."""
        self.positions = kwargs.pop(POSITIONS, None)
        return args, kwargs

    def after_linear(self, linear: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> None:
        if args:
            self.last = args[0], output

    def after_module(self, module: nn.Module, args: tuple[Tensor, ...], output: object) -> tuple[Tensor, Tensor]:
        last, self.last = self.last, None  # so that no autograd graph outlives its batch
        positions, self.positions = self.positions, None
        name, z = type(module).__name__, getattr(output, "logits", output)
        match z:
            case (Tensor() as h, Tensor() as z):
                pass
            case Tensor() if last is not None and z.shape[-1:] == last[1].shape[-1:]:
                h = _features_of(z, *last)
            case Tensor():
                message = f"{name}: the logits are not the output of a torch.nn.Linear"
                raise UserError("model.invalid_output", message, "model", FORWARD_HINT)
            case _:
                message = f"{name}: forward returns {_type_text(output)}, neither logits nor two tensors"
                raise UserError("model.invalid_output", message, "model", FORWARD_HINT)
        if positions is not None and z.ndim == h.ndim == 3 and z.shape[:2] == h.shape[:2] == positions.shape:
            h, z = h[positions], z[positions]
        if z.ndim != 2 or h.ndim < 2 or len(h) != len(z):
            shapes = f"features {tuple(h.shape)} and logits {tuple(z.shape)}"
            message = f"{name}: forward returns {shapes}, but they must be [B, D] and [B, K]"
            raise UserError("model.invalid_output", message, "model", FORWARD_HINT)
        return h.flatten(1), z


def _features_of(z: Tensor, h: Tensor, outputs: Tensor) -> Tensor:
    """Return the features h [B, D] of the logits z [B, K].

    A decoder computes logits at every position and returns those of one: its features are those of this position.
    """
    if h.ndim == 2 or z.ndim != 2:
        return h
    position = (outputs == z.unsqueeze(1)).all(-1).to(torch.uint8).argmax(1)
    return h.gather(1, position.view(-1, 1, 1).expand(-1, 1, h.shape[-1])).squeeze(1)


def _copied(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except (RuntimeError, ValueError, TypeError) as e:
        reason = "it has lazy layers" if "uninitialized" in str(e) else " ".join(str(e).split())
        message = f"{type(module).__name__}: the module cannot be copied ({reason})"
        raise UserError("model.cannot_copy", message, "model", "pass the class or a function that builds it") from e


def _materialise(module: nn.Module, sample: Inputs | None) -> None:
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


def _check_output(module: nn.Module, sample: Inputs, classes: int | None) -> None:
    frozen: dict[int, Any] = {id(p): p for p in module.parameters() if not p.requires_grad}
    h, z = _forward(deepcopy(module, frozen).eval(), sample)  # a copy, so that the check changes no state
    if (wrong := next((t for t in (h, z) if not t.is_floating_point() or t.is_meta), None)) is not None:
        found = f"a {wrong.dtype} tensor on {wrong.device}"
        message = f"{type(module).__name__}: forward returns {found}, but features and logits must be real numbers"
        raise UserError("model.invalid_output", message, "model", FORWARD_HINT)
    if (z >= 0).all() and torch.allclose(z.sum(1), torch.ones_like(z.sum(1)), atol=1e-4):
        name = type(module).__name__
        warn_once(log, f"{name}: its outputs are probabilities, not logits: remove the softmax from its last layer")
    if classes is not None and z.shape[1] != classes:
        raise UserError(
            "model.wrong_class_count",
            f"{type(module).__name__}: the model returns {z.shape[1]} logits, but the data has {classes} classes",
            "model",
            f"give its last layer {classes} outputs",
        )


def _forward(module: nn.Module, sample: Inputs) -> Any:
    try:
        with torch.no_grad():
            return module(sample)
    except (RuntimeError, ValueError, TypeError, IndexError) as e:
        forms = {name: f"{tuple(t.shape[1:])} {t.dtype}" for name, t in named_tensors(sample, "").items()}
        inputs = ", ".join(f"{name.removeprefix('.')} {form}".strip() for name, form in forms.items())
        message = f"{type(module).__name__}: the model cannot process inputs of shape {inputs}"
        reason = " ".join(str(e).split())
        raise UserError("model.unsupported_input", f"{message} ({reason})", "model", _input_hint(sample, reason)) from e


def _input_hint(sample: Inputs, reason: str) -> str:
    """Return what to do about an input that the model does not process."""
    integers = [t for t in named_tensors(sample, "").values() if t.dtype == torch.int64]
    if "index out of range" in reason and integers:
        return f"the largest integer is {max(int(t.max()) for t in integers)}: enlarge the embedding"
    if "indices" in reason:  # an embedding of floats
        return "an embedding needs integers: convert the inputs, for example with x.astype(int)"
    if integers and ("dtype" in reason or "long" in reason.lower()):
        return 'a linear layer needs floats: convert the inputs, for example with x.astype("float32")'
    return "change its input layer, or the shape of the data"


def _type_text(output: object) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
