"""The training loop: one client, one round. There is no other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from fedrecall.core import seeds
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD
from fedrecall.core.types import Local, Output, Payload, Reply, Step

_STREAMS: tuple[seeds.Purpose, ...] = ("batches", "augment")


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains, whatever the method."""

    epochs: int = 5
    batch: int = 50
    sgd: ClientSGD = ClientSGD()
    drop_last: bool = False  # leave out a last batch that is not full, as some public code does


def batches(
    n: int, training: LocalTraining, rng: Generator, *, needs_pairs: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """(epoch, rows) of every mini-batch of a round; a batch of one is skipped where the network forbids it."""
    least = training.batch if training.drop_last else 2 if needs_pairs else 1
    for epoch in range(training.epochs):
        order = torch.randperm(n, generator=rng)
        pieces = (order[start : start + training.batch] for start in range(0, n, training.batch))
        yield from ((epoch, rows) for rows in pieces if len(rows) >= least)


class TeacherOutputs:
    """What the frozen models say.

    Without augmentation they are heard once, on all the client's examples. With it a cached answer would be about
    another image, and without running statistics about another batch: then they are heard on the very batch that the
    student sees.
    """

    def __init__(self, method: Method, r: Local) -> None:
        self._r, self._by_batch = r, method.teacher_mode == "batch"
        self._states = {name: w if len(w) > len(r.w) else r.f.join(w, r.b) for name, w in method.frozen(r).items()}
        self._cached: dict[str, Output] = {}
        self._live: dict[str, nn.Module] = {}

    def for_all_examples(self, name: str) -> Output:
        """What one of them says of all the client's examples, as the test-time transforms show them."""
        if name not in self._cached:
            r, state = self._r, self._states[name]
            kept = r.f.pop_cached_outputs(r.seed, state, r.data)  # by an earlier task of this client's round
            self._cached[name] = kept or r.f.outputs(state, r.data, batch_statistics=self._by_batch)
        return self._cached[name]

    def prepare_batches(self) -> None:
        """Make ready for batches: run over all examples where that answers for every batch."""
        for name, state in self._states.items():
            if self._r.data.is_augmented or self._by_batch or self._r.f.uses_batch_statistics:
                self._live[name] = self._r.f.frozen_module(state, slot=name, batch_statistics=self._by_batch)
            else:
                self.for_all_examples(name)

    @torch.no_grad()
    def __call__(self, rows: Tensor, x: Tensor) -> dict[str, Output]:
        """What they say of these rows, which the student sees as x."""
        if self._live:
            return {name: Output(*ear(x)) for name, ear in self._live.items()}
        return {name: Output(self._cached[name].h[rows], self._cached[name].z[rows]) for name in self._states}


class TrainingObserver(Protocol):
    """Looks on while a client trains, and changes nothing."""

    def step(self, s: Step, r: Local) -> None:
        """A batch, before its step."""
        ...

    def epoch(self, state: Tensor) -> None:
        """The model at the end of an epoch."""
        ...

    def report(self, state: Tensor) -> Payload:
        """What there is to say, of the trained model and of the way to it."""
        ...


def _gradient(loss: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """d loss / d leaf, None for a leaf that the loss does not depend on."""
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def train(
    method: Method, r: Local, how: LocalTraining, seed: int, client: int, observer: TrainingObserver | None = None
) -> Reply:
    """A client's round: a fresh optimiser, `epochs` passes over shuffled batches, then the method's reply.

    A pure function of its arguments: the same seed gives the same bits wherever and whenever it runs, observed or not.
    What an observer says is reported beside the reply.
    """
    ears = TeacherOutputs(method, r)
    r = r._replace(down=r.down | method.prepare(r, ears.for_all_examples))
    ears.prepare_batches()
    drift = method.step_correction(r)
    w, b, counters = r.w.clone(), r.b.clone(), r.down.get("counters", r.f.int_buffers).clone()
    parameters = r.f.attach(w, b, counters)
    live = w.detach().requires_grad_()  # the same memory, for the losses that speak of w itself
    g, v = torch.empty_like(w), torch.zeros_like(w)
    total, steps, passed = w.new_zeros(()), 0, 0
    shuffle, augment = (seeds.generator(seed, purpose, r.t, client) for purpose in _STREAMS)
    with seeds.seeded_rng(seed, "module", r.t, client):
        for epoch, rows in batches(len(r.y), how, shuffle, needs_pairs=r.f.needs_two_examples):
            if observer is not None and epoch > passed:
                observer.epoch(r.f.join(w, b))
                passed = epoch
            x = r.data.batch(rows, augment).to(w.device)
            out = Output(*r.f.model(x))
            step = Step(live, out.h, out.z, r.y[rows], ears(rows, x), epoch == how.epochs - 1)
            if observer is not None:
                observer.step(step, r)
            loss = method.loss(step, r)
            *slopes, penalty = _gradient(loss, [*parameters, live])
            with torch.no_grad():
                torch.cat([_flatten_grad(slope, p) for slope, p in zip(slopes, parameters, strict=True)], out=g)
                if penalty is not None:
                    g += penalty
                if how.sgd.prox:
                    g += how.sgd.prox * (w - r.w)
                how.sgd.step(w, method.correct(g, r), v, r.lr)
                if drift is not None:
                    w.sub_(drift, alpha=r.lr)
                total += loss
            steps += 1
    up, memory = method.reply(w, steps, r._replace(b=b))
    report: Payload = {"steps": torch.tensor(float(steps))} | ({"loss": total / steps} if steps else {})
    if observer is not None:
        observer.epoch(r.f.join(w, b))
        report |= observer.report(r.f.join(w, b))
    if "w" in up:  # buffers go where the weights go
        up |= {name: t for name, t in (("b", b), ("counters", counters)) if len(t)}
    return Reply(up, len(r.y), memory, report)


def _flatten_grad(slope: Tensor | None, p: Tensor) -> Tensor:
    return torch.zeros_like(p).view(-1) if slope is None else slope.reshape(-1)
