"""Metrics of classification, computed by scikit-learn from true labels and predicted probabilities."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedrecall.errors import UserError

MetricFunction = Callable[[NDArray[np.int64], NDArray[np.float64]], float]
"""Function of the true labels [n] and the predicted probabilities [n, K]. NaN: not defined for these examples."""

CONFUSION = "confusion"  # in run.metrics: the confusion matrix, which is not a number


class Metric(NamedTuple):
    """A number that measures predictions."""

    name: str
    function: MetricFunction
    greater_is_better: bool = True
    low: float = -math.inf  # least possible value
    high: float = math.inf  # greatest possible value

    def compute(self, y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
        """Return the metric of some examples; NaN where it is not defined."""
        with warnings.catch_warnings():  # of classes that are not among the labels or the predictions
            warnings.simplefilter("ignore")
            value: Any = self.function(y, p) if len(y) else math.nan
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UserError(
                "metric.not_a_number",
                f"run.metrics: {self.name} returned {type(value).__name__}, not a number",
                "run.metrics",
                "return a float, NaN where the metric is not defined",
            ) from None


def probabilities(z: Tensor) -> NDArray[np.float64]:
    """Return the probabilities [n, K] of logits [n, K]."""
    array: NDArray[np.float64] = F.softmax(z.double(), -1).cpu().numpy()
    return array


def compute_metrics(metrics: Sequence[Metric], y: Tensor, z: Tensor) -> dict[str, float]:
    """Return the metrics of logits by name; NaN where a metric is not defined, as all are for logits with NaN."""
    labels, p = y.cpu().numpy(), probabilities(z)
    if not np.isfinite(p).all():
        return {metric.name: math.nan for metric in metrics}
    return {metric.name: metric.compute(labels, p) for metric in metrics}


def _accuracy(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    return float((p.argmax(1) == y).mean())


def _balanced_accuracy(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import balanced_accuracy_score

    return float(balanced_accuracy_score(y, p.argmax(1)))


def _macro_f1(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(y, p.argmax(1), average="macro", zero_division=0))


def _weighted_f1(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(y, p.argmax(1), average="weighted", zero_division=0))


def _over_classes(score: Callable[..., Any], y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    """Average a binary score over the classes among the labels, each against the others; two classes are one score."""
    present = np.unique(y)
    if len(present) < 2:
        return math.nan
    classes = [1] if p.shape[1] == 2 else present
    return float(np.mean([score(y == c, p[:, c]) for c in classes]))


def _auroc(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import roc_auc_score

    return _over_classes(roc_auc_score, y, p)


def _average_precision(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import average_precision_score

    return _over_classes(average_precision_score, y, p)


def _top5(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import top_k_accuracy_score

    return float(top_k_accuracy_score(y, p, k=5, labels=np.arange(p.shape[1])))


def _log_loss(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(y, p, labels=np.arange(p.shape[1])))


def _matthews(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(y, p.argmax(1)))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _accuracy, low=0, high=1),
        Metric("balanced_accuracy", _balanced_accuracy, low=0, high=1),
        Metric("macro_f1", _macro_f1, low=0, high=1),
        Metric("weighted_f1", _weighted_f1, low=0, high=1),
        Metric("auroc", _auroc, low=0, high=1),
        Metric("average_precision", _average_precision, low=0, high=1),
        Metric("top5", _top5, low=0, high=1),
        Metric("log_loss", _log_loss, greater_is_better=False, low=0),
        Metric("matthews", _matthews, low=-1, high=1),
    )
}
"""Values of `run.metrics`, besides `confusion` and functions of the user."""
