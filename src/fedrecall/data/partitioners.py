"""Partitioners: frozen dataclasses whose fields are their configuration.

`assign` returns the client of every sample (-1: unused), so that no sample has two. Letters: n samples, N clients,
C classes that occur in the labels.
"""

from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass
from math import gcd
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedrecall.constraints import PositiveFloat, PositiveInt, check_constraints
from fedrecall.data.dirichlet_counts import draw_counts, enforce_min_size, log_gamma
from fedrecall.errors import UserError

Ints = NDArray[np.int64]

GroupIds = NDArray[np.generic]  # numbers or names


class Assignment(NamedTuple):
    """The client of each sample, and notes for the manifest."""

    owner: Ints  # client of each sample, -1: unused [n]
    notes: tuple[str, ...] = ()  # deviations from the partitioner's rule


@runtime_checkable
class Partitioner(Protocol):
    """Interface of a rule that assigns samples to clients; any dataclass with this method implements it."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def assign(self, labels: Ints, groups: GroupIds | None, clients: int, rng: np.random.Generator) -> Assignment:
        """Return the client of each sample, from labels [n] and, if the data has them, groups [n]."""
        ...


class _Checked:
    """Base of the partitioners whose fields have bounds."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.partition")


@dataclass(frozen=True)
class Iid:
    """Equal random split: sizes differ by one at most."""

    def assign(self, labels: Ints, groups: GroupIds | None, clients: int, rng: np.random.Generator) -> Assignment:
        """Cut a random permutation of the samples into nearly equal parts."""
        return Assignment(_owners(rng.permutation(len(labels)), even_sizes(len(labels), clients)))


@dataclass(frozen=True)
class Dirichlet(_Checked):
    """Label skew: each class is divided by Dirichlet proportions, with a cap on client sizes.

    "Model-Contrastive Federated Learning", Li, He, Song, CVPR 2021, and "Federated Learning on Non-IID Data Silos: An
    Experimental Study" (NIID-Bench), Li, Diao, Chen, He, ICDE 2022; the "lda" of FedNTD and FedLMD.
    """

    alpha: PositiveFloat = 0.5
    """Concentration (the papers' beta): small values give skewed clients, large ones IID clients."""
    min_size: PositiveInt = 10
    """Minimum number of samples per client. Draws are repeated until every client reaches it."""
    balance: bool = True
    """Exclude a client from the remaining classes once it has n/N samples or more."""
    attempts: PositiveInt = 300_000
    """Maximum number of draws. After it, the best draw is repaired by moving samples."""

    def assign(self, labels: Ints, groups: GroupIds | None, clients: int, rng: np.random.Generator) -> Assignment:
        """Draw class counts until all clients are large enough, then draw the samples."""
        _require_min_size(self.min_size, clients, len(labels))
        rows = _rows_by_class(labels)
        sizes = np.array([len(r) for r in rows], dtype=np.int64)
        draw = draw_counts(sizes, clients, rng, **asdict(self))
        notes: tuple[str, ...] = ()
        if draw.num_small_clients:
            moved = enforce_min_size(draw.counts, self.min_size)
            notes = (
                f"none of {draw.attempts} draws gave each of {clients} clients {self.min_size} samples: the best was"
                f" repaired by moving {moved} samples from the largest clients to {draw.num_small_clients} small ones",
            )
        owner = np.empty(len(labels), dtype=np.int64)
        for r, counts in zip(rows, draw.counts, strict=True):
            owner[rng.permutation(r)] = np.repeat(np.arange(clients), counts)
        return Assignment(owner, notes)


@dataclass(frozen=True)
class LabelsPerClient(_Checked):
    """Label skew `#K=k`: each client holds samples of k classes.

    "Federated Learning on Non-IID Data Silos: An Experimental Study", Li, Diao, Chen, He, ICDE 2022 (quantity-based
    label imbalance). The samples of a class that no client has stay unused; the published code fails in this case.
    """

    k: PositiveInt = 2
    """Number of classes per client."""

    def assign(self, labels: Ints, groups: GroupIds | None, clients: int, rng: np.random.Generator) -> Assignment:
        """Give client i class i mod C and k-1 others at random; the clients of a class share it evenly."""
        rows = _rows_by_class(labels)
        C = len(rows)
        if self.k > C:
            raise UserError(
                "config.invalid_value",
                f"federation.partition.k = {self.k}: the data has {C} classes",
                "federation.partition.k",
                f"use at most {C}",
            )
        priority = rng.random((clients, C))
        priority[np.arange(clients), np.arange(clients) % C] = -1.0  # the k smallest are selected: always this class
        holds = np.zeros((clients, C), dtype=bool)
        np.put_along_axis(holds, np.argpartition(priority, self.k - 1, axis=1)[:, : self.k], True, axis=1)
        owner = np.full(len(labels), -1, dtype=np.int64)
        unused = []
        for c, r in enumerate(rows):
            holders = np.flatnonzero(holds[:, c])
            if len(holders):
                owner[rng.permutation(r)] = np.repeat(holders, even_sizes(len(r), len(holders)))
            else:
                unused.append(c)
        if not unused:
            return Assignment(owner)
        names = ", ".join(str(labels[rows[c][0]]) for c in unused)
        num_unused = sum(len(rows[c]) for c in unused)
        return Assignment(owner, (f"no client has class {names}: {num_unused} samples stay unused",))


@dataclass(frozen=True)
class Shards(_Checked):
    """Label skew by sharding: s shards of one class each per client, so at most s classes, and equal sizes.

    "Communication-Efficient Learning of Deep Networks from Decentralized Data", McMahan et al., AISTATS 2017, in the
    form of "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning", Lee et al.,
    NeurIPS 2022.
    """

    s: PositiveInt = 2
    """Number of shards per client."""

    def assign(self, labels: Ints, groups: GroupIds | None, clients: int, rng: np.random.Generator) -> Assignment:
        """Cut each class, in order, into S = s N / C shards and assign all shards at random.

        The published code shuffles the multiset of labels and draws a remaining shard of each label; that is the same
        distribution, a uniformly random assignment of distinct shards.
        """
        rows = _rows_by_class(labels)
        S, rest = divmod(self.s * clients, len(rows))
        if rest:
            raise self._divisibility_error(clients, len(rows))
        assignment = np.empty(len(rows) * S, dtype=np.int64)
        assignment[rng.permutation(len(assignment))] = np.repeat(np.arange(clients), self.s)
        owner = np.empty(len(labels), dtype=np.int64)
        for r, holders in zip(rows, assignment.reshape(len(rows), S), strict=True):
            owner[r] = np.repeat(holders, even_sizes(len(r), S))
        return Assignment(owner)

    def _divisibility_error(self, clients: int, C: int) -> UserError:
        step_s, step_N = C // gcd(clients, C), C // gcd(self.s, C)
        s = max(1, round(self.s / step_s)) * step_s
        N = max(1, round(clients / step_N)) * step_N
        return UserError(
            "partition.not_divisible",
            f"federation.partition.s = {self.s}: with {clients} clients and {C} classes there are s*N/C ="
            f" {self.s * clients / C:.3g} shards per class, which is not a whole number",
            "federation.partition.s",
            f"use federation.partition.s = {s}, or federation.clients = {N}",
        )


@dataclass(frozen=True)
class Groups:
    """Whole groups per client: the writers of FEMNIST ("real"), the domains of Office-Caltech-10, any column."""

    def assign(self, labels: Ints, groups: GroupIds | None, clients: int, rng: np.random.Generator) -> Assignment:
        """Give client i group i if there are as many groups; else cut permuted groups into nearly equal parts."""
        if groups is None:
            raise UserError(
                "partition.missing_groups",
                "federation.partition = groups: the data has no group of each sample",
                "federation.partition",
                "name the column that holds it (data.client), or use another partition, such as iid or dirichlet",
            )
        values, group = np.unique(groups, return_inverse=True)
        if clients > len(values):
            raise UserError(
                "partition.too_many_clients",
                f"federation.clients = {clients}: the data has {len(values)} groups, and a client gets whole groups",
                "federation.clients",
                f"use at most {len(values)} clients",
            )
        if clients == len(values):
            return Assignment(group.astype(np.int64))
        client_of_group = _owners(rng.permutation(len(values)), even_sizes(len(values), clients))
        return Assignment(client_of_group[group])


@dataclass(frozen=True)
class Quantity(_Checked):
    """Size skew: IID labels, sizes from a symmetric Dirichlet.

    "Federated Learning on Non-IID Data Silos: An Experimental Study", Li, Diao, Chen, He, ICDE 2022 (quantity skew).
    Each client gets `min_size` samples first, and the Dirichlet divides the rest. The published code repeats the draw
    until no client is too small, which may not terminate.
    """

    alpha: PositiveFloat = 0.5
    """Concentration of the sizes: small values give unequal clients, large ones equal clients."""
    min_size: PositiveInt = 10
    """Minimum number of samples per client."""

    def assign(self, labels: Ints, groups: GroupIds | None, clients: int, rng: np.random.Generator) -> Assignment:
        """Draw the sizes, then cut a random permutation of the samples accordingly."""
        n = len(labels)
        _require_min_size(self.min_size, clients, n)
        log_p = log_gamma(self.alpha, (clients,), rng)
        cumulated = np.cumsum(np.exp(log_p - log_p.max()))
        cuts = (cumulated / cumulated[-1] * (n - clients * self.min_size)).astype(np.int64)
        return Assignment(_owners(rng.permutation(n), self.min_size + np.diff(cuts, prepend=0)))


PARTITIONERS: dict[str, type[Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "labels": LabelsPerClient,
    "shards": Shards,
    "groups": Groups,
    "quantity": Quantity,
}


def even_sizes(n: int, parts: int) -> Ints:
    """Return the sizes of `parts` nearly equal parts of n, the first ones larger by one.

    >>> even_sizes(8, 3).tolist()
    [3, 3, 2]
    """
    return np.full(parts, n // parts, dtype=np.int64) + (np.arange(parts) < n % parts)


def _owners(order: Ints, sizes: Ints) -> Ints:
    """Return the owner of each element if client i takes the next `sizes[i]` elements of the order."""
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


def _rows_by_class(labels: Ints) -> Sequence[Ints]:
    """Return the rows of each class that occurs, in the order of classes."""
    by_class = np.argsort(labels, kind="stable")
    return np.split(by_class, np.flatnonzero(np.diff(labels[by_class])) + 1)


def _require_min_size(min_size: int, clients: int, n: int) -> None:
    if clients * min_size > n:
        raise UserError(
            "partition.too_many_clients",
            f"federation.clients = {clients}: with at least {min_size} samples each they need {clients * min_size}, and"
            f" the data has {n}",
            "federation.clients",
            f"set federation.partition.min_size to at most {n // clients}, or use at most {n // min_size} clients",
        )
