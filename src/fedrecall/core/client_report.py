"""Metrics that a client reports besides its reply, for probes, and their validation."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.reply_validation import Reason
from fedrecall.core.types import Examples, Local, Output, Payload, Step

SHIFT_METRICS = ("kl", "features", "accuracy")  # columns of the metric "shift"

MAX_FEATURE_EXAMPLES = 1000  # test examples whose features are reported

METRIC_SHAPES: dict[str, tuple[int | None, ...]] = {  # of all metrics; None is any length
    "steps": (),
    "loss": (),
    "client": (),
    "local_accuracy": (),
    "predicted": (None,),
    "own_data": (2,),
    "shift": (None, len(SHIFT_METRICS)),
    "features": (None, None),
    "observed.": (2,),  # prefix of a name
}

INTEGER_METRICS = ("client", "predicted")  # metrics of type int64

FLOATS = (torch.float32, torch.float64)


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
    features: int | None = None
    """Round, from 0, after which features of some test examples are reported."""


class ClientReporter:
    """Training observer that computes the requested metrics of one client's round."""

    def __init__(
        self, request: ReportRequest, method: Method, f: FlatModel, r: Local, test: Examples, client: int
    ) -> None:
        self._request, self._method, self._f, self._r, self._test = request, method, f, r, test
        self._report: Payload = {"client": torch.tensor(client)}
        self._received = f.join(r.w, r.b)
        self._sums: Payload = {}
        self._shifts: list[Tensor] = []
        self._global = f.outputs(self._received, test) if request.shift else None

    @torch.no_grad()
    def step(self, s: Step, r: Local) -> None:
        """Add the sample metrics of this batch to the sums."""
        if self._request.distillation:
            for name, values in self._method.sample_metrics(s, r).items():
                pair = torch.stack([values.nansum(), (~values.isnan()).sum()]).double()
                self._sums[name] = self._sums.get(name, 0) + pair

    @torch.no_grad()
    def epoch(self, state: Tensor) -> None:
        """Record the distance of the model from the received one."""
        if self._global is not None:
            self._shifts.append(_shift_metrics(self._global, self._f.outputs(state, self._test), self._test.y))

    def report(self, state: Tensor) -> Payload:
        """Return all requested metrics."""
        out = dict(self._report)
        if self._request.predictions or self._method.traits.personalised:
            score = self._f.score(state, self._test, lambda output: self._method.scoring_logits(output, self._r.down))
            out |= {"predicted": score.predicted, "local_accuracy": torch.tensor(score.accuracy)}
        if self._request.own_data:
            before, after = (self._f.score(w, self._r.data).accuracy for w in (self._received, state))
            out["own_data"] = torch.tensor([before, after], dtype=torch.float64)
        if self._shifts:
            out["shift"] = torch.stack(self._shifts)
        if self._request.features == self._r.t:
            out["features"] = self._f.outputs(state, feature_examples(self._test)).h
        return out | {f"observed.{name}": pair for name, pair in self._sums.items()}


def find_report_error(
    report: Payload, client: int | None, request: ReportRequest, test: Examples, classes: int
) -> Reason | None:
    """Return the reason for rejecting the report of another machine, or None if probes can read it."""
    if not report:  # a task without training has none
        return None
    needed = ["predicted"] * request.predictions + ["own_data"] * request.own_data + ["shift"] * request.shift
    if missing := [name for name in needed if name not in report]:
        return Reason("reply.missing_tensor", f"missing metrics in the report: {', '.join(missing)}")
    for name, t in report.items():
        shape = METRIC_SHAPES.get("observed." if name.startswith("observed.") else name)
        if shape is None:
            return Reason("reply.unexpected_tensor", f"unexpected metric in the report: {name[:40]}")
        fits = len(shape) == t.ndim and all(n in (None, m) for n, m in zip(shape, t.shape, strict=True))
        if (
            not fits
            or (t.dtype not in FLOATS) != (name in INTEGER_METRICS)
            or (name in INTEGER_METRICS and t.dtype != torch.int64)
        ):
            what = f"{name[:40]} in the report is {t.dtype} {list(t.shape)}, expected {_spec_text(name, shape)}"
            return Reason("reply.wrong_shape", what)
    predicted = report.get("predicted", test.y)
    if len(predicted) != len(test) or not ((predicted >= 0) & (predicted < classes)).all():
        what = f"predicted in the report must be one of {classes} classes for each of the {len(test)} test examples"
        return Reason("reply.invalid_value", what)
    if not 0 <= (accuracy := float(report.get("local_accuracy", 0))) <= 1:
        return Reason("reply.invalid_value", f"local_accuracy in the report = {accuracy:g}: it must be from 0 to 1")
    if int(report.get("client", client or 0)) != (client or 0):
        return Reason("reply.wrong_client", f"the report is of client {int(report['client'])}")
    return None


def _spec_text(name: str, shape: tuple[int | None, ...]) -> str:
    lengths = ", ".join("any" if n is None else str(n) for n in shape)
    return f"{'int64' if name in INTEGER_METRICS else 'float32 or float64'} [{lengths}]"


def feature_examples(test: Examples) -> Examples:
    """Return at most `MAX_FEATURE_EXAMPLES` of the examples, evenly spread."""
    return test.subset(torch.arange(0, len(test), -(-len(test) // MAX_FEATURE_EXAMPLES)))


def _shift_metrics(before: Output, after: Output, y: Tensor) -> Tensor:
    """Return mean KL(before || after), mean L2 distance of the features, and accuracy after: `SHIFT_METRICS`."""
    kl = F.kl_div(F.log_softmax(after.z, -1), F.log_softmax(before.z, -1), reduction="batchmean", log_target=True)
    distance = (after.h.flatten(1) - before.h.flatten(1)).norm(dim=1).mean()
    accuracy = (after.z.argmax(-1).cpu() == y).double().mean().to(kl.device)
    return torch.stack([kl.double(), distance.double(), accuracy])
