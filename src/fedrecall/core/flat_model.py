"""f(w, x): a module whose weights are one vector, and its float buffers a second one.

The module's parameters are views of the vectors, never copies: an optimiser, a penalty or an average is arithmetic
on one vector, without copies to and from the layers.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from hashlib import blake2b
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedrecall.core.precision import AUTOCAST_TYPES, Precision
from fedrecall.core.private_part import PrivatePart
from fedrecall.core.types import Examples, Output, Score
from fedrecall.errors import UserError
from fedrecall.tensor_dict import Inputs

EVAL_BATCH = (
    500  # examples per batch of an evaluation; part of the result of a network that normalises by batch statistics
)

OUTPUT_CACHE_BYTES = 64 * 2**20  # size limit of the cache of teacher outputs


class FlatModel:
    """A model f(state, x) with state = weights w [d] followed by float buffers b [e]."""

    def __init__(self, model: nn.Module, private: Collection[str] = ()) -> None:
        """Take over a module whose forward returns (features, logits); w, b and int_buffers are its initial values.

        The parameters and buffers named in `private` are no part of w, b and int_buffers. The module gets their values
        from the attribute `private`, which is that of the client whose task is running.
        """
        self.private_names = frozenset(private)
        lasting = _state_buffers(model)
        floats = {name: t.numel() for name, t in lasting.items() if t.is_floating_point()}
        self.float_buffers = {name: n for name, n in floats.items() if name not in self.private_names}  # order of b
        # Private ones follow the shared ones, so that the shared part of a complete vector is its beginning.
        self._weight_names = self._shared_first([name for name, p in model.named_parameters() if p.requires_grad])
        self._float_names = self._shared_first(list(floats))
        self._counter_names = self._shared_first([name for name, t in lasting.items() if t.dtype == torch.int64])
        weights, buffers, counters = self._weights_of(model), self._buffers_of(model), self._counters_of(model)
        if not weights or len({t.dtype for t in [*weights, *buffers]}) > 1:
            found = ", ".join(sorted({str(t.dtype).removeprefix("torch.") for t in [*weights, *buffers]})) or "none"
            raise UserError(
                "model.unsupported_parameters",
                "a model needs trainable parameters, and its parameters and float buffers must have one dtype "
                f"({len(weights)} trainable tensors, dtypes: {found})",
                "model",
                "convert the model, for example with model.float()" if weights else "add a layer with parameters",
            )
        self.model = model.train()
        dtype = weights[0].dtype
        self.w, w = self._split_private(self._weight_names, weights, dtype)
        self.b, b = self._split_private(self._float_names, buffers, dtype)
        self.int_buffers, ints = self._split_private(self._counter_names, counters, torch.int64)
        self.private = self.initial_private = PrivatePart(w, b, ints)
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        self.needs_two_examples = bool(norms)  # one example has no variance
        # the output for an example depends on the other examples of the batch
        self.uses_batch_statistics = any(m.running_mean is None for m in norms)
        self._autocast: torch.dtype | None = None
        self._frozen_modules: dict[str, nn.Module] = {}
        self._cached_outputs: dict[int, tuple[bytes, Output]] = {}  # by key, oldest first
        self._cached_bytes = 0
        self._own_weights = weights  # a client's round need not walk through all modules
        self._shapes = [p.shape for p in weights]
        self._sizes = [p.numel() for p in weights]

    @property
    def head(self) -> slice:
        """Part of w that belongs to the head: the linear layer that is registered last."""
        linear = [m for m in self.model.modules() if isinstance(m, nn.Linear)]
        own = {id(p) for p in linear[-1].parameters() if p.requires_grad} if linear else set()
        places, start = list[int](), 0
        for p in self._weights_of(self.model):
            if id(p) in own:
                places += [start, start + p.numel()]
            start += p.numel()
        if not places or max(places) > len(self.w):
            raise UserError(
                "model.no_head",
                "the model has no trainable linear layer as its head, or federation.private keeps it at the clients",
                "model",
                "end the model with a torch.nn.Linear, and share it",
            )
        return slice(min(places), max(places))

    def to(self, device: torch.device) -> "FlatModel":
        """Return the model on a device; this object, if it is there already."""
        return self if self.w.device == device else FlatModel(deepcopy(self.model).to(device), self.private_names)

    def join(self, w: Tensor, b: Tensor) -> Tensor:
        """Return the complete model as one vector."""
        return torch.cat([w, b]) if len(self.b) else w

    def split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Split a model into (w, b), both without the private part, or both with it."""
        d = len(self.w) + (len(self.private.w) if len(state) > len(self.w) + len(self.b) else 0)
        return state[:d], state[d:]

    def with_private(self, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return (w, b) with the private part of the current client, unless they have one."""
        if not self.private_names or len(w) > len(self.w):
            return w, b
        return torch.cat([w, self.private.w]), torch.cat([b, self.private.b])

    def attach(self, w: Tensor, b: Tensor, counters: Tensor) -> list[nn.Parameter]:
        """Make the vectors the memory of the trained module; return its parameters, in the order of w."""
        parameters = self._bind(self.model, w, b, self._own_weights)
        _make_views(self._counters_of(self.model), counters)
        return parameters

    def frozen_module(self, state: Tensor, slot: str = "", *, batch_statistics: bool = False) -> nn.Module:
        """Return a module in evaluation mode with this state. There is one module per slot.

        With batch statistics its batch norms normalise by the current batch, and do not update running statistics.
        """
        if slot not in self._frozen_modules:
            # The weights become views below, so the copy needs the structure of the module and none of its weights.
            hollow = {id(p): nn.Parameter(p.new_empty(0)) if p.requires_grad else p for p in self.model.parameters()}
            self._frozen_modules[slot] = deepcopy(self.model, hollow).eval()
        w, b = self.with_private(*self.split(state.detach()))
        self._bind(self._frozen_modules[slot], w, b.clone() if batch_statistics else b)
        for norm in self._frozen_modules[slot].modules():
            if isinstance(norm, _BatchNorm):
                norm.train(batch_statistics)
        return self._frozen_modules[slot]

    def to_module(self, w: Tensor, b: Tensor, counters: Tensor) -> nn.Module:
        """Return an independent module with these values, in evaluation mode."""
        out = deepcopy(self.model).eval()
        w, b = self.with_private(w, b)
        self._bind(out, w.clone(), b.clone())
        _make_views(self._counters_of(out), torch.cat([counters, self.private.counters]))
        return out

    @contextmanager
    def use_private(self, private: PrivatePart) -> Iterator[None]:
        """Use the private part of one client in a block."""
        before, self.private = self.private, private
        try:
            yield
        finally:
            self.private = before

    @contextmanager
    def autocast(self, precision: Precision) -> Iterator[None]:
        """Compute `run`, and all that uses it, in a precision. Weights and outputs keep their type."""
        before, self._autocast = self._autocast, AUTOCAST_TYPES[precision]
        try:
            yield
        finally:
            self._autocast = before

    def run(self, module: nn.Module, x: Inputs) -> Output:
        """Return the outputs of the trained module or of a frozen one on a batch."""
        if self._autocast is None:
            return Output(*module(x))
        with torch.autocast(self.w.device.type, self._autocast):
            h, z = module(x)
        return Output(h.to(self.w.dtype), z.to(self.w.dtype))

    @torch.no_grad()
    def __call__(self, state: Tensor, x: Inputs) -> Output:
        """Evaluate a frozen model on a batch."""
        return self.run(self.frozen_module(state), x)

    @torch.no_grad()
    def outputs(
        self, state: Tensor, data: Examples, rng: Generator | None = None, *, batch_statistics: bool = False
    ) -> Output:
        """Evaluate a frozen model on all examples: augmented if `rng` is given, else with the test-time transforms."""
        batch_statistics = batch_statistics and len(data) > 1  # one example has no variance
        frozen = self.frozen_module(state, batch_statistics=batch_statistics)
        slices = eval_slices(len(data), at_least_two=batch_statistics or self.uses_batch_statistics)
        parts = [self.run(frozen, data.batch(rows, rng).to(state.device)) for rows in slices]
        return Output(torch.cat([part.h for part in parts]), torch.cat([part.z for part in parts]))

    def cache_outputs(self, key: int, state: Tensor, data: Examples, outputs: Output) -> None:
        """Cache the outputs of a frozen model on all examples in this process; the oldest entries are evicted."""
        self._evict(key)
        self._cached_outputs[key] = (_fingerprint(state, data.y), outputs)
        self._cached_bytes += _bytes(outputs)
        while self._cached_bytes > OUTPUT_CACHE_BYTES:
            self._evict(next(iter(self._cached_outputs)))

    def pop_cached_outputs(self, key: int, state: Tensor, data: Examples) -> Output | None:
        """Remove and return cached outputs, if they are of this model and of examples with these labels, else None."""
        entry = self._evict(key)
        return entry[1] if entry is not None and entry[0] == _fingerprint(state, data.y) else None

    def _evict(self, key: int) -> tuple[bytes, Output] | None:
        entry = self._cached_outputs.pop(key, None)
        self._cached_bytes -= 0 if entry is None else _bytes(entry[1])
        return entry

    @torch.no_grad()
    def score(
        self,
        state: Tensor,
        data: Examples,
        logits_fn: Callable[[Output], Tensor] = attrgetter("z"),
        *,
        logits: bool = False,
    ) -> Score:
        """Evaluate a complete model: predicted labels and cross-entropy of its logits, or of those of `logits_fn`.

        The precision is that of the weights, whatever that of the training. With `logits` the score has the logits.
        """
        frozen, y = self.frozen_module(state), data.y.to(state.device)
        predicted, loss, kept = list[Tensor](), 0.0, list[Tensor]()
        for rows in eval_slices(len(data), at_least_two=self.uses_batch_statistics):
            z = logits_fn(Output(*frozen(data.batch(rows).to(state.device))))
            predicted.append(z.argmax(-1))
            loss += float(F.cross_entropy(z, y[data.positions(rows)], reduction="sum"))
            if logits:
                kept.append(z)
        return Score(torch.cat(predicted).cpu(), data.y, loss, torch.cat(kept).cpu() if logits else None)

    def fisher(self, state: Tensor, data: Examples, size: int, group_size: int = 1) -> Tensor:
        """Compute the mean squared gradient of the cross-entropy [d], in evaluation mode, on at most `size` examples.

        Gradients are of means over `group_size` examples. If that is more than one, the group that exceeds `size` is
        the last one, as in the public code of FedNTD.
        """
        w, _ = self.with_private(*self.split(state))
        frozen, names = self.frozen_module(state), self._weight_names

        def loss(w: Tensor, x: Inputs, y: Tensor) -> Tensor:
            parts = zip(names, w.split_with_sizes(self._sizes), self._shapes, strict=True)
            return F.cross_entropy(functional_call(frozen, {n: p.view(s) for n, p, s in parts}, (x,))[1], y)

        def gradients(w: Tensor, x: Inputs, y: Tensor) -> Tensor:
            try:
                out: Tensor = vmap(grad(loss), (None, 0, 0))(w, x, y)
                return out
            except RuntimeError:  # vmap has no rule for recurrent layers and for branches on values, as on masks
                return torch.stack([grad(loss)(w, x[i], y[i]) for i in torch.arange(len(y))])

        one_label = group_size == 1 and len(data.y) == len(data)  # vmap needs as many labels in every example
        n = min(len(data), size if group_size == 1 else (size // group_size + 1) * group_size)
        total, groups = torch.zeros_like(w), 0
        chunk = max(1, 2**24 // len(w)) if one_label else group_size  # about 64 MB of gradients
        for start in range(0, n, chunk):
            rows = slice(start, min(start + chunk, n))
            x, y = data.batch(rows).to(w.device), data.y[data.positions(rows)].to(w.device)
            axis = 1 if one_label else 0  # groups of one example each, or one group
            total += gradients(w, x.unsqueeze(axis), y.unsqueeze(axis)).square().sum(0)
            groups += len(y) if one_label else 1
        return total[: len(self.w)] / max(groups, 1)

    def _bind(
        self, model: nn.Module, w: Tensor, b: Tensor, parameters: list[nn.Parameter] | None = None
    ) -> list[nn.Parameter]:
        parameters = parameters or self._weights_of(model)
        for p, part, shape in zip(parameters, w.split_with_sizes(self._sizes), self._shapes, strict=True):
            p.data = part.view(shape)
        _make_views(self._buffers_of(model), b)
        return parameters

    def _weights_of(self, model: nn.Module) -> list[nn.Parameter]:
        if not self.private_names:
            return [p for p in model.parameters() if p.requires_grad]
        return [model.get_parameter(name) for name in self._weight_names]

    def _buffers_of(self, model: nn.Module) -> list[Tensor]:
        return [model.get_buffer(name) for name in self._float_names]

    def _counters_of(self, model: nn.Module) -> list[Tensor]:
        return [model.get_buffer(name) for name in self._counter_names]

    def _shared_first(self, names: Sequence[str]) -> list[str]:
        return sorted(names, key=self.private_names.__contains__)

    def _split_private(self, names: Sequence[str], tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Return the shared and the private ones of these tensors, each as one vector."""
        private = [name in self.private_names for name in names]
        return [
            _flatten([t for t, own in zip(tensors, private, strict=True) if own is which], dtype, tensors)
            for which in (False, True)
        ]


def eval_slices(n: int, *, at_least_two: bool = False) -> list[slice]:
    """Split rows 0..n-1 into consecutive slices of `EVAL_BATCH`; a last slice of one row may join the one before."""
    starts = list(range(0, n, EVAL_BATCH))
    if at_least_two and len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], n], strict=False)]


def _bytes(outputs: Output) -> int:
    return outputs.h.nbytes + outputs.z.nbytes


def _fingerprint(*tensors: Tensor) -> bytes:
    digest = blake2b(digest_size=16)
    for t in tensors:
        digest.update(t.detach().cpu().contiguous().numpy().data)
    return digest.digest()


def _state_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of the state dict by name. Others are constants, such as the positions of a transformer."""
    names = model.state_dict().keys()
    return {name: t for name, t in model.named_buffers() if name in names}


def _flatten(tensors: Sequence[Tensor], dtype: torch.dtype, all_tensors: Sequence[Tensor]) -> Tensor:
    device = all_tensors[0].device if all_tensors else None
    return torch.cat([torch.empty(0, dtype=dtype, device=device), *(t.detach().flatten() for t in tensors)])


def _make_views(tensors: Iterable[Tensor], vector: Tensor) -> None:
    start = 0
    for t in tensors:
        t.data = vector[start : start + t.numel()].view(t.shape)
        start += t.numel()
