"""The training loop of one client in one round. There is no other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor, nn

from fedrecall.core import seeds
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientOptimiser, ClientSGD
from fedrecall.core.precision import Precision
from fedrecall.core.private_part import PrivatePart
from fedrecall.core.schedules import CONSTANT, Schedule
from fedrecall.core.types import Local, Output, Payload, Reply, Step
from fedrecall.tensor_dict import Inputs

_STREAMS: tuple[seeds.Purpose, ...] = ("batches", "augment")


ClassWeights = Literal["balanced"] | tuple[float, ...]


@dataclass(frozen=True)
class LocalTraining:
    """Settings of local training, the same for every client and method."""

    epochs: int = 5
    batch: int = 50
    optimiser: ClientOptimiser = ClientSGD()
    drop_last: bool = False  # skip a last batch that is not full, as some public code does
    prox: float = 0.0  # mu: adds mu/2 ||w - w^t||^2 to the loss of any method
    clip: float | None = None  # largest norm of the gradient of the loss, proximal term included
    class_weights: ClassWeights | None = None  # of the cross-entropy of any method
    schedule: Schedule = CONSTANT  # of the learning rate
    precision: Precision = "fp32"  # of the student and its teachers; weights and sums are float32

    def at_round(self, t: int) -> "LocalTraining":
        """Return the settings of round t, from 0, with its learning rate."""
        lr = self.optimiser.lr * self.schedule.factor(t)
        return replace(self, optimiser=replace(self.optimiser, lr=lr), schedule=CONSTANT)

    def class_weights_for(self, counts: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the weight of each class [K] for a client with these examples per class, or None.

        Balanced weights are n / (present classes * n_c), whose mean over the client's examples is 1. A class without
        examples has weight 1.
        """
        if self.class_weights is None:
            return None
        if self.class_weights != "balanced":
            return torch.tensor(self.class_weights, dtype=dtype, device=counts.device)
        present, n = counts > 0, counts.sum().to(dtype)  # a quotient of integers would have the default type
        return torch.where(present, n / (present.sum() * counts.clamp(min=1)), 1.0)


def smallest_batch(training: LocalTraining, *, needs_pairs: bool) -> int:
    """Return the number of examples below which a batch is skipped."""
    return training.batch if training.drop_last else 2 if needs_pairs else 1


def batches(
    n: int, training: LocalTraining, rng: Generator, *, needs_pairs: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Yield (epoch, rows) of every mini-batch. With `needs_pairs` a batch of one example is skipped."""
    smallest = smallest_batch(training, needs_pairs=needs_pairs)
    for epoch in range(training.epochs):
        order = torch.randperm(n, generator=rng)
        chunks = (order[start : start + training.batch] for start in range(0, n, training.batch))
        yield from ((epoch, rows) for rows in chunks if len(rows) >= smallest)


class TeacherOutputs:
    """Outputs of the frozen models.

    If inputs are deterministic, a frozen model is evaluated once, on all examples of the client. With augmentation it
    sees other images in every epoch, and with batch statistics its outputs depend on the batch: then it is evaluated on
    every batch of the student.
    """

    def __init__(self, method: Method, r: Local) -> None:
        self._r, self._by_batch = r, method.traits.teacher_batch_norm == "batch"
        self._states = {name: w if len(w) > len(r.w) else r.f.join(w, r.b) for name, w in method.frozen(r).items()}
        self._cached: dict[str, Output] = {}
        self._live: dict[str, nn.Module] = {}

    def for_all_examples(self, name: str) -> Output:
        """Return the outputs of a frozen model on all examples of the client, with the test-time transforms."""
        if name not in self._cached:
            r, state = self._r, self._states[name]
            earlier = r.f.pop_cached_outputs(r.seed, state, r.data)  # by an earlier task of this client's round
            self._cached[name] = earlier or r.f.outputs(state, r.data, batch_statistics=self._by_batch)
        return self._cached[name]

    def prepare_batches(self) -> None:
        """Evaluate every frozen model on all examples, or prepare its module if it must see every batch."""
        for name, state in self._states.items():
            if self._r.data.is_augmented or self._by_batch or self._r.f.uses_batch_statistics:
                self._live[name] = self._r.f.frozen_module(state, slot=name, batch_statistics=self._by_batch)
            else:
                self.for_all_examples(name)

    @torch.no_grad()
    def for_batch(self, rows: Tensor | slice, x: Inputs) -> dict[str, Output]:
        """Return the outputs at these positions, whose inputs for the student are x."""
        if self._live:
            return {name: self._r.f.run(module, x) for name, module in self._live.items()}
        return {name: Output(self._cached[name].h[rows], self._cached[name].z[rows]) for name in self._states}


class TrainingObserver(Protocol):
    """Measures a client's training without changing it."""

    def step(self, s: Step, r: Local) -> None:
        """Record a batch, before its step."""
        ...

    def epoch(self, state: Tensor) -> None:
        """Record the model at the end of an epoch."""
        ...

    def report(self, state: Tensor) -> Payload:
        """Return the metrics of the training and of the trained model."""
        ...


class TrainedModel:
    """The vectors that training changes: of each, the shared part first, then the private part of the client."""

    def __init__(self, r: Local) -> None:
        received = (r.w, r.b, r.down.get("counters", r.f.int_buffers))
        self.vectors = [torch.cat(parts) for parts in zip(received, r.f.private, strict=True)]
        split = [v.tensor_split((part.shape[0],)) for v, part in zip(self.vectors, received, strict=True)]
        self.w, self.b, self.counters = (shared for shared, _ in split)
        self.private = PrivatePart(*(private for _, private in split))
        self.parameters = r.f.attach(*self.vectors)
        self.live = self.w.detach().requires_grad_()  # shares memory with w, for losses that depend on the weights
        self.gradient = torch.empty_like(self.vectors[0])
        self.g, self.private_g = self.gradient.tensor_split((self.w.shape[0],))
        begin = r.training.optimiser.begin
        self.step_shared = begin(self.w)
        self.step_private = begin(self.private.w) if r.f.private_names else None

    @property
    def state(self) -> Tensor:
        """Complete model as one vector."""
        return torch.cat(self.vectors[:2])

    def compute_gradient(self, method: Method, s: Step, r: Local) -> Tensor:
        """Return the loss of a batch, and write its gradient to `gradient`."""
        loss = method.loss(s, r)
        # None for a tensor that the loss does not depend on
        *grads, grad_live = torch.autograd.grad(loss, [*self.parameters, s.w], allow_unused=True)
        with torch.no_grad():
            flat = [_flatten_grad(grad, p) for grad, p in zip(grads, self.parameters, strict=True)]
            torch.cat(flat, out=self.gradient)
            if grad_live is not None:
                self.g += grad_live
        return loss

    def compute_gradient_at(self, offset: Tensor, x: Inputs, method: Method, s: Step, r: Local) -> None:
        """Compute the gradient at an offset of the weights. Weights and statistics stay as they were."""
        before = [v.clone() for v in self.vectors]
        with torch.no_grad():
            self.w += offset
        out = r.f.run(r.f.model, x)
        self.compute_gradient(method, s._replace(h=out.h, z=out.z), r)
        for v, value in zip(self.vectors, before, strict=True):
            v.copy_(value)

    def step(self, method: Method, epoch: int, r: Local, correction: Tensor | None) -> None:
        """Step along the gradient, with the proximal term, clipping and the method's corrections."""
        if r.training.prox:
            self.g += r.training.prox * (self.w - r.w)
        if r.training.clip is not None:  # as torch.nn.utils.clip_grad_norm_, between gradient and optimiser
            self.gradient.mul_((r.training.clip / (self.gradient.norm() + 1e-6)).clamp(max=1.0))
        part = method.trained_part(epoch, r)
        if part != "private":
            self.step_shared(method.correct(self.g, r))
            if correction is not None:
                self.w.sub_(correction, alpha=r.training.optimiser.lr)
        if part != "shared" and self.step_private is not None:
            self.step_private(self.private_g)


def train(method: Method, r: Local, seed: int, client: int, observer: TrainingObserver | None = None) -> Reply:
    """Train one client for one round: a fresh optimiser, `epochs` passes over shuffled batches, the method's reply.

    The reply is a function of the arguments: the same seed gives the same bits on every machine, observed or not. The
    observer's metrics are reported besides the reply.
    """
    teachers = TeacherOutputs(method, r)
    r = r._replace(down=r.down | method.prepare(r, teachers.for_all_examples))
    teachers.prepare_batches()
    correction = method.step_correction(r)
    model = TrainedModel(r)
    total, steps, observed_epoch = r.w.new_zeros(()), 0, 0
    shuffle, augment = (seeds.generator(seed, purpose, r.t, client) for purpose in _STREAMS)
    with seeds.seeded_rng(seed, "module", r.t, client):
        for epoch, rows in batches(len(r.data), r.training, shuffle, needs_pairs=r.f.needs_two_examples):
            if observer is not None and epoch > observed_epoch:
                observer.epoch(model.state)
                observed_epoch = epoch
            x = r.data.batch(rows, augment).to(r.w.device)
            out = r.f.run(r.f.model, x)
            is_last, at = epoch == r.training.epochs - 1, r.data.positions(rows)
            step = Step(model.live, out.h, out.z, r.y[at], teachers.for_batch(at, x), is_last)
            if observer is not None:
                observer.step(step, r)
            loss = model.compute_gradient(method, step, r)
            with torch.no_grad():
                offset = method.perturbation(model.g, model.w, r)
            if offset is not None:
                model.compute_gradient_at(offset, x, method, step, r)
            with torch.no_grad():
                model.step(method, epoch, r, correction)
                total += loss
            steps += 1
    w, b, counters = model.w, model.b, model.counters
    if r.f.private_names:  # a view would be stored and sent with the private part
        w, b, counters = w.clone(), b.clone(), counters.clone()
    with r.f.use_private(model.private):
        up, memory = method.reply(w, steps, r._replace(b=b))
    metrics: Payload = {"steps": torch.tensor(float(steps))} | ({"loss": total / steps} if steps else {})
    if observer is not None:
        observer.epoch(model.state)
        metrics |= observer.report(model.state)
    if "w" in up:  # buffers are sent with the weights
        up |= {name: t for name, t in (("b", b), ("counters", counters)) if len(t)}
    return Reply(up, len(r.data), memory | model.private.to_payload(), metrics)


def _flatten_grad(grad: Tensor | None, p: Tensor) -> Tensor:
    return torch.zeros_like(p).view(-1) if grad is None else grad.reshape(-1)
