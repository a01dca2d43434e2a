"""Rounds whose server keeps teachers or prototypes, on the plain module of reference_rounds."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from support import reference as ref
from support.reference_rounds import Loss, Plain, State, fedavg, mixture


def distilled(p: Plain, term: Callable[[Tensor, Tensor, Tensor, State, int], Tensor]) -> list[State]:
    """Run FedAvg with a loss (z, zg, y, state, client) of the received model's logits, in evaluation mode."""

    def loss(now: State, k: int, t: int) -> Loss:
        zg = p.outputs(now["w"], now["b"], p.clients[k][0])[1]
        return lambda rows, w, h, z, y: term(z, zg[rows], y, now, k)

    return fedavg(p, loss)


def fedgkd(p: Plain, M: int, coef: float, T: float, aux: tuple[Tensor, Tensor] | None = None) -> list[State]:
    """Run FedGKD; with auxiliary data the vote variant."""
    out, aggregates = [p.start()], []
    for t in range(len(p.cohorts)):
        now, done = out[-1], []
        last = aggregates[-M:]
        if aux is None:
            teachers = [tuple(sum(parts) / len(last) for parts in zip(*last, strict=True))] if last else []
            votes = [1.0]
        else:
            teachers = last
            scores = [torch.exp(-F.cross_entropy(p.outputs(*m, aux[0])[1], aux[1])) for m in last]
            votes = [float(s / sum(scores)) for s in scores]
        for k in p.participants(t):
            logits = [p.outputs(*m, p.clients[k][0])[1] for m in teachers]

            def loss(rows, w, h, z, y, logits=logits, votes=votes):
                return ref.fedgkd(z, [s[rows] for s in logits], votes, y, coef, T) if logits else F.cross_entropy(z, y)

            done.append(p.train(now, k, t, loss)[:2])
        w, b = (mixture(part, p.sizes(t)) for part in zip(*done, strict=True))
        aggregates.append((w, b))
        out.append({"w": w, "b": b})
    return out[1:]


def fedcsd(
    p: Plain,
    mu: float,
    tau: float,
    alpha: float,
    *,
    use_tma: bool = True,
    local: bool = False,
    by_batch: bool = False,
    **options: object,
) -> list[State]:
    """Run FedCSD. `local`: a client's prototypes only; `by_batch`: the teacher has batch statistics."""
    start = p.start()
    xi, out = (start["w"], start["b"]), [start]
    for t in range(len(p.cohorts)):
        now, done = out[-1], []
        teacher = xi if use_tma else (now["w"], now["b"])
        rows_of = {
            k: ref.class_means(p.outputs(*teacher, p.clients[k][0], by_batch=by_batch)[1], p.clients[k][1])
            for k in p.participants(t)
        }
        P = _prototypes(list(rows_of.values()))
        for k in p.participants(t):
            mine = _prototypes([rows_of[k]]) if local else P

            def loss(rows, w, h, z, y, k=k, teacher=teacher, mine=mine):
                zxi = p.outputs(*teacher, p.clients[k][0][rows], by_batch=by_batch)[1]
                return ref.fedcsd(z, zxi, y, mine, mu, tau, **options)

            done.append(p.train(now, k, t, loss)[:2])
        w, b = (mixture(part, p.sizes(t)) for part in zip(*done, strict=True))
        out.append({"w": w, "b": b, "teacher": teacher, "P": P})
        xi = (alpha * xi[0] + (1 - alpha) * w, alpha * xi[1] + (1 - alpha) * b)
    return out[1:]


def _prototypes(rows: list[dict[int, Tensor]]) -> Tensor:
    """Return the mean over the clients that have each class; 0 if there is none."""
    P = torch.zeros(3, 3, dtype=torch.float64)
    for c in range(3):
        present = [r[c] for r in rows if c in r]
        if present:
            P[c] = sum(present) / len(present)
    return P


def fedproto(
    p: Plain, lam: float, *, share: bool = True, by_count: bool = False, last_epoch: bool = False, drop: bool = False
) -> list[State]:
    out: list[State] = [p.start() | {"G": {}, "own": {}}]
    for t in range(len(p.cohorts)):
        now, done, present = out[-1], [], []
        personal = dict(now["own"])
        for k in p.participants(t):
            start = now if share else personal.get(k, out[0])

            def loss(rows, w, h, z, y, G=now["G"]):
                return ref.fedproto(z, h, y, G, lam)

            batches_seen: list = []
            w, b, _ = p.train(start, k, t, loss, batches_seen=batches_seen)
            x, y = p.clients[k]
            h, labels = p.outputs(w, b, x)[0], y
            if last_epoch:
                h, labels = torch.cat([a for a, _ in batches_seen]), torch.cat([c for _, c in batches_seen])
            present.append((ref.class_means(h, labels), y))
            done.append((w, b))
            personal[k] = {"w": w, "b": b}
        G = {} if drop else dict(now["G"])
        for c in range(3):
            rows = [(m[c], int((y == c).sum()) if by_count else 1) for m, y in present if c in m]
            if rows:
                G[c] = mixture([r for r, _ in rows], [n for _, n in rows])
        w, b = (mixture(part, p.sizes(t)) for part in zip(*done, strict=True))
        out.append(({"w": w, "b": b} if share else {"w": now["w"], "b": now["b"]}) | {"G": G, "own": personal})
    return out[1:]
