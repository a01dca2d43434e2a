"""Metrics against scikit-learn's own functions and against numbers counted by hand."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from fedrecall.core.metrics import METRICS, Metric, compute_metrics, probabilities
from fedrecall.errors import UserError

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 7, size=60)
P = RNG.dirichlet(np.ones(7), size=60)
GUESS = P.argmax(1)

EXPECTED = {
    "accuracy": sklearn_metrics.accuracy_score(Y, GUESS),
    "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(Y, GUESS),
    "macro_f1": sklearn_metrics.f1_score(Y, GUESS, average="macro"),
    "weighted_f1": sklearn_metrics.f1_score(Y, GUESS, average="weighted"),
    "auroc": sklearn_metrics.roc_auc_score(Y, P, multi_class="ovr"),
    "average_precision": sklearn_metrics.average_precision_score(np.eye(7)[Y], P, average="macro"),
    "top5": sklearn_metrics.top_k_accuracy_score(Y, P, k=5),
    "log_loss": sklearn_metrics.log_loss(Y, P),
    "matthews": sklearn_metrics.matthews_corrcoef(Y, GUESS),
}


def test_every_metric_has_an_expected_value() -> None:
    assert EXPECTED.keys() == METRICS.keys()


@pytest.mark.parametrize("name", METRICS)
def test_the_values_of_scikit_learn(name: str) -> None:
    assert METRICS[name].compute(Y, P) == pytest.approx(EXPECTED[name], abs=1e-12)


def test_numbers_counted_by_hand() -> None:
    y, p = np.array([0, 0, 0, 1]), np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    assert METRICS["accuracy"].compute(y, p) == 0.75
    assert METRICS["balanced_accuracy"].compute(y, p) == pytest.approx((2 / 3 + 1) / 2)
    assert METRICS["macro_f1"].compute(y, p) == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert METRICS["auroc"].compute(y, p) == pytest.approx(2 / 3), "of three pairs one is in the wrong order"


@pytest.mark.parametrize("name", METRICS)
def test_no_examples_and_one_class(name: str) -> None:
    metric = METRICS[name]
    assert math.isnan(metric.compute(Y[:0], P[:0]))
    alone = metric.compute(np.zeros(5, dtype=np.int64), P[:5])
    assert math.isnan(alone) == (name in ("auroc", "average_precision")), "they need two classes"


def test_classes_that_are_not_among_the_labels_are_left_out_of_areas() -> None:
    two = Y < 2
    expected = np.mean([sklearn_metrics.roc_auc_score(Y[two] == c, P[two, c]) for c in (0, 1)])
    assert METRICS["auroc"].compute(Y[two], P[two]) == pytest.approx(expected)


def test_logits_become_probabilities() -> None:
    z, y = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 4
    assert probabilities(z) == pytest.approx(z.double().softmax(1).numpy())
    found = compute_metrics([METRICS["accuracy"], METRICS["log_loss"]], y, z)
    assert found["accuracy"] == pytest.approx(float((z.argmax(1) == y).double().mean()))
    assert found["log_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(z.double(), y)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_have_no_metric(value: float) -> None:
    z, y = torch.zeros(12, 6), torch.arange(12) % 6
    z[3, 2] = value
    assert all(math.isnan(found) for found in compute_metrics(list(METRICS.values()), y, z).values())


def test_a_function_that_returns_no_number_is_an_error() -> None:
    with pytest.raises(UserError) as error:
        Metric("mine", lambda y, p: "high").compute(Y, P)
    assert (error.value.code, error.value.key) == ("metric.not_a_number", "run.metrics")
