"""What a client reports of its training beside its reply, when a probe asks for it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.reply_validation import Reason
from fedrecall.core.types import Examples, Local, Output, Payload, Step

SHIFT_METRICS = ("kl", "features", "accuracy")  # what is measured of a shift

MAX_FEATURE_EXAMPLES = 1000  # test examples whose features are kept

METRIC_SHAPES: dict[str, tuple[int | None, ...]] = {  # of all that is ever reported; None is any length
    "steps": (),
    "loss": (),
    "client": (),
    "local_accuracy": (),
    "predicted": (None,),
    "own_data": (2,),
    "shift": (None, len(SHIFT_METRICS)),
    "features": (None, None),
    "observed.": (2,),  # and a name
}

INTEGER_METRICS = ("client", "predicted")  # the whole numbers among them

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class ReportRequest:
    """What clients are asked to report. Each costs what its comment says, for every participant of a round."""

    predictions: bool = False  # what its trained model says of the test set: a pass over the test set
    own_data: bool = False  # accuracy of the received and the trained model on its own data: two passes over it
    shift: bool = False  # distance from the received model after each epoch: epochs + 1 passes over the test set
    distillation: bool = False  # what the method's loss does, batch by batch: some arithmetic
    features: int | None = None  # the round, from 0, after which to report features of some test examples


class ClientReporter:
    """Observes one client's round."""

    def __init__(
        self, observe: ReportRequest, method: Method, f: FlatModel, r: Local, test: Examples, client: int
    ) -> None:
        self._observe, self._method, self._f, self._r, self._test = observe, method, f, r, test
        self._report: Payload = {"client": torch.tensor(client)}
        self._received = f.join(r.w, r.b)
        self._sums: Payload = {}
        self._shifts: list[Tensor] = []
        self._global = f.outputs(self._received, test) if observe.shift else None

    @torch.no_grad()
    def step(self, s: Step, r: Local) -> None:
        """Add up what the loss does to this batch."""
        if self._observe.distillation:
            for name, values in self._method.sample_metrics(s, r).items():
                pair = torch.stack([values.nansum(), (~values.isnan()).sum()]).double()
                self._sums[name] = self._sums.get(name, 0) + pair

    @torch.no_grad()
    def epoch(self, state: Tensor) -> None:
        """How far the model has gone from the received one."""
        if self._global is not None:
            self._shifts.append(_shift_metrics(self._global, self._f.outputs(state, self._test), self._test.y))

    def report(self, state: Tensor) -> Payload:
        """All that was asked for."""
        out = dict(self._report)
        if self._observe.predictions or self._method.traits.personalised:
            score = self._f.score(state, self._test, lambda said: self._method.scoring_logits(said, self._r.down))
            out |= {"predicted": score.predicted, "local_accuracy": torch.tensor(score.accuracy)}
        if self._observe.own_data:
            before, after = (self._f.score(w, self._r.data).accuracy for w in (self._received, state))
            out["own_data"] = torch.tensor([before, after], dtype=torch.float64)
        if self._shifts:
            out["shift"] = torch.stack(self._shifts)
        if self._observe.features == self._r.t:
            out["features"] = self._f.outputs(state, feature_examples(self._test)).h
        return out | {f"observed.{name}": pair for name, pair in self._sums.items()}


def find_report_error(
    report: Payload, client: int | None, observe: ReportRequest, test: Examples, classes: int
) -> Reason | None:
    """Return the reason why probes cannot read a report from another machine, or None if they can."""
    if not report:  # of a task without training
        return None
    needed = ["predicted"] * observe.predictions + ["own_data"] * observe.own_data + ["shift"] * observe.shift
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
            what = f"{name[:40]} in the report is {t.dtype} {list(t.shape)}, expected {_form(name, shape)}"
            return Reason("reply.wrong_shape", what)
    said = report.get("predicted", test.y)
    if len(said) != len(test) or not ((said >= 0) & (said < classes)).all():
        what = f"predicted in the report must be one of {classes} classes for each of the {len(test)} test examples"
        return Reason("reply.invalid_value", what)
    if not 0 <= (accuracy := float(report.get("local_accuracy", 0))) <= 1:
        return Reason("reply.invalid_value", f"local_accuracy in the report = {accuracy:g}: it must be from 0 to 1")
    if int(report.get("client", client or 0)) != (client or 0):
        return Reason("reply.wrong_client", f"the report is of client {int(report['client'])}")
    return None


def _form(name: str, shape: tuple[int | None, ...]) -> str:
    lengths = ", ".join("any" if n is None else str(n) for n in shape)
    return f"{'int64' if name in INTEGER_METRICS else 'float32 or float64'} [{lengths}]"


def feature_examples(test: Examples) -> Examples:
    """At most a thousand of the examples, evenly spread."""
    return test.subset(torch.arange(0, len(test), -(-len(test) // MAX_FEATURE_EXAMPLES)))


def _shift_metrics(was: Output, now: Output, y: Tensor) -> Tensor:
    """By the names of SHIFTS: mean KL(was || now) of the outputs, mean L2 distance of the features, accuracy now."""
    kl = F.kl_div(F.log_softmax(now.z, -1), F.log_softmax(was.z, -1), reduction="batchmean", log_target=True)
    far = (now.h.flatten(1) - was.h.flatten(1)).norm(dim=1).mean()
    right = (now.z.argmax(-1).cpu() == y).double().mean().to(kl.device)
    return torch.stack([kl.double(), far.double(), right])
