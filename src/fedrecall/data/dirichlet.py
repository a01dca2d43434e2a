"""The draws behind the Dirichlet laws: counts first, in log space, many attempts at a time.

At 100 clients, 10 classes and alpha = 0.05, one attempt in 30,000 gives every client 10 samples. An attempt is
therefore a matrix of class counts, with no indices, and a batch of attempts is one array.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrecall.errors import UserError

Ints = NDArray[np.int64]

Floats = NDArray[np.float64]

MAX_BATCH = 256  # attempts at a time, at most: larger batches leave the cache

MAX_CELLS = 1_000_000  # attempts x clients at a time, at most: bounds the memory

MAX_WORK = 300_000_000  # attempts x clients x classes in all, at most: bounds the time, to about 15 s

GIVE_UP_ABOVE = 30.0  # clients too small, on average: see `accepted_counts`


class DirichletDraw(NamedTuple):
    """The counts that were accepted, or the best of those that were not."""

    counts: Ints  # samples by class and client [C, N]
    num_small_clients: int  # clients below the minimum size
    attempts: int  # draws made


def require_positive(field: str, value: float) -> None:
    """Refuse a hyper-parameter of a partition that is zero, negative, infinite or not a number."""
    if not (isfinite(value) and value > 0):
        key = f"federation.partition.{field}"
        raise UserError("config.invalid_value", f"{key} = {value}: not a positive number", key, "use a value above 0")


def log_gamma(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Logarithms of Gamma(alpha) variates; their softmax is a draw from a symmetric Dirichlet.

    Gamma(a) = Gamma(a+1) U^(1/a), and -log U is exponential: no alpha underflows, where the plain variates of
    a = 0.001 are mostly zero and their proportions 0/0.
    """
    alpha = max(alpha, 1e-99)  # below, the quotient overflows; one client takes all long before
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha


def counts_from_log_weights(classes: Ints, logs: Iterable[Floats], balance: bool) -> Ints:
    """Class counts [A, C, N] of A attempts, from each class's size and log-weights [A, N], class by class in order."""
    n = int(classes.sum())
    held: Ints = np.zeros((), dtype=np.int64)
    counts = []
    for size, log_w in zip(classes, logs, strict=True):
        # Renormalising what the cap leaves is a softmax over the others. There always are some: if all clients held
        # n/N samples, nothing would be left to share out.
        log_p = np.where(held * log_w.shape[1] >= n, -np.inf, log_w) if balance else log_w
        # Cumulated before it is normalised, so that the proportions end in exactly 1. The other way round, as in the
        # released code, rounding hands the last client a sample of a class that it was capped from.
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
    """Return the first draw that gives every client `min_size` samples; if there is none, the one that lacks least.

    If `m` clients are too small on average, a draw is accepted with probability of at most about exp(-m), because
    the sizes of clients that share a sum are negatively associated. So a mean above `HOPELESS` ends the search.
    """
    best: DirichletDraw | None = None
    least, made, short_so_far = 0, 0, 0
    most = min(attempts, max(1, MAX_WORK // (clients * len(classes))))
    for size in _batches(most, max(1, min(MAX_BATCH, MAX_CELLS // clients))):
        logs = (log_gamma(alpha, (size, clients), rng) for _ in classes)
        counts = counts_from_log_weights(classes, logs, balance)
        missing = np.maximum(min_size - counts.sum(axis=1), 0)
        short = np.count_nonzero(missing, axis=1)
        if (short == 0).any():
            first = int(np.argmin(short))
            return DirichletDraw(counts[first], 0, made + first + 1)
        i = int(np.argmin(missing.sum(axis=1)))
        if best is None or missing[i].sum() < least:
            best, least = DirichletDraw(counts[i].copy(), int(short[i]), 0), int(missing[i].sum())
        made += size
        short_so_far += int(short.sum())
        if made >= 20 and short_so_far > GIVE_UP_ABOVE * made:
            break
    assert best is not None  # there is at least one attempt
    return best._replace(attempts=made)


def enforce_min_size(counts: Ints, min_size: int) -> int:
    """Bring each client of counts [C, N] to `min_size`, in place, and return how many samples moved.

    They come from whoever is the largest client at the time, of its most frequent class.
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
            gift = min(need, int(counts[c, donor]), -size - min_size)
            counts[c, donor] -= gift
            counts[c, client] += gift
            need, moved = need - gift, moved + gift
            if -size - gift > min_size:
                heappush(largest, (size + gift, donor))
    return moved


def _batches(attempts: int, largest: int) -> Iterator[int]:
    """Batch sizes that grow, because the first attempt mostly succeeds."""
    size = 1
    while attempts > 0:
        yield min(size, attempts)
        attempts -= size
        size = min(4 * size, largest)
