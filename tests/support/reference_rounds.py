"""Complete rounds, client by client, on a plain PyTorch module: no flat weights, no hooks, no engine of fedrecall.

Only the order of the mini-batches is fedrecall's (its seeds), so that both sides see the same ones. A round's state is
a dict with the global weights `w`, the float buffers `b` and whatever the method keeps.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedrecall.core import seeds
from support import reference as ref

State = dict[str, object]
Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # (rows, w, h, z, y)


def mixture(parts: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """Return sum_k (n_k / sum n) part_k."""
    return sum(n / sum(shares) * part for part, n in zip(parts, shares, strict=True))


def momentum_norm(steps: int, rho: float) -> float:
    """Return the momentum's reach: (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)."""
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def floats(net: nn.Module) -> list[Tensor]:
    return [t for t in net.buffers() if t.is_floating_point()]


@dataclass
class Plain:
    """Clients, a network and SGD, without fedrecall."""

    net: nn.Module
    clients: Sequence[tuple[Tensor, Tensor]]
    cohorts: Sequence[Sequence[int]]
    lost: Mapping[int, Collection[int]] = field(default_factory=dict)
    lr: float = 0.1
    rho: float = 0.9
    mu: float = 0.0  # proximal term
    epochs: int = 2
    batch: int = 4
    pairs: bool = False  # batch normalisation: no batch of one
    decay: float = 1.0  # of the learning rate, per round
    adam: tuple[float, float, float] | None = None  # beta1, beta2 and epsilon, in place of SGD

    def __post_init__(self) -> None:
        self.trained, self.heard = copy.deepcopy(self.net).train(), copy.deepcopy(self.net).eval()

    def start(self) -> State:
        none = torch.zeros(0, dtype=torch.float64)
        b = torch.cat([none, *(t.flatten() for t in floats(self.net))])
        return {"w": parameters_to_vector(self.net.parameters()).detach().clone(), "b": b}

    def load(self, w: Tensor, b: Tensor, *, frozen: bool) -> nn.Module:
        net, at = self.heard if frozen else self.trained, 0
        vector_to_parameters(w, net.parameters())
        for t in floats(net):
            t.copy_(b[at : at + t.numel()].view_as(t))
            at += t.numel()
        return net

    def rate(self, t: int) -> float:
        return self.lr * self.decay**t

    def outputs(self, w: Tensor, b: Tensor, x: Tensor, *, by_batch: bool = False) -> tuple[Tensor, Tensor]:
        """Return (h, z) of a frozen model in evaluation mode, or with batch statistics."""
        with torch.no_grad():
            out = self.load(w, b, frozen=True).train(by_batch)(x)
            self.heard.eval()
            return out

    def size(self, k: int) -> int:
        return len(self.clients[k][1])

    def participants(self, t: int) -> list[int]:
        return [k for k in self.cohorts[t] if k not in self.lost.get(t, ())]

    def train(
        self,
        state: State,
        k: int,
        t: int,
        loss: Loss | None = None,
        correct: Callable[[Tensor], Tensor] = lambda g: g,
        after: Callable[[Tensor], Tensor] = lambda w: w,
        batches_seen: list | None = None,
    ) -> tuple[Tensor, Tensor, int]:
        """Return (w_k, b_k, steps)."""
        (x, y), w, b = self.clients[k], state["w"].clone(), state["b"].clone()
        rng, v, steps = seeds.generator(0, "batches", t, k), torch.zeros_like(w), 0
        square = torch.zeros_like(w)
        for epoch in range(self.epochs):
            order = torch.randperm(len(y), generator=rng)
            for rows in order.split(self.batch):
                if self.pairs and len(rows) == 1:
                    continue
                net = self.load(w, b, frozen=False)
                h, z = net(x[rows])
                live = parameters_to_vector(net.parameters())
                total = F.cross_entropy(z, y[rows]) if loss is None else loss(rows, live, h, z, y[rows])
                total = total + self.mu / 2 * ((live - state["w"]) ** 2).sum()
                g = torch.cat([s.flatten() for s in torch.autograd.grad(total, list(net.parameters()))])
                if self.adam is None:
                    v = self.rho * v + correct(g)
                    step = v
                else:
                    beta1, beta2, eps = self.adam
                    v = beta1 * v + (1 - beta1) * correct(g)
                    square = beta2 * square + (1 - beta2) * correct(g) ** 2
                    root = (square / (1 - beta2 ** (steps + 1))) ** 0.5
                    step = v / (1 - beta1 ** (steps + 1)) / (root + eps)
                w = after(w - self.rate(t) * step)
                b = torch.cat([torch.zeros(0, dtype=w.dtype), *(p.detach().flatten() for p in floats(net))])
                if batches_seen is not None and epoch == self.epochs - 1:
                    batches_seen.append((h.detach(), y[rows]))
                steps += 1
        return w, b, steps

    def sizes(self, t: int) -> list[int]:
        return [self.size(k) for k in self.participants(t)]


def fedavg(p: Plain, loss: Callable[[State, int, int], Loss] | None = None, *, weights: str = "size") -> list[State]:
    """Run FedAvg, or a method that differs in the local loss only."""
    out = [p.start()]
    for t in range(len(p.cohorts)):
        now = out[-1]
        done = [p.train(now, k, t, loss(now, k, t) if loss else None) for k in p.participants(t)]
        shares = p.sizes(t) if weights == "size" else [1] * len(done)
        out.append({"w": mixture([w for w, *_ in done], shares), "b": mixture([b for _, b, _ in done], p.sizes(t))})
    return out[1:]


def fedavgm(p: Plain, beta: float, eta: float, *, damped: bool = False, nesterov: bool = False) -> list[State]:
    out = [p.start()]
    v = torch.zeros_like(out[0]["w"])
    for t in range(len(p.cohorts)):
        now = out[-1]
        done = [p.train(now, k, t) for k in p.participants(t)]
        gap = now["w"] - mixture([w for w, *_ in done], p.sizes(t))
        v = beta * v + ((1 - beta) if damped else 1) * gap
        step = gap + beta * v if nesterov else v
        out.append({"w": now["w"] - eta * step, "b": mixture([b for _, b, _ in done], p.sizes(t)), "v": v})
    return out[1:]


def scaffold(p: Plain, mode: str, *, weights: str = "size") -> list[State]:
    out = [p.start() | {"c_k": {}}]
    out[0]["c"] = torch.zeros_like(out[0]["w"])
    for t in range(len(p.cohorts)):
        now = out[-1]
        c, c_k, done, dc = now["c"], dict(now["c_k"]), [], []
        for k in p.participants(t):
            mine = c_k.get(k, torch.zeros_like(c))
            gradients: list[Tensor] = []
            if mode == "mean":  # with Adam: c_k is the mean of the round's gradients

                def correct(
                    g: Tensor, mine: Tensor = mine, c: Tensor = c, batches_seen: list[Tensor] = gradients
                ) -> Tensor:
                    batches_seen.append(g)
                    return g - mine + c

                w, b, K = p.train(now, k, t, correct=correct)
            elif mode == "grad":
                w, b, K = p.train(now, k, t, correct=lambda g, mine=mine, c=c: g - mine + c)
                K_eff = momentum_norm(K, p.rho)
            else:
                w, b, K = p.train(now, k, t, after=lambda w, mine=mine, c=c, lr=p.rate(t): w - lr * (c - mine))
                K_eff = K
            if mode == "mean":
                new = sum(gradients) / len(gradients) if K else mine
            else:
                new = mine - c + (now["w"] - w) / (p.rate(t) * K_eff) if K else mine
            done.append((w, b))
            dc.append(new - mine)
            c_k[k] = new
        shares = p.sizes(t) if weights == "size" else [1] * len(done)
        out.append(
            {
                "w": mixture([w for w, _ in done], shares),
                "b": mixture([b for _, b in done], p.sizes(t)),
                "c": c + len(dc) / len(p.clients) * sum(dc) / len(dc),
                "c_k": c_k,
            }
        )
    return out[1:]


def fednova(p: Plain, *, ccvr: bool = False) -> list[State]:
    """Run FedNova: momentum without a proximal term, or a proximal term without momentum; `ccvr_code` as an option."""
    out, last = [p.start()], {}
    for t in range(len(p.cohorts)):
        now = out[-1]
        done = [p.train(now, k, t, correct=lambda g, d=last.get(k, 0.0): g - d) for k in p.participants(t)]
        moved = []
        for k, (w, _, tau) in zip(p.participants(t), done, strict=True):
            proximal = p.rate(t) * p.mu
            a = (1 - (1 - proximal) ** tau) / proximal if proximal else momentum_norm(tau, p.rho)
            if tau:
                moved.append((p.size(k), a, w))
            if tau and ccvr:
                last[k] = (now["w"] - w) / (p.rate(t) * a)
        total = sum(n for n, *_ in moved)
        tau_eff = sum(n / total * a for n, a, _ in moved)
        w = now["w"] - tau_eff * sum(n / total * (now["w"] - w) / a for n, a, w in moved)
        out.append({"w": w, "b": mixture([b for _, b, _ in done], p.sizes(t))})
    return out[1:]


def feddyn(p: Plain, alpha: float, *, weights: str = "uniform") -> list[State]:
    out = [p.start() | {"g": {}}]
    out[0]["h"] = torch.zeros_like(out[0]["w"])
    for t in range(len(p.cohorts)):
        now = out[-1]
        g, done = dict(now["g"]), []
        for k in p.participants(t):
            mine = g.get(k, torch.zeros_like(now["w"]))

            def loss(rows, w, h, z, y, mine=mine, now=now):
                return F.cross_entropy(z, y) - (mine * w).sum() + alpha / 2 * ((w - now["w"]) ** 2).sum()

            w, b, _ = p.train(now, k, t, loss)
            g[k] = mine - alpha * (w - now["w"])
            done.append((w, b))
        h = now["h"] - alpha / len(p.clients) * sum(w - now["w"] for w, _ in done)
        shares = p.sizes(t) if weights == "size" else [1] * len(done)
        w = mixture([w for w, _ in done], shares) - h / alpha
        out.append({"w": w, "b": mixture([b for _, b in done], p.sizes(t)), "h": h, "g": g})
    return out[1:]


def fisher(p: Plain, w: Tensor, b: Tensor, x: Tensor, y: Tensor, size: int, batch: int = 0) -> Tensor:
    """Return the mean squared gradient, sample by sample, or by mini-batch until the total is above `size`."""
    net = p.load(w, b, frozen=True)

    def gradient(rows: slice) -> Tensor:
        loss = F.cross_entropy(net(x[rows])[1], y[rows])
        return torch.cat([s.flatten() for s in torch.autograd.grad(loss, list(net.parameters()))])

    squares, total = [], 0
    if not batch:
        squares = [gradient(slice(i, i + 1)) ** 2 for i in range(min(len(y), size))]
    while batch and total <= size and total < len(y):
        squares.append(gradient(slice(total, total + batch)) ** 2)
        total += batch
    return sum(squares) / len(squares)


def fedcurv(p: Plain, lam: float, size: int, *, per_batch: bool = False) -> list[State]:
    """Run FedCurv: the server has every client's last u and v; P and Q are summed for each client."""
    out = [p.start() | {"u": {}, "v": {}}]
    for t in range(len(p.cohorts)):
        now = out[-1]
        u, v, done = dict(now["u"]), dict(now["v"]), []
        for k in p.participants(t):
            P = sum((now["u"][j] for j in now["u"] if j != k), start=torch.zeros_like(now["w"]))
            Q = sum((now["v"][j] for j in now["v"] if j != k), start=torch.zeros_like(now["w"]))

            def loss(rows, w, h, z, y, P=P, Q=Q):
                return F.cross_entropy(z, y) + lam * ((P * w * w).sum() - 2 * (Q * w).sum())

            w, b, _ = p.train(now, k, t, loss)
            u[k] = fisher(p, w, b, *p.clients[k], size, p.batch if per_batch else 0)
            v[k] = u[k] * w
            done.append((w, b))
        w, b = (mixture(part, p.sizes(t)) for part in zip(*done, strict=True))
        out.append({"w": w, "b": b, "u": u, "v": v})
    return out[1:]


def moon(p: Plain, mu: float, tau: float) -> list[State]:
    out, previous = [p.start()], {}
    for t in range(len(p.cohorts)):
        now, done = out[-1], []
        for k in p.participants(t):
            hg = p.outputs(now["w"], now["b"], p.clients[k][0])[0]
            hp = p.outputs(*previous[k], p.clients[k][0])[0] if k in previous else None

            def loss(rows, w, h, z, y, hg=hg, hp=hp):
                return F.cross_entropy(z, y) if hp is None else ref.moon(z, h, hg[rows], hp[rows], y, mu, tau)

            w, b, _ = p.train(now, k, t, loss)
            previous[k] = (w, b)
            done.append((w, b))
        w, b = (mixture(part, p.sizes(t)) for part in zip(*done, strict=True))
        out.append({"w": w, "b": b})
    return out[1:]
