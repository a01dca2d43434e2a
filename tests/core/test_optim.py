import pytest
import torch
from torch import Tensor

from fedrecall.core.optim import AdaptiveServer, ServerSGD


def scalar(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def trace(optimiser, w: float, targets: list[float]) -> list[tuple[float, dict[str, float]]]:
    out, state, moments = [], scalar(w), {}
    for target in targets:
        state, moments = optimiser.step(state, scalar(target), moments)
        out.append((float(state), {name: float(t) for name, t in moments.items()}))
    return out


def test_server_momentum_golden() -> None:
    (w1, m1), (w2, m2) = trace(ServerSGD(momentum=0.9), 1.0, [0.8, 0.5])
    assert (w1, m1["v"], w2, m2["v"]) == pytest.approx((0.8, 0.2, 0.32, 0.48))


def reference(w: float, targets: list[float], lr: float, beta: float, damped: bool, nesterov: bool) -> float:
    """Apply the update rule as the paper writes it."""
    v = 0.0
    for target in targets:
        delta = w - target
        v = beta * v + (1 - beta if damped else 1) * delta
        w -= lr * ((1 - beta if damped else 1) * delta + beta * v if nesterov else v)
    return w


@pytest.mark.parametrize("damped", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("lr", "beta"), [(1.0, 0.9), (0.5, 0.7), (1.0, 0.0)])
def test_server_momentum_variants(damped: bool, nesterov: bool, lr: float, beta: float) -> None:
    targets = [0.8, 0.5, 0.9, -0.3]
    last, _ = trace(ServerSGD(lr, beta, damped, nesterov), 1.0, targets)[-1]
    assert last == pytest.approx(reference(1.0, targets, lr, beta, damped, nesterov))


def test_plain_averaging_is_the_target_to_the_bit() -> None:
    rng = torch.Generator().manual_seed(0)
    w, target = torch.randn(2, 1000, generator=rng)
    assert torch.equal(ServerSGD().step(w, target, {})[0], target)
    assert torch.equal(ServerSGD(momentum=0.0, damped=True).step(w, target, {})[0], target)


def adaptive_reference(rule: str, w: float, targets: list[float], o: AdaptiveServer) -> float:
    """Apply Algorithm 2 of the FedOpt paper, one number at a time."""
    m, v = 0.0, o.tau**2
    for target in targets:
        d = target - w
        m = o.beta1 * m + (1 - o.beta1) * d
        if rule == "adagrad":
            v = v + d * d
        elif rule == "adam":
            v = o.beta2 * v + (1 - o.beta2) * d * d
        else:
            v = v - (1 - o.beta2) * d * d * (1 if v > d * d else -1 if v < d * d else 0)
        w = w + o.lr * m / (v**0.5 + o.tau)
    return w


@pytest.mark.parametrize("rule", ["adagrad", "adam", "yogi"])
def test_adaptive_servers(rule: str) -> None:
    optimiser, targets = AdaptiveServer(rule, lr=0.1), [0.8, 0.5, 0.9, -0.3]
    last, _ = trace(optimiser, 1.0, targets)[-1]
    assert last == pytest.approx(adaptive_reference(rule, 1.0, targets, optimiser))
