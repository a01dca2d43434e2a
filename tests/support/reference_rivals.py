"""Whole rounds of the methods since 2022, on a plain PyTorch module, client by client, as in `reference_rounds`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core import seeds
from support import reference_rounds as rounds
from support.reference_rounds import Plain, State, floats, mixture, momentum_norm


def fedsam(p: Plain, rho: float, *, adaptive: bool = False, eta: float = 0.2, beta: float = 1.0) -> list[State]:
    """Two gradients a step: the second one at the perturbed point, its statistics dropped; MoFedSAM mixes."""
    out = [p.start()]
    direction = torch.zeros_like(out[0]["w"])

    def gradient(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        net = p.load(w, b, frozen=False)
        grads = torch.autograd.grad(F.cross_entropy(net(x)[1], y), list(net.parameters()))
        statistics = torch.cat([torch.zeros(0, dtype=w.dtype), *(t.detach().flatten() for t in floats(net))])
        return torch.cat([g.flatten() for g in grads]), statistics

    def train(now: State, k: int, t: int) -> tuple[Tensor, Tensor, int]:
        (x, y), w, b = p.clients[k], now["w"].clone(), now["b"].clone()
        rng, v, steps = seeds.generator(0, "batches", t, k), torch.zeros_like(w), 0
        for _ in range(p.epochs):
            for rows in torch.randperm(len(y), generator=rng).split(p.batch):
                if p.pairs and len(rows) == 1:
                    continue
                g, statistics = gradient(w, b, x[rows], y[rows])
                T = w.abs() + eta if adaptive else torch.ones_like(w)
                ahead = w + rho * T**2 * g / (T * g).norm()
                g, _ = gradient(ahead, b, x[rows], y[rows])
                v = p.rho * v + beta * g + (1 - beta) * direction
                w, b, steps = w - p.rate(t) * v, statistics, steps + 1
        return w, b, steps

    for t in range(len(p.cohorts)):
        now, sizes = out[-1], p.sizes(t)
        done = [train(now, k, t) for k in p.participants(t)]
        w = mixture([w for w, *_ in done], sizes)
        lengths = [torch.tensor(p.rate(t) * momentum_norm(K, p.rho), dtype=torch.float64) for *_, K in done]
        direction = (now["w"] - w) / mixture(lengths, sizes)
        out.append({"w": w, "b": mixture([b for _, b, _ in done], sizes), "direction": direction})
    return out[1:]


def fedexp(p: Plain, eps: float, *, decay: float = 1.0) -> list[State]:
    """Extrapolated server step; `evaluated` is the mean of the last two models, from the second round on."""
    out = [p.start()]
    for t in range(len(p.cohorts)):
        now, sizes = out[-1], p.sizes(t)
        done = [p.train(now, k, t) for k in p.participants(t)]
        updates = [w - now["w"] for w, *_ in done]
        mean = mixture(updates, sizes)
        spread = sum(n / sum(sizes) * float(d.norm()) ** 2 for n, d in zip(sizes, updates, strict=True))
        eta = max(1.0, 0.5 * spread / (float(mean.norm()) ** 2 + len(done) * eps * decay**t))
        w = now["w"] + eta * mean
        evaluated = (w + now["w"]) / 2 if t else w
        out.append({"w": w, "b": mixture([b for _, b, _ in done], sizes), "evaluated": evaluated, "eta": eta})
    return out[1:]


def feddf(p: Plain, aux: Tensor, steps: int, batch: int, lr: float, tau: float) -> list[State]:
    """FedAvg's mean, trained with torch's Adam on the mean of the clients' logits."""
    out = [p.start()]
    for t in range(len(p.cohorts)):
        now, sizes = out[-1], p.sizes(t)
        done = [p.train(now, k, t) for k in p.participants(t)]
        teacher = sum(p.outputs(w, b, aux)[1] for w, b, _ in done) / len(done)
        w, b = mixture([w for w, *_ in done], sizes), mixture([b for _, b, _ in done], sizes)
        net = p.load(w, b, frozen=False)
        optimiser = torch.optim.Adam(net.parameters(), lr)
        rng = seeds.generator(seeds.derive_seed(0, "server", t), "batches", t, 0)
        for _ in range(-(-steps // -(-len(aux) // batch))):
            for rows in torch.randperm(len(aux), generator=rng).split(batch):
                if p.pairs and len(rows) == 1:
                    continue
                q, log_p = (teacher[rows] / tau).softmax(-1), (net(aux[rows])[1] / tau).log_softmax(-1)
                optimiser.zero_grad()
                (q * (q.log() - log_p)).sum(-1).mean().backward()
                optimiser.step()
        w = torch.cat([q.detach().flatten() for q in net.parameters()])
        b = torch.cat([torch.zeros(0, dtype=w.dtype), *(q.detach().flatten() for q in floats(net))])
        out.append({"w": w, "b": b})
    return out[1:]


def ditto(p: Plain, lam: float) -> list[State]:
    """FedAvg, and beside it each client's own model, with a penalty on the distance to the received weights."""
    out, own = rounds.fedavg(p), {}
    for t, received in enumerate([p.start(), *out[:-1]]):
        for k in p.participants(t):
            (x, y), (w, b) = p.clients[k], own.get(k, (received["w"], p.start()["b"]))
            rng, v = seeds.generator(0, "batches", t, 0), torch.zeros_like(w)
            for _ in range(p.epochs):
                for rows in torch.randperm(len(y), generator=rng).split(p.batch):
                    if p.pairs and len(rows) == 1:
                        continue
                    net = p.load(w, b, frozen=False)
                    grads = torch.autograd.grad(F.cross_entropy(net(x[rows])[1], y[rows]), list(net.parameters()))
                    g = torch.cat([part.flatten() for part in grads]) + lam * (w - received["w"])
                    v = p.rho * v + g
                    w = w - p.rate(t) * v
                    b = torch.cat([torch.zeros(0, dtype=w.dtype), *(q.detach().flatten() for q in floats(net))])
            own[k] = (w, b)
        out[t]["own"] = {k: torch.cat(parts) for k, parts in own.items()}
    return out


def fedacg(p: Plain, lam: float, beta: float) -> list[State]:
    """Momentum m, clients from w + lam m, w <- w + m: as printed, not simplified."""
    out = [p.start()]
    m = torch.zeros_like(out[0]["w"])
    for t in range(len(p.cohorts)):
        now = out[-1]
        start = now["w"] + lam * m

        def loss(rows, w, h, z, y, start=start):
            return F.cross_entropy(z, y) + beta * ((w - start) ** 2).sum()

        done = [p.train(now | {"w": start}, k, t, loss) for k in p.participants(t)]
        m = lam * m + mixture([w - start for w, *_ in done], [1] * len(done))
        out.append({"w": now["w"] + m, "b": mixture([b for _, b, _ in done], p.sizes(t)), "m": m})
    return out[1:]
