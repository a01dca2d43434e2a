"""CCVR's pooled Gaussians, virtual features and calibrated last layer."""

import pytest
import torch

from fedrecall import METHODS
from fedrecall.core.exchange import Exchange
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.optim import ServerSGD
from fedrecall.core.types import Reply, Server
from fedrecall.methods.ccvr import VirtualFeatures, pooled_gaussians
from fedrecall.testing.federation import run_federation
from support.method_bench import TRAINING, Cohort, make_clients, network
from support.tiny_federation import local

CLIENTS = make_clients()


def make_server(f: FlatModel, seed: int = 0) -> Server:
    return Server(f, f.w, f.b, f.int_buffers, ServerSGD(), seed=seed, t=3)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_pooled_statistics_are_those_of_all_features(batch_norm: bool) -> None:
    f, method = FlatModel(network(batch_norm=batch_norm)), METHODS["ccvr"]()
    n = total = second = torch.zeros((), dtype=torch.float64)
    for data in CLIENTS:
        up = method.class_statistics(local(f, data))
        n, total = n + up["count"], total + up["count"][:, None] * up["mean"]
        outer = up["mean"][:, :, None] * up["mean"][:, None]
        second = second + (up["count"] - 1).clamp(min=0)[:, None, None] * up["covariance"]
        second = second + up["count"][:, None, None] * outer
    mean, covariance = pooled_gaussians(n, total, second)
    h, y = torch.cat([f.outputs(f.join(f.w, f.b), data).h for data in CLIENTS]), torch.cat([data.y for data in CLIENTS])
    for c in range(3):
        torch.testing.assert_close(mean[c], h[y == c].mean(0), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(covariance[c], h[y == c].T.cov(), rtol=1e-11, atol=1e-13)


def test_virtual_features_have_the_pooled_moments_and_only_held_classes() -> None:
    server = make_server(FlatModel(network()))
    mean, root = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, 2, dtype=torch.float64)
    covariance = root @ root.mT  # of rank two: not positive definite
    drawn = METHODS["ccvr"](samples=20_000).draw(mean, covariance, torch.tensor([True, False, True]), server)
    assert drawn.y.unique().tolist() == [0, 2]
    for c in (0, 2):
        torch.testing.assert_close(drawn.h[drawn.y == c].mean(0), mean[c], rtol=0, atol=0.1)
        torch.testing.assert_close(drawn.h[drawn.y == c].T.cov(), covariance[c], rtol=0.1, atol=0.15)


def test_only_the_last_layer_is_calibrated_by_sgd() -> None:
    net = network()
    server, method = make_server(FlatModel(net)), METHODS["ccvr"](epochs=1, lr=0.1)
    h = torch.randn(30, 8, dtype=torch.float64)
    w = method.calibrate(server, VirtualFeatures(h, torch.arange(30) % 3), 3)
    head = server.f.head
    assert head.stop - head.start == 8 * 3 + 3
    assert head.stop == len(w)
    assert torch.equal(w[: head.start], server.w[: head.start])
    expected = network().c  # one full batch: one step
    torch.nn.functional.cross_entropy(expected(h), torch.arange(30) % 3).backward()
    step = torch.cat([(p - 0.1 * p.grad).detach().flatten() for p in expected.parameters()])
    torch.testing.assert_close(w[head], step, rtol=1e-12, atol=1e-13)


def test_the_whole_exchange_is_a_function_of_the_seed() -> None:
    def finished(seed: int) -> Server:
        f = FlatModel(network())
        server, method = make_server(f, seed), METHODS["ccvr"](epochs=2)
        cohort = Cohort(method, f, CLIENTS, range(4), (), TRAINING, 3, {})
        return method.finish(server, Exchange(server, cohort))

    assert torch.equal(finished(1).evaluated_state, finished(1).evaluated_state)
    assert not torch.equal(finished(1).evaluated_state, finished(2).evaluated_state)
    assert torch.equal(finished(1).state, finished(2).state)


def test_only_the_last_round_asks_for_statistics_and_evaluates_the_calibrated_model() -> None:
    ours, _ = run_federation(METHODS["ccvr"](), sample=2)
    plain, _ = run_federation(METHODS["fedavg"](), sample=2)
    for a, b in zip(ours, plain, strict=True):
        assert torch.equal(a.server.state, b.server.state)
        assert (a.bytes_up > b.bytes_up, a.bytes_down > b.bytes_down) == (a.number == 3,) * 2
        assert ("evaluated" in a.server.extra) == (a.number == 3)
    statistics = 5 * (3 * 8 + 3 * 8 * 4 + 3 * 64 * 4)  # of five clients: int64 counts, means, covariances
    assert ours[-1].bytes_up - plain[-1].bytes_up == statistics / 2  # by the two clients of the round


def test_false_counts_are_rejected() -> None:
    method, count = METHODS["ccvr"](), torch.tensor([2, 3])
    assert method.validate_reply(Reply({"count": count}, 5, {}, {})) is None
    for wrong in (Reply({"count": count}, 6, {}, {}), Reply({"count": count - 3}, 5, {}, {})):
        assert method.validate_reply(wrong).code == "reply.invalid_value"
