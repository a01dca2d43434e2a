"""Metrics that a client reports besides its reply, for probes, and their validation."""

from dataclasses import dataclass, replace
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import MethodExtensions
from fedrecall.core.reply_validation import PayloadSpec, Reason
from fedrecall.core.types import Examples, Local, Output, Payload, Step

SHIFT_METRICS = ("kl", "features", "accuracy")  # columns of the metric "shift"

MAX_FEATURE_EXAMPLES = 1000  # test examples whose features are reported

SHARE_METRICS = ("local_accuracy", "own_data", "pull")  # metrics from 0 to 1

STEP_METRICS = ("loss", "pull")  # metrics that a client without a training step does not have


@dataclass(frozen=True)
class ReportRequest:
    """Metrics that every participating client reports."""

    predictions: bool = False
    """Predictions of the trained model on the test set. Cost: a pass over the test set."""
    own_data: bool = False
    """Accuracy of the received and the trained model on the client's own data. Cost: two passes over it."""
    shift: bool = False
    """Distance from the received model after each epoch. Cost: epochs + 1 passes over the test set."""
    distillation: bool = False
    """Values of `Method.sample_metrics`, averaged over the round. Cost: some arithmetic per batch."""
    pull: bool = False
    """Share of the distillation in the gradient at the logits, mean over batches. Cost: the loss twice per batch."""
    features: bool = False
    """Features of some test examples, after the last round."""
    every: int = 1
    """Rounds between two measurements on the test set. The last round has one in any case."""
    last: int = 0
    """Last round, from 0."""

    def in_round(self, t: int) -> "ReportRequest":
        """Return what is reported in round t, from 0: in some rounds nothing that needs the test set."""
        is_last = t == self.last
        is_measured = is_last or (t + 1) % self.every == 0
        return replace(
            self,
            predictions=self.predictions and is_measured,
            shift=self.shift and is_measured,
            features=self.features and is_last,
            every=1,
            last=0,
        )


class ClientReporter:
    """Training observer that computes the metrics which are requested in one client's round."""

    def __init__(
        self, request: ReportRequest, method: Method, f: FlatModel, r: Local, test: Examples, client: int
    ) -> None:
        self._request, self._method, self._f, self._r, self._test = request, method, f, r, test
        self._report: Payload = {"client": torch.tensor(client)}
        self._received = f.join(r.w, r.b)
        self._sums: Payload = {}
        self._shifts: list[Tensor] = []
        self._pulls: list[float] = []
        self._global = f.outputs(self._received, test) if request.shift else None

    @torch.no_grad()
    def step(self, s: Step, r: Local) -> None:
        """Add the sample metrics of this batch to the sums."""
        if self._request.distillation:
            for name, values in self._method.sample_metrics(s, r).items():
                pair = torch.stack([values.nansum(), (~values.isnan()).sum()]).double()
                self._sums[name] = self._sums.get(name, 0) + pair
        if self._request.pull and (share := distillation_share(self._method, s, r)) is not None:
            self._pulls.append(share)

    @torch.no_grad()
    def epoch(self, state: Tensor) -> None:
        """Record the distance of the model from the received one."""
        if self._global is not None:
            self._shifts.append(_shift_metrics(self._global, self._f.outputs(state, self._test), self._test.y))

    def report(self, state: Tensor) -> Payload:
        """Return all requested metrics."""
        out = dict(self._report)
        state = self._method.personal_model(state, self._r)
        if len(self._test) and (self._request.predictions or not has_global_model(self._method, self._f)):
            score = self._f.score(state, self._test, lambda output: self._method.scoring_logits(output, self._r.down))
            out |= {"predicted": score.predicted, "local_accuracy": torch.tensor(score.accuracy)}
        if self._request.own_data:
            before, after = (self._f.score(w, self._r.data).accuracy for w in (self._received, state))
            out["own_data"] = torch.tensor([before, after], dtype=torch.float64)
        if self._pulls:
            out["pull"] = torch.tensor(fmean(self._pulls), dtype=torch.float64)
        if self._shifts:
            out["shift"] = torch.stack(self._shifts)
        if self._request.features:
            out["features"] = self._f.outputs(state, feature_examples(self._test)).h
        return out | {f"observed.{name}": pair for name, pair in self._sums.items()}


def has_global_model(method: Method, f: FlatModel) -> bool:
    """Return True if the server has a complete model. A private part that the method itself declares is common."""
    return not (method.traits.personalised or (f.private_names and method.traits.private is None))


def has_personal_model(method: Method) -> bool:
    """Return True if the method scores a client by a model of its own, beside the global one."""
    return type(method).personal_model is not MethodExtensions.personal_model


def distillation_share(method: Method, s: Step, r: Local) -> float | None:
    """Return ||dD/dz|| / (||d(L - D)/dz|| + ||dD/dz||) of a batch for a loss L with the distillation term D.

    None if the method has no such term. The step is not changed, and no random number of the training is used.
    """
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        z = s.z.detach().requires_grad_()
        copy, local = s._replace(h=s.h.detach(), z=z), r._replace(scratch=dict(r.scratch))
        term = method.distillation(copy, local)
        if term is None:
            return None
        of_term, of_loss = (
            torch.autograd.grad(value.mean(), z, allow_unused=True, materialize_grads=True)[0]
            for value in (term, method.loss(copy, local))
        )
    distilled, rest = float(of_term.norm()), float((of_loss - of_term).norm())
    return distilled / (distilled + rest) if distilled + rest > 0 else 0.0


def without_steps(report: PayloadSpec) -> PayloadSpec:
    """Return the form of the report of a client that makes no training step, because its batches are skipped."""
    form = {
        name: spec for name, spec in report.items() if name not in STEP_METRICS and not name.startswith("observed.")
    }
    if "shift" in form:
        form["shift"] = (form["shift"][0], torch.Size([1, len(SHIFT_METRICS)]))
    return form


def find_report_error(report: Payload, client: int | None, classes: int) -> Reason | None:
    """Return the reason for rejecting the values of a report of the right form, or None if probes can read it."""
    predicted = report.get("predicted")
    if predicted is not None and not ((predicted >= 0) & (predicted < classes)).all():
        return Reason("reply.invalid_value", f"predicted in the report must be from 0 to {classes - 1}")
    for name in SHARE_METRICS:
        if name in report and not ((report[name] >= 0) & (report[name] <= 1)).all():
            return Reason("reply.invalid_value", f"{name} in the report must be from 0 to 1")
    if "client" in report and client is not None and int(report["client"]) != client:
        return Reason("reply.wrong_client", f"the report is of client {int(report['client'])}")
    return None


def feature_examples(test: Examples) -> Examples:
    """Return at most `MAX_FEATURE_EXAMPLES` of the examples, evenly spread."""
    return test.subset(torch.arange(0, len(test), -(-len(test) // MAX_FEATURE_EXAMPLES)))


def _shift_metrics(before: Output, after: Output, y: Tensor) -> Tensor:
    """Return mean KL(before || after), mean L2 distance of the features, and accuracy after: `SHIFT_METRICS`."""
    kl = F.kl_div(F.log_softmax(after.z, -1), F.log_softmax(before.z, -1), reduction="batchmean", log_target=True)
    distance = (after.h.flatten(1) - before.h.flatten(1)).norm(dim=1).mean()
    accuracy = (after.z.argmax(-1).cpu() == y).double().mean().to(kl.device)
    return torch.stack([kl.double(), distance.double(), accuracy])
