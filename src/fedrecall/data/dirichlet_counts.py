"""Draws of the Dirichlet partitioner: class counts in log space, many attempts at a time.

At 100 clients, 10 classes and alpha = 0.05, one attempt in 30,000 gives every client 10 samples. An attempt is
therefore a matrix of class counts, with no indices, and a batch of attempts is one array.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Floats = NDArray[np.float64]

MAX_BATCH = 256  # attempts at a time: larger batches do not fit the CPU cache

MAX_CELLS = 1_000_000  # attempts x clients at a time: bounds the memory

MAX_WORK = 300_000_000  # attempts x clients x classes in total: bounds the time, to about 15 s

GIVE_UP_ABOVE = 30.0  # mean number of clients that are too small: see `draw_counts`


class DirichletDraw(NamedTuple):
    """The first accepted counts, or the best ones if no draw was accepted."""

    counts: Ints  # samples by class and client [C, N]
    num_small_clients: int  # clients below the minimum size
    attempts: int  # number of draws


def log_gamma(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Draw logarithms of Gamma(alpha) variates; their softmax is a draw from a symmetric Dirichlet.

    Gamma(a) = Gamma(a+1) U^(1/a), and -log U is exponential. In log space no alpha underflows; the variates themselves
    are mostly zero at a = 0.001, and their proportions 0/0.
    """
    alpha = max(alpha, 1e-99)  # below, the quotient overflows; all samples are with one client long before
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha


def counts_from_log_weights(classes: Ints, logs: Iterable[Floats], balance: bool) -> Ints:
    """Return class counts [A, C, N] of A attempts from each class's size and log-weights [A, N], class by class."""
    n = int(classes.sum())
    held: Ints = np.zeros((), dtype=np.int64)
    counts = []
    for size, log_w in zip(classes, logs, strict=True):
        # Renormalising over the clients below the cap is a softmax over them. There is always one: if all clients held
        # n/N samples, no sample would be left.
        log_p = np.where(held * log_w.shape[1] >= n, -np.inf, log_w) if balance else log_w
        # Cumulated before normalisation, so that the proportions end in exactly 1. In the reverse order, as in the
        # released code, rounding gives the last client a sample of a class although it is above the cap.
        cumulated = np.cumsum(np.exp(log_p - log_p.max(axis=1, keepdims=True)), axis=1)
        cuts = (cumulated / cumulated[:, -1:] * size).astype(np.int64)
        cuts[:, -1] = size
        counts.append(np.diff(cuts, axis=1, prepend=0))
        held = held + counts[-1]
    return np.stack(counts, axis=1)


def draw_counts(
    classes: Ints,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    min_size: int,
    balance: bool,
    attempts: int,
) -> DirichletDraw:
    """Return the first draw that gives every client `min_size` samples, else the one with the fewest missing samples.

    If m clients are too small on average, a draw is accepted with probability of at most about exp(-m), because sizes
    with a fixed sum are negatively associated. Therefore the search ends at a mean above `GIVE_UP_ABOVE`.
    """
    best: DirichletDraw | None = None
    fewest_missing, num_draws, total_small = 0, 0, 0
    max_draws = min(attempts, max(1, MAX_WORK // (clients * len(classes))))
    for size in _batch_sizes(max_draws, max(1, min(MAX_BATCH, MAX_CELLS // clients))):
        logs = (log_gamma(alpha, (size, clients), rng) for _ in classes)
        counts = counts_from_log_weights(classes, logs, balance)
        missing = np.maximum(min_size - counts.sum(axis=1), 0)
        num_small = np.count_nonzero(missing, axis=1)
        if (num_small == 0).any():
            first = int(np.argmin(num_small))
            return DirichletDraw(counts[first], 0, num_draws + first + 1)
        i = int(np.argmin(missing.sum(axis=1)))
        if best is None or missing[i].sum() < fewest_missing:
            best, fewest_missing = DirichletDraw(counts[i].copy(), int(num_small[i]), 0), int(missing[i].sum())
        num_draws += size
        total_small += int(num_small.sum())
        if num_draws >= 20 and total_small > GIVE_UP_ABOVE * num_draws:
            break
    assert best is not None  # there is at least one draw
    return best._replace(attempts=num_draws)


def enforce_min_size(counts: Ints, min_size: int) -> int:
    """Bring each client of counts [C, N] to `min_size`, in place, and return the number of samples moved.

    Each sample is moved from the client that is the largest at that time, from its most frequent class.
    """
    sizes = counts.sum(axis=0)
    largest = [(-int(size), client) for client, size in enumerate(sizes) if size > min_size]
    heapify(largest)
    moved = 0
    for client in np.flatnonzero(sizes < min_size):
        need = min_size - int(sizes[client])
        while need:
            size, donor = heappop(largest)
            c = int(counts[:, donor].argmax())
            amount = min(need, int(counts[c, donor]), -size - min_size)
            counts[c, donor] -= amount
            counts[c, client] += amount
            need, moved = need - amount, moved + amount
            if -size - amount > min_size:
                heappush(largest, (size + amount, donor))
    return moved


def _batch_sizes(draws: int, largest: int) -> Iterator[int]:
    """Yield growing batch sizes, because the first draw is usually accepted."""
    size = 1
    while draws > 0:
        yield min(size, draws)
        draws -= size
        size = min(4 * size, largest)
