"""The losses as the papers define them, sample by sample and class by class, as slow and literal as can be.

Nothing of fedrecall is used. Numbers are 0-d float64 tensors, so that autograd gives the gradients of exactly what is
written; whatever a paper calls a constant is detached. `z` are the student's logits [B, C], `zg` a teacher's, `y` the
labels.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Number = Tensor | float
Row = Sequence[Number]


def plain(x: Number) -> float:
    return float(x.detach()) if isinstance(x, Tensor) else float(x)


def dot(a: Row, b: Row) -> Number:
    return sum((a[i] * b[i] for i in range(len(a))), start=0.0)


def mean(values: Sequence[Number]) -> Number:
    return sum(values, start=0.0) / len(values)


# --- primitives ------------------------------------------------------------------------------


def masked_softmax(z: Tensor, keep: Sequence[bool], T: float = 1.0) -> list[Number]:
    """Return the softmax over the kept classes, 0 elsewhere; no kept class gives all zeros."""
    classes = [c for c in range(len(z)) if keep[c]]
    if not classes:
        return [0.0] * len(z)
    top = max(plain(z[c]) for c in classes) / T
    powers = {c: torch.exp(z[c] / T - top) for c in classes}
    total = sum(powers.values())
    return [powers[c] / total if c in powers else 0.0 for c in range(len(z))]


def softmax(z: Tensor, T: float = 1.0) -> list[Number]:
    return masked_softmax(z, [True] * len(z), T)


def log_softmax(z: Tensor, T: float = 1.0, keep: Sequence[bool] | None = None) -> list[Number]:
    keep = [True] * len(z) if keep is None else keep
    top = max(plain(z[c]) for c in range(len(z)) if keep[c]) / T
    norm = top + torch.log(sum(torch.exp(z[c] / T - top) for c in range(len(z)) if keep[c]))
    return [z[c] / T - norm if keep[c] else -math.inf for c in range(len(z))]


def ce(z: Tensor, y: int) -> Number:
    return -log_softmax(z)[y]


def soft_ce(z: Tensor, q: Row, T: float) -> Number:
    """Return the cross-entropy of one sample with soft targets."""
    log_p = log_softmax(z, T)
    return -sum((q[c] * log_p[c] for c in range(len(z)) if plain(q[c]) > 0), start=0.0)


def kl(z: Tensor, q: Row, T: float, keep: Sequence[bool] | None = None) -> Number:
    """Return KL(q || student) of one sample, terms with q_c = 0 exactly 0; the student's softmax over `keep`."""
    log_p = log_softmax(z, T, keep)
    return sum(
        (
            q[c] * (torch.log(torch.as_tensor(q[c], dtype=torch.float64)) - log_p[c])
            for c in range(len(z))
            if plain(q[c]) > 0
        ),
        start=0.0,
    )


def s_factor(kd_scale: str, T: float, B: int) -> float:
    """FedCAD's algorithm, read literally, adds the sum over the batch to the mean cross-entropy: "sum"."""
    return {"none": 1.0, "T2": T * T, "sum": float(B)}[kd_scale]


def cross_entropy(z: Tensor, y: Tensor) -> Number:
    return mean([ce(z[i], int(y[i])) for i in range(len(y))])


# --- FedRS, FedLSD, FedNTD, FedGKD, small variants -----------------------------------------------------------------


def fedrs(z: Tensor, y: Tensor, counts: Sequence[int], alpha: float, soft: bool = False) -> Number:
    hard = [1.0 if n > 0 else alpha for n in counts]
    s = [alpha + (1 - alpha) * n / max(counts) for n in counts] if soft else hard
    return mean([ce(torch.stack([s[c] * z[i, c] for c in range(len(s))]), int(y[i])) for i in range(len(y))])


def label_smoothing(z: Tensor, y: Tensor, smoothing: float = 0.1) -> Number:
    """Return (1 - s) onehot + s / C."""
    C = z.shape[1]
    targets = [[smoothing / C + (1 - smoothing) * (c == int(y[i])) for c in range(C)] for i in range(len(y))]
    return mean([soft_ce(z[i], targets[i], 1.0) for i in range(len(y))])


def fedlsd(z: Tensor, zg: Tensor, y: Tensor, alpha: float, T: float, kd_scale: str = "none") -> Number:
    distil = mean([soft_ce(z[i], softmax(zg[i], T), T) for i in range(len(y))])
    return (1 - alpha) * cross_entropy(z, y) + alpha * s_factor(kd_scale, T, len(y)) * distil


def fedavg_kd(z: Tensor, zg: Tensor, y: Tensor, beta: float, tau: float) -> Number:
    """Return FedAvg-KD's loss; with T and coef it is FedGKD's for one teacher."""
    return cross_entropy(z, y) + beta * tau**2 * mean([kl(z[i], softmax(zg[i], tau), tau) for i in range(len(y))])


def fedgkd(z: Tensor, teachers: Sequence[Tensor], votes: Row, y: Tensor, coef: float, T: float) -> Number:
    """Return the loss with one fused teacher (vote 1), or the vote variant's weighted sum over teachers."""
    terms = [
        mean([kl(z[i], softmax(zt[i], T), T) for i in range(len(y))]) * plain(a)
        for zt, a in zip(teachers, votes, strict=True)
    ]
    return cross_entropy(z, y) + coef * T**2 * sum(terms)


def uniform_on(keep: Sequence[bool]) -> list[float]:
    n = sum(keep)
    return [1 / n if k else 0.0 for k in keep]


def fedlmd(
    z: Tensor, zg: Tensor | None, y: Tensor, majority: set[int], beta: float, tau: float, *, parts: bool = False
) -> Number | list[Number]:
    """Return FedLMD's loss, FedLMD-Tf's without a teacher; with no majority class FedNTD's and FedNTD-Tf's."""
    C = z.shape[1]
    terms = []
    for i in range(len(y)):
        label = int(y[i])
        T_i = [c not in majority and c != label for c in range(C)]
        if not any(T_i):
            terms.append(0.0 * z[i].sum())  # nothing left to distil
            continue
        q = uniform_on(T_i) if zg is None else masked_softmax(zg[i], T_i, tau)
        terms.append(kl(z[i], q, tau, [c != label for c in range(C)]))
    return terms if parts else cross_entropy(z, y) + beta * tau**2 * mean(terms)


def majority_set(counts: Sequence[int]) -> set[int]:
    """Return the classes strictly above the mean count."""
    return {c for c in range(len(counts)) if counts[c] > sum(counts) / len(counts)}


# --- FedCAD -----------------------------------------------------------------------------


def fedcad_alpha(zg: Tensor, y: Tensor, C: int, beta: float, gamma: float, phi_T: float) -> list[float]:
    """Return the published formula with phi = p_y - sum of the others, before it is reduced; without samples beta."""
    alpha = []
    for c in range(C):
        phi = []
        for i in range(len(y)):
            if int(y[i]) == c:
                p = [plain(v) for v in softmax(zg[i], phi_T)]
                phi.append(p[c] - sum(p[j] for j in range(C) if j != c))
        Q = (mean(phi) + 1) / 2 if phi else 0.0
        alpha.append(beta + (gamma - beta) * Q)
    return alpha


def fedcad(z: Tensor, zg: Tensor, y: Tensor, alpha: Row, T: float, kd_scale: str = "none") -> Number:
    terms = []
    for i in range(len(y)):
        a = plain(alpha[int(y[i])])
        distil = s_factor(kd_scale, T, len(y)) * soft_ce(z[i], softmax(zg[i], T), T)
        terms.append((1 - a) * ce(z[i], int(y[i])) + a * distil)
    return mean(terms)


# --- FedSSD -----------------------------------------------------------------------------


def fedssd_matrix(z: Tensor, y: Tensor, C: int, *, soft: bool = False) -> list[list[float]]:
    """Return hard argmax shares by row, or mean softmax; a class without samples has a zero row."""
    A = [[0.0] * C for _ in range(C)]
    for a in range(C):
        rows = [i for i in range(len(y)) if int(y[i]) == a]
        for i in rows:
            p = [plain(v) for v in softmax(z[i])]
            predicted = max(range(C), key=lambda c, i=i: plain(z[i, c]))
            for b in range(C):
                A[a][b] += (p[b] if soft else float(predicted == b)) / len(rows)
    return A


def fedssd_class(A: Sequence[Row]) -> list[float]:
    """Return recall times one minus the largest off-diagonal entry of the column."""
    C = len(A)
    return [plain(A[b][b]) * (1 - max(plain(A[a][b]) for a in range(C) if a != b)) for b in range(C)]


def fedssd_sample(zg_i: Tensor, y_i: int) -> float:
    return 1 - math.sqrt(max(0.0, 1 - plain(softmax(zg_i)[y_i])))


def fedssd(
    z: Tensor, zg: Tensor, y: Tensor, A: Sequence[Row], m_max: float, weighting: str = "squared", red: str = "sum"
) -> Number:
    M_class, C, terms = fedssd_class(A), z.shape[1], []
    for i in range(len(y)):
        m = fedssd_sample(zg[i], int(y[i]))
        term: Number = 0.0
        for c in range(C):
            M = m_max * max(0.0, M_class[c] * m - 0.1)
            gap = zg[i, c].detach() - z[i, c]
            term = term + ((M * gap) ** 2 if weighting == "squared" else M * gap**2)
        terms.append(term / C if red == "mean" else term)
    return cross_entropy(z, y) + mean(terms)


# --- FedCSD -----------------------------------------------------------------------------


def cosine(a: Row, b: Row) -> Number:
    """Return the cosine similarity, 0 if either vector is zero."""
    aa, bb = dot(a, a), dot(b, b)
    return dot(a, b) / (torch.sqrt(aa) * torch.sqrt(bb)) if plain(aa) > 0 and plain(bb) > 0 else 0.0 * a[0]


def fedcsd_dhat(z_i: Tensor, P: Tensor) -> tuple[list[Number], list[Number]]:
    """Return (delta, dhat) of one sample."""
    delta = [cosine(z_i, P[c]) for c in range(len(P))]
    return delta, softmax(torch.stack([torch.as_tensor(d, dtype=torch.float64) for d in delta]))


def fedcsd(
    z: Tensor,
    zxi: Tensor,
    y: Tensor,
    P: Tensor,
    mu: float,
    tau: float,
    *,
    use_similarity: bool = True,
    use_mask: str = "adaptive",
    mask_on: str = "raw",
    convex: bool = False,
    grad_through_target: bool = False,
    form: Callable[[Tensor, Row, float], Number] = soft_ce,
) -> Number:
    """Return FedCSD's loss with all its options."""
    C, terms = z.shape[1], []
    for i in range(len(y)):
        dhat = fedcsd_dhat(z[i] if grad_through_target else z[i].detach(), P)[1]
        refined = torch.stack([dhat[c] * zxi[i, c] for c in range(C)]) if use_similarity else zxi[i]
        logits = zxi[i] if mask_on == "raw" else refined
        m = {
            "adaptive": plain(softmax(logits.detach())[int(y[i])]) > 1 / C,
            "hard": max(range(C), key=lambda c, s=logits: plain(s[c])) == int(y[i]),
            "none": True,
        }[use_mask]
        terms.append(float(m) * tau**2 * form(z[i], softmax(refined, tau), tau))
    return (1 - mu if convex else 1) * cross_entropy(z, y) + mu * mean(terms)


# --- MOON, FedProto ---------------------------------------------------------------------------


def moon(z: Tensor, h: Tensor, hg: Tensor, hp: Tensor, y: Tensor, mu: float, tau: float) -> Number:
    terms = []
    for i in range(len(y)):
        g, p = torch.exp(cosine(h[i], hg[i]) / tau), torch.exp(cosine(h[i], hp[i]) / tau)
        terms.append(-torch.log(g / (g + p)))
    return cross_entropy(z, y) + mu * mean(terms)


def fedproto(z: Tensor, h: Tensor, y: Tensor, G: dict[int, Tensor], lam: float) -> Number:
    """Return FedProto's loss; samples whose class has no prototype stay in the denominator."""
    B, d = h.shape
    squares = [(h[i, j] - G[int(y[i])][j]) ** 2 for i in range(B) if int(y[i]) in G for j in range(d)]
    return cross_entropy(z, y) + lam * sum(squares, start=0.0) / (B * d)


# --- FedLC, FedDecorr -------------------------------------------------------------------------


def fedlc(z: Tensor, y: Tensor, counts: Sequence[int], tau: float) -> Number:
    """Margin tau / n_c^(1/4); a class without examples has an infinite one, and leaves the softmax."""
    held = [n > 0 for n in counts]
    rows = []
    for i in range(len(y)):
        shifted = torch.stack([z[i, c] - (tau / counts[c] ** 0.25 if held[c] else 0.0) for c in range(len(counts))])
        rows.append(-log_softmax(shifted, keep=held if tau else None)[int(y[i])])
    return mean(rows)


def feddecorr(z: Tensor, h: Tensor, y: Tensor, beta: float, *, paper: bool = False) -> Number:
    """Entry by entry of the matrix of standardised features."""
    B, d = h.shape
    if B == 1:
        return cross_entropy(z, y)
    columns = []
    for j in range(d):
        centre = mean([h[i, j] for i in range(B)])
        variance = sum((h[i, j] - centre) ** 2 for i in range(B)) / (B - 1)
        columns.append([(h[i, j] - centre) / torch.sqrt(variance + 1e-8) for i in range(B)])
    K = [[dot(a, b) for b in columns] for a in columns]
    if paper:
        term = sum((K[j][k] / (B - 1)) ** 2 for j in range(d) for k in range(d)) / d**2
    else:
        term = sum(K[j][k] ** 2 for j in range(d) for k in range(d) if j != k) / (d * (d - 1)) / B
    return cross_entropy(z, y) + beta * term


def class_means(values: Tensor, y: Tensor) -> dict[int, Tensor]:
    """Return the mean of the rows of each class that occurs."""
    return {
        c: sum(values[i] for i in range(len(y)) if int(y[i]) == c) / sum(int(v) == c for v in y)
        for c in sorted({int(v) for v in y})
    }
