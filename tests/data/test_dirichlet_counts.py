"""Dirichlet counts: the cuts of the published code, the papers' statistics, termination for every alpha and seed."""

import logging

import numpy as np
import pytest

from fedrecall.data.dirichlet_counts import counts_from_log_weights, draw_counts, enforce_min_size, log_gamma
from fedrecall.data.partition import Partition, make_partition
from fedrecall.data.partitioners import Dirichlet, Ints

CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)


def make(partitioner: Dirichlet, labels: Ints, clients: int, seed: int = 0) -> Partition:
    return make_partition(partitioner, labels, None, clients, rng=np.random.default_rng(seed), seed=seed)


def literal(classes: Ints, gammas: np.ndarray, balance: bool) -> Ints:
    """Run NIID-Bench's loop on these gamma variates; proportions are normalised after they are cumulated."""
    clients, n = gammas.shape[1], classes.sum()
    batches: list[list[int]] = [[] for _ in range(clients)]
    counts = []
    for k, size in enumerate(classes):
        p = gammas[k] / gammas[k].sum()
        if balance:
            p = np.array([q * (len(rows) < n / clients) for q, rows in zip(p, batches, strict=True)])
        cumulated = np.cumsum(p)
        cuts = (cumulated / cumulated[-1] * size).astype(int)[:-1]
        parts = np.split(np.arange(size), cuts)
        batches = [rows + part.tolist() for rows, part in zip(batches, parts, strict=True)]
        counts.append([len(part) for part in parts])
    return np.array(counts)


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 10.0])
def test_cap_and_cut_are_those_of_the_literal_code(alpha: float, balance: bool) -> None:
    rng = np.random.default_rng(0)
    for clients, classes in [(5, [40, 3, 70, 1]), (30, [500] * 10), (2, [1, 1]), (7, [97])]:
        sizes = np.array(classes)
        logs = [log_gamma(alpha, (20, clients), rng) for _ in classes]
        ours = counts_from_log_weights(sizes, logs, balance)
        for a in range(20):
            assert (ours[a] == literal(sizes, np.exp([log[a] for log in logs]), balance)).all()


def test_log_gamma_is_the_logarithm_of_a_gamma_variate() -> None:
    rng = np.random.default_rng(0)
    for alpha in (0.05, 0.5, 3.0):
        x = np.exp(log_gamma(alpha, (200_000,), rng))
        assert x.mean() == pytest.approx(alpha, rel=0.03)
        assert x.var() == pytest.approx(alpha, rel=0.1)


@pytest.mark.parametrize(
    ("alpha", "clients", "smallest", "median", "largest"),
    [
        (0.1, 100, (10, 30), (380, 460), (1_700, 3_600)),
        (0.3, 100, (40, 110), (490, 525), (1_000, 1_350)),
        (0.5, 100, (80, 200), (500, 530), (850, 1_150)),
        (0.5, 10, (1_500, 3_400), (4_800, 5_700), (6_000, 8_800)),
    ],
)
def test_typical_sizes(
    alpha: float, clients: int, smallest: tuple[int, int], median: tuple[int, int], largest: tuple[int, int]
) -> None:
    sizes = np.array([np.sort(make(Dirichlet(alpha), CIFAR10, clients, seed).sizes) for seed in range(8)])
    for (low, high), value in [(smallest, sizes[:, 0]), (median, np.median(sizes, axis=1)), (largest, sizes[:, -1])]:
        assert low <= value.mean() <= high


@pytest.mark.parametrize(
    ("labels", "classes", "alpha", "rows", "majority"),
    [(CIFAR10, 10, 0.1, 4.2, 1.9), (CIFAR10, 10, 0.5, 8.0, 3.2), (CIFAR100, 100, 0.1, 32.0, 16.0)],
)
def test_fedlmds_majority_statistics(labels: Ints, classes: int, alpha: float, rows: float, majority: float) -> None:
    counts = [make(Dirichlet(alpha), labels, 100, seed).counts(labels, classes) for seed in range(6)]
    assert np.mean([(c > 0).sum(axis=1).mean() for c in counts]) == pytest.approx(rows, rel=0.08)
    above = [(c > c.sum(axis=1, keepdims=True) / classes).sum(axis=1) for c in counts]
    assert np.mean(above) == pytest.approx(majority, rel=0.08)


def test_a_hundred_clients_at_005_end_without_repair() -> None:
    p = make(Dirichlet(0.05), CIFAR10, 100)
    assert p.sizes.min() >= 10
    assert p.notes == ()


@pytest.mark.parametrize("alpha", [1e-30, 1e-6, 1e-3, 1e6, 1e30])
@pytest.mark.parametrize("clients", [1, 3, 10, 100])
def test_every_alpha_ends(alpha: float, clients: int) -> None:
    p = make(Dirichlet(alpha, attempts=2_000), CIFAR10, clients)
    assert p.sizes.min() >= 10
    assert p.sizes.sum() == 50_000


def test_one_class_ends() -> None:
    assert make(Dirichlet(1e-6), np.zeros(100, dtype=np.int64), 10).sizes.sum() == 100
    assert make(Dirichlet(0.5, min_size=1), np.arange(20), 20).sizes.tolist() == [1] * 20


def test_repair_moves_from_the_largest_and_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        p = make(Dirichlet(1e-6), CIFAR10, 100)
    (note,) = p.notes
    assert "100 clients" in note
    assert note in caplog.text
    assert p.sizes.min() == 10
    counts = np.array([[50, 0, 1, 0], [7, 9, 0, 0]])
    before = counts.copy()
    assert enforce_min_size(counts, 9) == 17
    assert counts.sum(axis=1).tolist() == before.sum(axis=1).tolist()
    assert counts.sum(axis=0).tolist() == [40, 9, 9, 9]
    assert counts[1].tolist() == [7, 9, 0, 0]


def test_infeasible_draws_end_early_and_feasible_ones_do_not() -> None:
    options = {"min_size": 10, "balance": True, "attempts": 300_000}
    sizes = np.full(10, 5000)
    hopeless = draw_counts(sizes, 100, np.random.default_rng(0), alpha=1e-4, **options)
    assert hopeless.num_small_clients > 0
    assert hopeless.attempts < 100
    assert draw_counts(sizes, 100, np.random.default_rng(0), alpha=0.06, **options).num_small_clients == 0
