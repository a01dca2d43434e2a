"""f(w, x): a module whose weights are one vector, and its float buffers a second one.

The module's parameters are views of the vectors, never copies: an optimiser, a penalty or an average is arithmetic
on one vector, and nothing is scattered between it and the layers.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from hashlib import blake2b
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedrecall.core.types import Examples, Output, Score
from fedrecall.errors import UserError

EVAL_BATCH = 500  # examples heard at once; part of the result where a network normalises by batch statistics

OUTPUT_CACHE_BYTES = 64 * 2**20  # bytes of what was said that are kept for being asked again


class FlatModel:
    """A model f(state, x) with state = weights w [d] followed by float buffers b [e]."""

    def __init__(self, model: nn.Module) -> None:
        """Take over a module whose forward gives (features, logits); w, b and counters are its first values."""
        weights, buffers, counters = _weights(model), _buffers(model), _counters(model)
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
        self.w = _flatten(weights, weights[0].dtype)
        self.b = _flatten(buffers, weights[0].dtype)
        self.int_buffers = _flatten(counters, torch.int64)
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        self.needs_two_examples = bool(norms)  # one example has no variance
        self.uses_batch_statistics = any(
            m.running_mean is None for m in norms
        )  # what it says of an example depends on the others
        self._frozen_modules: dict[str, nn.Module] = {}
        self._cached_outputs: dict[int, tuple[bytes, Output]] = {}  # what is kept, the oldest first
        self._cached_bytes = 0  # its bytes
        self._shapes = [p.shape for p in weights]
        self._sizes = [p.numel() for p in weights]

    def to(self, device: torch.device) -> "FlatModel":
        """The same model on a device; this one, if it is there already."""
        return self if self.w.device == device else FlatModel(deepcopy(self.model).to(device))

    def join(self, w: Tensor, b: Tensor) -> Tensor:
        """The complete model as one vector."""
        return torch.cat([w, b]) if len(self.b) else w

    def split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(w, b) of a complete model."""
        return state[: len(self.w)], state[len(self.w) :]

    def attach(self, w: Tensor, b: Tensor, counters: Tensor) -> list[nn.Parameter]:
        """Let the vectors be the memory of the trained module; returns its parameters, in w's order."""
        parameters = self._bind(self.model, w, b)
        _make_views(_counters(self.model), counters)
        return parameters

    def frozen_module(self, state: Tensor, slot: str = "", *, batch_statistics: bool = False) -> nn.Module:
        """A module in evaluation mode that says what the model with this state says; there is one per ear.

        With batch statistics its batch norms normalise by the batch at hand, and still learn nothing from it.
        """
        if slot not in self._frozen_modules:
            # The weights become views at once, so the copy takes the module's structure and none of its weights.
            hollow = {id(p): nn.Parameter(p.new_empty(0)) if p.requires_grad else p for p in self.model.parameters()}
            self._frozen_modules[slot] = deepcopy(self.model, hollow).eval()
        w, b = self.split(state.detach())
        self._bind(self._frozen_modules[slot], w, b.clone() if batch_statistics else b)
        for norm in self._frozen_modules[slot].modules():
            if isinstance(norm, _BatchNorm):
                norm.train(batch_statistics)
        return self._frozen_modules[slot]

    def to_module(self, w: Tensor, b: Tensor, counters: Tensor) -> nn.Module:
        """A module of its own with these values, in evaluation mode."""
        out = deepcopy(self.model).eval()
        self._bind(out, w.clone(), b.clone())
        _make_views(_counters(out), counters.clone())
        return out

    @torch.no_grad()
    def __call__(self, state: Tensor, x: Tensor) -> Output:
        """What a frozen model says of a batch."""
        return Output(*self.frozen_module(state)(x))

    @torch.no_grad()
    def outputs(
        self, state: Tensor, data: Examples, rng: Generator | None = None, *, batch_statistics: bool = False
    ) -> Output:
        """What a frozen model says of all examples, as the test-time transforms show them, or the random ones."""
        frozen = self.frozen_module(state, batch_statistics=batch_statistics)
        said = [Output(*frozen(data.batch(rows, rng).to(state.device))) for rows in eval_slices(len(data))]
        return Output(torch.cat([o.h for o in said]), torch.cat([o.z for o in said]))

    def cache_outputs(self, key: int, state: Tensor, data: Examples, said: Output) -> None:
        """Keep what a frozen model said of all examples, for `kept` in this process; the oldest give way to the new."""
        self._evict(key)
        self._cached_outputs[key] = (_fingerprint(state, data.y), said)
        self._cached_bytes += _bytes(said)
        while self._cached_bytes > OUTPUT_CACHE_BYTES:
            self._evict(next(iter(self._cached_outputs)))

    def pop_cached_outputs(self, key: int, state: Tensor, data: Examples) -> Output | None:
        """What was kept, once, if it was this model's word on examples with these labels; else it must be heard."""
        kept = self._evict(key)
        return kept[1] if kept is not None and kept[0] == _fingerprint(state, data.y) else None

    def _evict(self, key: int) -> tuple[bytes, Output] | None:
        kept = self._cached_outputs.pop(key, None)
        self._cached_bytes -= 0 if kept is None else _bytes(kept[1])
        return kept

    @torch.no_grad()
    def score(self, state: Tensor, data: Examples, logits_fn: Callable[[Output], Tensor] = attrgetter("z")) -> Score:
        """Labels and cross-entropy of a complete model, by its logits or by what `judge` makes of its output."""
        frozen, y = self.frozen_module(state), data.y.to(state.device)
        predicted, loss = list[Tensor](), 0.0
        for rows in eval_slices(len(data)):
            z = logits_fn(Output(*frozen(data.batch(rows).to(state.device))))
            predicted.append(z.argmax(-1))
            loss += float(F.cross_entropy(z, y[rows], reduction="sum"))
        return Score(torch.cat(predicted).cpu(), data.y, loss)

    def fisher(self, state: Tensor, data: Examples, size: int, group_size: int = 1) -> Tensor:
        """Mean squared gradient of the cross-entropy [d], in evaluation mode, over at most `size` examples.

        Gradients are of means over `per` examples. With more than one, the batch that passes `size` is the last, as
        in the public code of FedNTD.
        """
        w, _ = self.split(state)
        frozen, names = self.frozen_module(state), [n for n, p in self.model.named_parameters() if p.requires_grad]

        def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            parts = zip(names, w.split_with_sizes(self._sizes), self._shapes, strict=True)
            return F.cross_entropy(functional_call(frozen, {n: p.view(s) for n, p, s in parts}, (x,))[1], y)

        slopes = vmap(grad(loss), (None, 0, 0))
        n = min(len(data), size if group_size == 1 else (size // group_size + 1) * group_size)
        total, groups = torch.zeros_like(w), 0
        at_once = max(1, 2**24 // len(w)) if group_size == 1 else group_size  # about 64 MB of gradients
        for start in range(0, n, at_once):
            rows = slice(start, min(start + at_once, n))
            x, y = data.batch(rows).to(w.device), data.y[rows].to(w.device)
            group = 1 if group_size == 1 else 0  # one example each, or all together
            total += slopes(w, x.unsqueeze(group), y.unsqueeze(group)).square().sum(0)
            groups += len(y) if group_size == 1 else 1
        return total / max(groups, 1)

    def _bind(self, model: nn.Module, w: Tensor, b: Tensor) -> list[nn.Parameter]:
        parameters = _weights(model)
        for p, part, shape in zip(parameters, w.split_with_sizes(self._sizes), self._shapes, strict=True):
            p.data = part.view(shape)
        _make_views(_buffers(model), b)
        return parameters


def eval_slices(n: int) -> list[slice]:
    """Rows 0..n-1 in consecutive pieces."""
    return [slice(start, min(start + EVAL_BATCH, n)) for start in range(0, n, EVAL_BATCH)]


def _bytes(said: Output) -> int:
    return said.h.nbytes + said.z.nbytes


def _fingerprint(*tensors: Tensor) -> bytes:
    mark = blake2b(digest_size=16)
    for t in tensors:
        mark.update(t.detach().cpu().contiguous().numpy().data)
    return mark.digest()


def _weights(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _buffers(model: nn.Module) -> list[Tensor]:
    return [t for t in model.buffers() if t.is_floating_point()]


def _counters(model: nn.Module) -> list[Tensor]:
    return [t for t in model.buffers() if t.dtype == torch.int64]


def _flatten(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    device = tensors[0].device if tensors else None
    return torch.cat([torch.empty(0, dtype=dtype, device=device), *(t.detach().flatten() for t in tensors)])


def _make_views(tensors: Iterable[Tensor], vector: Tensor) -> None:
    start = 0
    for t in tensors:
        t.data = vector[start : start + t.numel()].view(t.shape)
        start += t.numel()
