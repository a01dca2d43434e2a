"""Floats sent and received per client, size of client states, and evaluations of frozen models."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from fedrecall import METHODS
from fedrecall.core.optim import ClientSGD
from fedrecall.core.training import LocalTraining
from support.method_bench import RoundOutcome, make_clients, network, run_cohorts
from support.tiny_federation import TinyNet

C, D = 3, 8  # classes and features of the network on the bench
ALL_CLIENTS = [[0, 1]] * 4
NO_STATE, MODEL, WEIGHTS = "nothing", "model", "weights"  # MODEL has float buffers, WEIGHTS are trainable ones only

# (method, hyper-parameters, extra floats down, extra floats up, kept), extras beside one complete model each way;
# an extra of "w" is a vector of the size of the trainable weights, "m" of the complete model. A list is by round.
CostsRow = tuple[str, dict, object, object, list[str]]
TABLE: list[CostsRow] = [
    *((name, {}, 0, 0, []) for name in ("fedavg", "fedprox", "fedavgm", "fedrs", "fedlsd", "fedntd", "fedlmd")),
    *((name, {}, 0, 0, []) for name in ("fedlc", "feddecorr", "fedsam", "fedexp", "fedacg", "feddf", "ccvr")),
    *((name, {}, 0, 0, []) for name in ("fedrep", "fedbabu")),  # the network on the bench has no private part
    ("ditto", {}, 0, 0, [MODEL]),
    ("fedsam", {"beta": 0.1}, "w", 1, []),
    *((name, {}, 0, 0, []) for name in ("fedlmd-tf", "fedavg-kd", "fedavg-ls", "grid")),
    ("fedlmd-tf", {"switch": 1}, 0, 0, []),
    ("fedntd", {"teacher": False}, 0, 0, []),
    ("fednova", {}, 0, 1, []),
    ("fedcad", {}, C, 0, []),
    ("fedcad", {"estimate": "local"}, 0, 0, []),
    ("fedssd", {}, C * C, 0, []),
    ("grid", {"trust": "class"}, C, 0, []),
    ("grid", {"trust": "channel", "divergence": "l2"}, C * C, 0, []),
    ("fedcsd", {"teacher_at": "client"}, C * C, C * C + C, [MODEL]),
    ("fedcsd", {}, ("m", C * C), C * C + C, []),
    ("fedcsd", {"use_tma": False}, C * C, C * C + C, []),
    ("fedcsd", {"prototypes": "local"}, "m", 0, []),
    ("fedcsd", {"use_similarity": False}, "m", 0, []),
    ("fedgkd", {"buffer": 3}, [0, 0, "m", "m"], 0, []),
    ("fedgkd", {"buffer": 1}, 0, 0, []),
    ("fedgkd", {"buffer": 3, "vote": True}, [0, 0, ("m", "m", 2), ("m", "m", "m", 3)], 0, []),
    ("moon", {}, 0, 0, [MODEL]),
    ("scaffold", {}, "w", "w", [WEIGHTS]),
    ("scaffold", {"mode": "post_step"}, "w", "w", [WEIGHTS]),
    ("feddyn", {}, 0, 0, [WEIGHTS]),
    ("fedcurv", {}, ("w", "w"), ("w", "w"), [WEIGHTS, WEIGHTS]),
    ("fedproto", {}, [0, C * D, C * D, C * D], C * D, []),
    ("fedproto", {"weighting": "size"}, [0, C * D, C * D, C * D], C * D + C, []),
]


def extra(quantity: object, weights: int, model: int) -> int:
    if isinstance(quantity, tuple):
        return sum(extra(part, weights, model) for part in quantity)
    return {"w": weights, "m": model}.get(quantity, quantity)


def run(name: str, hyper: dict, *, batch_norm: bool = False, **kwargs: object) -> list[RoundOutcome]:
    net = network(torch.float32, batch_norm=batch_norm)
    return run_cohorts(
        METHODS[name](**hyper), net=net, cohorts=ALL_CLIENTS, aux=make_clients([(2, 2, 2)], torch.float32)[0], **kwargs
    )


@pytest.mark.parametrize(("name", "hyper", "down", "up", "state"), TABLE)
@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch norm"])
def test_bytes_and_memory(name: str, hyper: dict, down: object, up: object, state: list, batch_norm: bool) -> None:
    rounds = run(name, hyper, batch_norm=batch_norm)
    f = rounds[0].server.f
    w, model = len(f.w), len(f.w) + len(f.b)
    counters = 2 * len(f.int_buffers)  # int64, beside the model each way
    assert (w, model, counters) == ((99, 115, 2) if batch_norm else (83, 83, 0))
    for t, played in enumerate(rounds):
        extra_down, extra_up = (extra(e[t] if isinstance(e, list) else e, w, model) for e in (down, up))
        assert played.floats_down == model + counters + extra_down, f"down in round {t}"
        assert played.floats_up == model + counters + extra_up, f"up in round {t}"
    expected = sum({MODEL: model, WEIGHTS: w}[k] for k in state)
    for memory in rounds[-1].client_states.values():
        assert sum(t.numel() for t in memory.values()) == expected


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch norm"])
def test_fedproto_as_published_sends_prototypes_only(batch_norm: bool) -> None:
    rounds = run("fedproto", {"share_weights": False}, batch_norm=batch_norm)
    assert [r.floats_down for r in rounds] == [0, C * D, C * D, C * D]
    assert [r.floats_up for r in rounds] == [C * D] * 4
    model = len(rounds[0].server.state)
    assert all(m["own"].numel() == model for m in rounds[-1].client_states.values())


def test_every_method_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == set(METHODS)


# --- forward passes ----------------------------------------------------------------------------


@contextmanager
def count_evaluations() -> Iterator[list[int]]:
    """Count the examples that a network evaluates in evaluation mode."""
    counts: list[int] = []

    def hook(module, args, _) -> None:
        if isinstance(module, TinyNet) and not module.training:
            counts.append(len(args[0]))

    handle = register_module_forward_hook(hook)
    try:
        yield counts
    finally:
        handle.remove()


AUX = 6
PASSES: list[tuple[str, dict, int, int, int]] = [
    # (method, hyper-parameters, passes over the client's data, of them per epoch if augmented, over the auxiliary data)
    *((name, {}, 0, 0, 0) for name in ("fedavg", "fedprox", "fedavgm", "scaffold", "fednova", "feddyn", "fedrs")),
    *((name, {}, 0, 0, 0) for name in ("fedlmd-tf", "fedavg-ls", "fedlc", "feddecorr", "fedsam", "fedexp", "fedacg")),
    *((name, {}, 1, 1, 0) for name in ("fedlsd", "fedntd", "fedlmd", "fedavg-kd", "fedgkd", "grid")),
    ("fedntd", {"teacher": False}, 0, 0, 0),
    ("fedlmd-tf", {"switch": 1}, 1, 1, 0),
    ("fedcad", {}, 1, 1, 1),
    ("fedcad", {"estimate": "local"}, 1, 1, 0),
    ("fedssd", {}, 1, 1, 1),
    ("fedcsd", {}, 2, 1, 0),
    ("fedcsd", {"use_similarity": False}, 1, 1, 0),
    ("fedgkd", {"buffer": 2, "vote": True}, 2, 2, 2),
    ("moon", {}, 2, 2, 0),
    ("fedproto", {}, 1, 0, 0),
    ("fedproto", {"collect": "last_epoch"}, 0, 0, 0),
]


@pytest.mark.parametrize(("name", "hyper", "passes", "by_epoch", "aux"), PASSES)
@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["plain", "augmented"])
def test_frozen_models_are_evaluated_once_a_round(
    name: str, hyper: dict, passes: int, by_epoch: int, aux: int, noise: float
) -> None:
    training = LocalTraining(epochs=3, batch=4, optimiser=ClientSGD(lr=0.05))
    clients = make_clients([(5, 2, 0), (0, 3, 3)], torch.float32, noise)
    samples = 7 + 6
    examples_evaluated = []
    for rounds in (2, 3):  # the third round, when every memory and buffer is filled
        with count_evaluations() as counts:
            data = make_clients([(2, 2, 2)], torch.float32)[0]
            net = network(torch.float32)
            run_cohorts(
                METHODS[name](**hyper), net=net, clients=clients, cohorts=[[0, 1]] * rounds, training=training, aux=data
            )
        examples_evaluated.append(sum(counts))
    local_estimate = hyper.get("estimate") == "local"  # of the plain images, besides the random ones
    each = passes - by_epoch + 3 * by_epoch + local_estimate if noise else passes
    assert examples_evaluated[1] - examples_evaluated[0] == each * samples + aux * AUX


def test_fedcsd_prototypes_of_the_client_alone_take_no_more_than_the_exchange() -> None:
    with count_evaluations() as counts:
        run("fedcsd", {"prototypes": "local"}, clients=make_clients([(5, 2, 0), (0, 3, 3)], torch.float32))
    assert sum(counts) <= 4 * 2 * 13


def test_fedcurv_evaluates_no_teacher() -> None:
    method = METHODS["fedcurv"]()
    assert type(method).frozen is METHODS["fedavg"].frozen
