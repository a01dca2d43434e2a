"""Scores of clients on their held-out examples: replies, their validation, and the summary of all clients."""

import math

import pytest
import torch

from fedrecall.core.evaluation import (
    EvaluationRequest,
    collect_scores,
    confusion_counts,
    find_evaluation_error,
    score_part,
)
from fedrecall.core.metrics import METRICS, Metric
from fedrecall.core.types import Payload, Reply

REQUEST = EvaluationRequest((METRICS["accuracy"], METRICS["auroc"], METRICS["log_loss"]))
PARTS = ("client_test",)


def reply(client: int, n: int, *values: float) -> Reply:
    return Reply({"client_test": torch.tensor([n, *values], dtype=torch.float64)}, n, {}, {}, client)


def test_a_score_has_the_number_of_examples_and_the_metrics() -> None:
    z = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    n, accuracy, auroc, loss = score_part(REQUEST, torch.tensor([0, 1, 1]), z).tolist()
    assert (n, accuracy) == (3, pytest.approx(2 / 3))
    assert auroc == pytest.approx(0.75), "one of two pairs is a tie"
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(z.double(), torch.tensor([0, 1, 1]))))
    assert math.isnan(score_part(REQUEST, torch.tensor([1]), z[:1])[2]), "one class"


def test_mean_weighted_mean_and_worst_tenth() -> None:
    replies = [reply(c, 10 + c, c / 20, math.nan if c % 2 else 0.5, 3 - c / 10) for c in reversed(range(20))]
    scores = collect_scores(replies, PARTS, REQUEST)["client_test"]
    found = scores.summary(REQUEST.metrics)
    assert found["clients"] == list(range(20))
    assert found["examples"] == list(range(10, 30))
    accuracy = found["accuracy"]
    assert accuracy["mean"] == pytest.approx(sum(c / 20 for c in range(20)) / 20)
    expected = sum(c / 20 * (10 + c) for c in range(20)) / sum(10 + c for c in range(20))
    assert accuracy["weighted"] == scores.weighted("accuracy") == pytest.approx(expected)
    assert accuracy["worst_tenth"] == pytest.approx((0 + 1 / 20) / 2)
    assert found["log_loss"]["worst_tenth"] == pytest.approx((3 + 2.9) / 2), "the largest losses are the worst"
    assert found["auroc"]["undefined"] == 10
    assert found["auroc"]["mean"] == 0.5
    assert found["auroc"]["by_client"][:2] == [0.5, None]


def test_clients_without_such_examples_are_left_out() -> None:
    nothing = reply(1, 0, math.nan, math.nan, math.nan)
    scores = collect_scores([nothing, reply(0, 4, 0.25, math.nan, 1.0)], PARTS, REQUEST)["client_test"]
    assert (scores.clients, scores.sizes) == ([0], [4])
    found = scores.summary(REQUEST.metrics)["auroc"]
    assert (found["mean"], found["worst_tenth"], found["undefined"]) == (None, None, 1)


def test_a_confusion_matrix_counts_true_and_predicted_classes() -> None:
    counts = confusion_counts(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2]), 3)
    assert counts.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    "up",
    [
        {},
        {"client_test": torch.zeros(4)},
        {"client_test": torch.zeros(3, dtype=torch.float64)},
        {"client_test": torch.tensor([-1.0, 0, 0, 0], dtype=torch.float64)},
        {"client_test": torch.tensor([math.nan, 0, 0, 0], dtype=torch.float64)},
        {"client_test": torch.tensor([1.0, math.inf, 0, 0], dtype=torch.float64)},
        {"client_test": torch.zeros(4, dtype=torch.float64), "w": torch.zeros(1)},
    ],
)
def test_a_reply_of_another_form_is_an_error(up: Payload) -> None:
    assert find_evaluation_error(up, PARTS, REQUEST, 2) is not None


@pytest.mark.parametrize(
    ("n", "accuracy", "auroc", "loss"),
    [
        (1.7e308, 1, 1, 0),
        (1e300, 1e300, 1, 0),
        (0.3, 1, 1, 0),
        (10**9 + 1, 1, 1, 0),
        (3, 1.7e308, 1, 0),
        (3, 1.01, 1, 0),
        (3, -0.01, 1, 0),
        (3, 1, 1.01, 0),
        (3, 1, 1, 1.1e30),
        (3, 1, 1, -0.01),
    ],
)
def test_scores_that_are_not_possible_are_an_error(n: float, accuracy: float, auroc: float, loss: float) -> None:
    up = {"client_test": torch.tensor([n, accuracy, auroc, loss], dtype=torch.float64)}
    assert find_evaluation_error(up, PARTS, REQUEST, 2) is not None


def test_possible_scores_have_finite_means() -> None:
    mine = Metric("mine", lambda y, p: 0.0)
    request = EvaluationRequest((METRICS["accuracy"], METRICS["matthews"], mine))
    values = (1 + 1e-12, -1, -1e30)  # the accuracy is rounded, a function of the user has any value
    replies = [
        Reply({"client_test": torch.tensor([10**9, *values], dtype=torch.float64)}, 1, {}, {}, c) for c in (0, 1)
    ]
    assert all(find_evaluation_error(reply.up, PARTS, request, 2) is None for reply in replies)
    found = collect_scores(replies, PARTS, request)["client_test"].summary(request.metrics)
    assert found["mine"]["weighted"] == pytest.approx(-1e30)


@pytest.mark.parametrize("count", [-1, 10**9 + 1])
def test_counts_that_are_not_possible_are_an_error(count: int) -> None:
    up = {
        "client_test": torch.tensor([3, 1, 1, 0], dtype=torch.float64),
        "confusion": torch.tensor([[3, 0], [0, count]]),
    }
    assert find_evaluation_error(up, PARTS, REQUEST._replace(confusion=True), 2) is not None


def test_a_reply_of_the_requested_form_is_valid() -> None:
    up = {"client_test": torch.tensor([3, 1, math.nan, 0.5], dtype=torch.float64)}
    assert find_evaluation_error(up, PARTS, REQUEST, 2) is None
    with_counts = REQUEST._replace(confusion=True)
    assert find_evaluation_error(up, PARTS, with_counts, 2) is not None, "the matrix is missing"
    counts = {"confusion": torch.zeros(2, 2, dtype=torch.int64)}
    assert find_evaluation_error(up | counts, PARTS, with_counts, 2) is None
