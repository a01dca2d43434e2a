"""Settings of local training with every method: optimiser, clipping, class weights, proximal term."""

from dataclasses import replace

import pytest
import torch

from fedrecall.core.method import Method
from fedrecall.core.optim import ClientAdam, ClientSGD
from fedrecall.core.training import LocalTraining
from fedrecall.methods import METHODS
from fedrecall.testing.federation import run_federation

PLAIN = LocalTraining(epochs=2, batch=3, optimiser=ClientSGD(lr=0.05, momentum=0.9))

METHOD = pytest.mark.parametrize("name", METHODS)


def last_state(method: Method, training: LocalTraining, engine: str = "serial") -> torch.Tensor:
    done, _ = run_federation(method, engine=engine, training=training)
    return done[-1].server.state


@METHOD
def test_class_weights_change_the_result(name: str) -> None:
    plain, weighted, equal = (
        last_state(METHODS[name](), replace(PLAIN, class_weights=weights))
        for weights in (None, (1.0, 5.0, 25.0), (3.0, 3.0, 3.0))
    )
    assert torch.isfinite(weighted).all()
    assert not torch.allclose(plain, weighted)
    torch.testing.assert_close(plain, equal, rtol=1e-4, atol=1e-5)


@METHOD
def test_all_settings_together(name: str) -> None:
    method = METHODS[name]()
    optimiser = PLAIN.optimiser if method.traits.needs_sgd else ClientAdam(0.01, weight_decay=0.1, decoupled=True)
    training = replace(PLAIN, optimiser=optimiser, clip=0.5, prox=0.1, class_weights="balanced")
    state = last_state(method, training)
    assert torch.isfinite(state).all()
    for changed in (
        replace(training, clip=None),
        replace(training, prox=0.0),
        replace(training, class_weights=None),
        replace(training, optimiser=replace(optimiser, weight_decay=0.3)),
    ):
        assert not torch.equal(state, last_state(method, changed))


@pytest.mark.parametrize("name", ["scaffold", "fedlmd"])
def test_pool_gives_the_bits_of_serial(name: str) -> None:
    training = replace(PLAIN, optimiser=ClientAdam(0.01), clip=0.5, prox=0.1, class_weights="balanced")
    serial, pool = (last_state(METHODS[name](), training, engine) for engine in ("serial", "pool"))
    assert torch.equal(serial, pool)
