"""The client's half of a round: builds a client's `Local` and runs its task.

The reply is a function of the weights, the payload, the client state, the data and the seeds alone. It has the same
bits in a pool worker, a Ray actor and a Flower node.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fedrecall.core import seeds
from fedrecall.core.client_report import ClientReporter, ReportRequest, has_global_model, has_personal_model
from fedrecall.core.evaluation import EvaluationRequest, HeldOutPart, confusion_counts, score_part
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.private_part import without_private
from fedrecall.core.training import LocalTraining, train
from fedrecall.core.types import Examples, Local, Payload, Reply
from fedrecall.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ClientRunner:
    """The settings that all clients of a run share."""

    method: Method
    training: LocalTraining
    test: Examples
    """Test set on which probes measure a client's model."""
    classes: int
    seed: int
    report: ReportRequest = ReportRequest()
    """Metrics that clients report besides their replies."""
    evaluation: EvaluationRequest = EvaluationRequest()
    """Measurements on the clients' held-out examples."""

    def run_on(
        self, data: Examples, f: FlatModel, task: str, client: int, t: int, down: Payload, memory: Payload | None
    ) -> Reply:
        """Run one task of round t on a client's examples. `memory` is None if the client has no state yet."""
        private = f.initial_private.updated(to_device(memory or {}, f.w.device))
        own = None if memory is None else without_private(memory)
        with f.autocast(self.training.precision), f.use_private(private):
            r = self._local(data.precomputed(), f, client, t, to_device(down, f.w.device), own)
            reply = self._run_task(task, r, client)
        cpu = torch.device("cpu")
        return Reply(to_device(reply.up, cpu), reply.n, to_device(reply.memory, cpu), to_device(reply.metrics, cpu))

    def _run_task(self, task: str, r: Local, client: int) -> Reply:
        if task != "train":
            return Reply(self._method_task(task)(r), len(r.data), r.memory | r.f.private.to_payload(), {})
        observer, request = None, self.report.in_round(r.t)
        if request != ReportRequest() or not has_global_model(self.method, r.f):
            observer = ClientReporter(request, self.method, r.f, r, self.test, client)
        reply = train(self.method, r, self.seed, client, observer)
        _check_weights(reply, r, any_type=type(self.method).aggregate is not Method.aggregate)
        return reply

    def evaluate_on(
        self,
        data: Examples,
        parts: Mapping[HeldOutPart, Examples],
        f: FlatModel,
        client: int,
        t: int,
        down: Payload,
        memory: Payload | None,
    ) -> Reply:
        """Evaluate the received model, or the client's own one, on the client's held-out examples.

        The reply has one tensor of numbers for each part (see `score_part`), and a further one of the personal model if
        the method has both. `data` are the examples that the client trains on. The client's state does not change.
        """
        private = f.initial_private.updated(to_device(memory or {}, f.w.device))
        own = None if memory is None else without_private(memory)
        with f.use_private(private):
            r = self._local(data, f, client, t, to_device(down, f.w.device), own)
            # a trained personal model is in `scratch` after training, too; its learning rate is that of the last round
            r = r._replace(scratch=dict(r.memory), training=self.training.at_round(max(t - 1, 0)))
            up = self._score_parts(parts, r.state(r.w), r)
            if "client_test" in parts and has_global_model(self.method, f) and has_personal_model(self.method):
                with f.autocast(self.training.precision):
                    state = self.method.personal_model(r.state(r.w), r)
                state = state if len(state) > len(r.w) else r.state(state)
                up["personal"] = self._score_parts({"client_test": parts["client_test"]}, state, r)["client_test"]
        return Reply(to_device(up, torch.device("cpu")), len(data), {}, {})  # n is that of every task of the client

    def _score_parts(self, parts: Mapping[HeldOutPart, Examples], state: torch.Tensor, r: Local) -> Payload:
        out = Payload()
        for part, data in parts.items():
            z = state.new_zeros(0, self.classes)
            if len(data):
                z = self.method.scoring_logits(r.f.outputs(state, data), r.down, r.counts)
            out[part] = score_part(self.evaluation, data.y, z)
            if self.evaluation.confusion and part == "client_test":
                out["confusion"] = confusion_counts(data.y, z.argmax(-1).cpu(), self.classes)
        return out

    def _local(self, data: Examples, f: FlatModel, client: int, t: int, down: Payload, memory: Payload | None) -> Local:
        if memory is None:
            memory = self.method.memory(down.get("w", f.w))
        memory = to_device(memory, f.w.device)
        if "w" in down:
            w, b = down["w"], down.get("b", f.b)
        else:  # no global weights are sent: the client continues with its own model, initially the common one
            w, b = f.split(memory.get("own", f.w))
        y = data.y.to(f.w.device)
        counts = torch.bincount(y, minlength=self.classes)
        return Local(
            f=f,
            w=w,
            b=b if len(b) else f.b,
            down=down,
            memory=memory,
            data=data,
            y=y,
            counts=counts,
            training=self.training.at_round(t),
            t=t,
            seed=seeds.derive_seed(self.seed, "method", t, client),
            scratch={},
            class_weights=self.training.class_weights_for(counts, f.w.dtype),
        )

    def _method_task(self, task: str) -> Callable[[Local], Payload]:
        """Return a task of the method. Only declared names are looked up: the name may be from another machine."""
        if task not in self.method.traits.extra_tasks:
            declared = ", ".join(["train", *self.method.traits.extra_tasks])
            raise UserError(
                "method.unknown_task",
                f'{type(self.method).__name__} has no task "{task[:40]}" (its tasks: {declared})',
                "method",
                "add the task to Traits.extra_tasks",
            )
        function: Callable[[Local], Payload] = getattr(self.method, task)
        return function


def _check_weights(reply: Reply, r: Local, *, any_type: bool) -> None:
    """Raise an error if a reply's weights cannot be averaged: a mistake in the method's own code.

    With `any_type` they may have another type, which the method's own aggregate converts.
    """
    w: object = reply.up.get("w", r.w)  # written by users, whom no type checker stops
    dtype = w.dtype if any_type and isinstance(w, torch.Tensor) else r.w.dtype
    if not isinstance(w, torch.Tensor) or (w.dtype, w.shape, w.device) != (dtype, r.w.shape, r.w.device):
        form = f"{w.dtype} {list(w.shape)} on {w.device}" if isinstance(w, torch.Tensor) else type(w).__name__
        expected = f"{r.w.dtype} {list(r.w.shape)} on {r.w.device}"
        raise TypeError(f'the "w" that the method\'s reply returns is {form}, not {expected}')


def to_device(payload: Payload, device: torch.device) -> Payload:
    """Move tensors to a device. A tensor that is there already is not copied."""
    return {name: t.to(device) for name, t in payload.items()}
