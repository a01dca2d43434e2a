"""Identities that follow from the papers' definitions, on runs with partial participation.

To the bit, in float32, wherever that can be asked.
"""

from functools import cache

import pytest
import torch

from fedrecall import METHODS
from fedrecall.core.method import Method
from support.method_bench import COHORTS, make_clients, network, run_cohorts
from support.tiny_federation import Vectors

BALANCED = ((2, 2, 2), (1, 1, 1), (2, 2, 2), (1, 1, 1))
EQUAL = ((3, 2, 0), (0, 3, 2), (1, 3, 1), (0, 5, 0))
NETS = pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch norm"])
CONDITIONS = {
    "plain": {},
    "batch norm": {"batch_norm": True},
    "augmented": {"noise": 0.1},
    "uniform": {"weights": "uniform"},
}


def states(
    method: Method,
    sizes: tuple[tuple[int, ...], ...] | None = None,
    *,
    batch_norm: bool = False,
    noise: float = 0.0,
    dtype: torch.dtype = torch.float32,
    **rules: object,
) -> list[torch.Tensor]:
    """Return the complete model after every round."""
    clients = make_clients(**({"sizes": sizes} if sizes else {}), dtype=dtype, noise=noise)
    net = network(dtype, batch_norm=batch_norm)
    return [p.server.state for p in run_cohorts(method, net=net, clients=clients, aux=aux(dtype), **rules)]


def aux(dtype: torch.dtype = torch.float32) -> Vectors:
    return make_clients([(4, 3, 2)], dtype)[0]


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    assert len(a) == len(b) > 0
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


ZERO: list[tuple[str, dict]] = [
    ("fedprox", {"mu": 0}),
    ("fedavgm", {"beta_s": 0}),
    ("fedavgm", {"beta_s": 0, "damped": True}),
    ("fedavgm", {"beta_s": 0, "nesterov": True}),
    ("fedcurv", {"lam": 0}),
    ("fedcurv", {"lam": 0, "fisher": "per_batch"}),
    ("moon", {"mu": 0}),
    ("fedproto", {"lam": 0}),
    ("fedproto", {"lam": 0, "collect": "last_epoch"}),
    ("fedlsd", {"alpha": 0}),
    ("fedlsd", {"alpha": 0, "kd_scale": "T2"}),
    ("fedntd", {"beta": 0}),
    ("fedntd", {"beta": 0, "teacher": False}),
    ("fedgkd", {"coef": 0}),
    ("fedgkd", {"coef": 0, "vote": True}),
    ("fedcad", {"beta": 0, "gamma": 0}),
    ("fedcad", {"beta": 0, "gamma": 0, "estimate": "local", "kd_scale": "T2"}),
    ("fedssd", {"m_max": 0}),
    ("fedssd", {"m_max": 0, "weighting": "linear", "matrix": "soft"}),
    ("fedcsd", {"mu": 0}),
    ("fedcsd", {"mu": 0, "convex": True, "prototypes": "local"}),
    ("fedcsd", {"mu": 0, "grad_through_target": True, "teacher_at": "client"}),
    ("fedcsd", {"mu": 0, "teacher_bn": "batch"}),
    ("fedlc", {"tau": 0}),
    ("feddecorr", {"beta": 0}),
    ("feddecorr", {"beta": 0, "paper": True}),
    ("fedsam", {"rho": 0}),
    ("feddf", {"steps": 0}),
    ("fedsam", {"rho": 0, "adaptive": True}),
    ("fedlmd", {"beta": 0}),
    ("fedlmd-tf", {"beta": 0}),
    ("fedavg-kd", {"beta": 0}),
    ("fedavg-ls", {"smoothing": 0.0}),
    ("fedrs", {"alpha": 1}),
    ("fedrs", {"alpha": 1, "soft": True}),
    ("grid", {"beta": 0}),
    ("grid", {"beta": 0, "trust": "channel", "divergence": "l2"}),
    ("grid", {"beta": 0, "trust": "class", "divergence": "ce", "convex": True}),
    ("grid", {"beta": 0, "mask": "minority", "teacher": "uniform"}),
    ("grid", {"beta": 0, "divergence": "features"}),
]


@cache
def fedavg(condition: str) -> list[torch.Tensor]:
    return states(METHODS["fedavg"](), **CONDITIONS[condition])


@pytest.mark.parametrize(("name", "hyper"), ZERO)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_strength_zero_is_fedavg_to_the_bit(name: str, hyper: dict, condition: str) -> None:
    assert same_bits(states(METHODS[name](**hyper), **CONDITIONS[condition]), fedavg(condition))


@pytest.mark.parametrize(("name", "hyper"), ZERO)
def test_any_other_strength_is_not_fedavg(name: str, hyper: dict) -> None:
    some = {
        key: 0.5 if key in {"mu", "beta", "gamma", "beta_s", "lam", "alpha"} else value for key, value in hyper.items()
    }
    some |= {key: 0.5 for key in ("coef", "m_max", "smoothing", "rho", "tau") if key in hyper}
    some |= {key: 5 for key in ("steps",) if key in hyper}
    assert not same_bits(states(METHODS[name](**some)), fedavg("plain"))


def test_every_method_with_a_strength_is_in_the_list() -> None:
    others = {"fedavg", "scaffold", "fednova", "feddyn", "fedexp", "fedacg", "ccvr", "fedrep", "fedbabu", "ditto"}
    assert set(METHODS) - {name for name, _ in ZERO} == others


@NETS
def test_feddyn_of_strength_zero_is_fedavg_with_uniform_weights(batch_norm: bool) -> None:
    uniform = states(METHODS["fedavg"](), weights="uniform", batch_norm=batch_norm)
    assert same_bits(states(METHODS["feddyn"](alpha=0), batch_norm=batch_norm), uniform)
    by_size = states(METHODS["fedavg"](), batch_norm=batch_norm)
    assert same_bits(states(METHODS["feddyn"](alpha=0, weights="size"), batch_norm=batch_norm), by_size)


@NETS
def test_fedacg_without_momentum_and_proximal_term_is_fedavg_to_the_bit(batch_norm: bool) -> None:
    uniform = states(METHODS["fedavg"](), weights="uniform", batch_norm=batch_norm)
    assert same_bits(states(METHODS["fedacg"](lam=0, beta=0), batch_norm=batch_norm), uniform)
    by_size = states(METHODS["fedavg"](), batch_norm=batch_norm)
    assert same_bits(states(METHODS["fedacg"](lam=0, beta=0, weights="size"), batch_norm=batch_norm), by_size)
    proximal = states(METHODS["fedprox"](mu=0.4), weights="uniform", batch_norm=batch_norm, dtype=torch.float64)
    given = states(METHODS["fedacg"](lam=0, beta=0.2), batch_norm=batch_norm, dtype=torch.float64)
    for a, b in zip(given, proximal, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@NETS
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_global_model_of_ditto_is_fedavgs_to_the_bit(lam: float, batch_norm: bool) -> None:
    given = states(METHODS["ditto"](lam=lam), batch_norm=batch_norm)
    assert same_bits(given, states(METHODS["fedavg"](), batch_norm=batch_norm))


def test_fedexp_with_one_client_or_a_large_eps_is_fedavg_to_the_bit() -> None:
    for hyper, rules in (({}, {"cohorts": [[0]] * 3}), ({"eps": 1e9}, {})):  # equal updates: eta_g = 1/2, at least 1
        method = METHODS["fedexp"](**hyper)
        assert same_bits(states(method, **rules), states(METHODS["fedavg"](), **rules))
    everyone = {"cohorts": [range(4)] * 3}
    assert not same_bits(states(METHODS["fedexp"](eps=0.0), **everyone), states(METHODS["fedavg"](), **everyone))


@NETS
@pytest.mark.parametrize("kd_scale", ["none", "T2", "sum"])
@pytest.mark.parametrize("estimate", ["aux", "local"])
def test_fedcad_with_one_trust_is_fedlsd_to_the_bit(kd_scale: str, estimate: str, batch_norm: bool) -> None:
    for a in (0.3, 0.7, 1.0):
        cad = METHODS["fedcad"](beta=a, gamma=a, tau=2, kd_scale=kd_scale, estimate=estimate)
        lsd = METHODS["fedlsd"](alpha=a, tau=2, kd_scale=kd_scale)
        assert same_bits(states(cad, batch_norm=batch_norm), states(lsd, batch_norm=batch_norm))


@NETS
def test_fedlmd_without_a_majority_is_fedntd_to_the_bit(batch_norm: bool) -> None:
    hyper = {"beta": 0.8, "tau": 2.0}
    ntd = states(METHODS["fedntd"](**hyper), BALANCED, batch_norm=batch_norm)
    assert same_bits(states(METHODS["fedlmd"](**hyper), BALANCED, batch_norm=batch_norm), ntd)
    ntd_tf = states(METHODS["fedntd"](**hyper, teacher=False), BALANCED, batch_norm=batch_norm)
    assert same_bits(states(METHODS["fedlmd-tf"](**hyper), BALANCED, batch_norm=batch_norm), ntd_tf)
    skewed = states(METHODS["fedlmd"](**hyper), batch_norm=batch_norm)
    assert not same_bits(skewed, states(METHODS["fedntd"](**hyper), batch_norm=batch_norm))


@NETS
def test_fedlmd_tf_switches_to_fedlmd(batch_norm: bool) -> None:
    hyper = {"beta": 0.8, "tau": 2.0}
    net, clients = network(torch.float32, batch_norm=batch_norm), make_clients(dtype=torch.float32)
    lmd, tf = (states(METHODS[name](**hyper), batch_norm=batch_norm) for name in ("fedlmd", "fedlmd-tf"))
    assert not same_bits(lmd, tf)

    def switched(s: int) -> list[torch.Tensor]:
        return states(METHODS["fedlmd-tf"](**hyper, switch=s), batch_norm=batch_norm)

    assert same_bits(switched(0), lmd)
    assert same_bits(switched(len(COHORTS)), tf)
    first = run_cohorts(METHODS["fedlmd-tf"](**hyper), net=net, clients=clients, cohorts=COHORTS[:2])
    second = run_cohorts(METHODS["fedlmd"](**hyper), clients=clients, start=first[-1].server)
    assert same_bits(switched(2), [p.server.state for p in [*first, *second]])


@NETS
def test_fedgkd_with_one_model_is_fedavg_kd_from_the_second_round_to_the_bit(batch_norm: bool) -> None:
    clients = make_clients(dtype=torch.float32)
    gkd = states(METHODS["fedgkd"](buffer=1, coef=0.7, tau=2.0), batch_norm=batch_norm)
    net = network(torch.float32, batch_norm=batch_norm)
    first = run_cohorts(METHODS["fedavg"](), net=net, clients=clients, cohorts=COHORTS[:1])
    later = run_cohorts(METHODS["fedavg-kd"](beta=0.7, tau=2.0), clients=clients, start=first[-1].server)
    assert same_bits(gkd, [p.server.state for p in [*first, *later]])


@NETS
@pytest.mark.parametrize("mode", ["grad", "post_step"])
def test_scaffold_starts_as_fedavg_to_the_bit(mode: str, batch_norm: bool) -> None:
    for rule in ("size", "uniform"):
        actual, plain = (
            states(m, batch_norm=batch_norm, weights=rule)
            for m in (METHODS["scaffold"](mode=mode), METHODS["fedavg"]())
        )
        assert torch.equal(actual[0], plain[0])
        assert not torch.equal(actual[1], plain[1])


@NETS
def test_fednova_with_equal_steps_is_fedavg(batch_norm: bool) -> None:
    kwargs = {"batch_norm": batch_norm, "dtype": torch.float64}
    for actual, plain in zip(
        states(METHODS["fednova"](), EQUAL, **kwargs), states(METHODS["fedavg"](), EQUAL, **kwargs), strict=True
    ):
        torch.testing.assert_close(actual, plain, rtol=1e-12, atol=1e-13)


def test_one_client_is_the_average_and_equal_sizes_weigh_equally() -> None:
    single = run_cohorts(METHODS["fedavg"](), cohorts=[[1]])[0]
    assert torch.equal(single.server.w, single.replies[0].up["w"])
    assert same_bits(
        states(METHODS["fedavg"](), EQUAL, weights="size"), states(METHODS["fedavg"](), EQUAL, weights="uniform")
    )


CAD = {"tau": 3.0, "kd_scale": "none"}
POINTS: dict[str, tuple[str, dict, dict]] = {  # name: (method, its hyper-parameters, the grid's)
    "fedavg": ("fedavg", {}, {"beta": 0}),
    "fedavg-kd": ("fedavg-kd", {"beta": 0.7, "tau": 3.0}, {"beta": 0.7, "tau": 3.0}),
    "fedlsd": (
        "fedlsd",
        {"alpha": 0.4, **CAD},
        {"beta": 0.4, "divergence": "ce", "convex": True, **CAD},
    ),
    "fedcad": (
        "fedcad",
        {"beta": 0.2, "gamma": 0.9, **CAD},
        {"trust": "class", "low": 0.2, "high": 0.9, "divergence": "ce", "convex": True, **CAD},
    ),
    "fedcad, T2": (
        "fedcad",
        {"beta": 0.2, "gamma": 0.9, "tau": 3.0, "kd_scale": "T2"},
        {"trust": "class", "low": 0.2, "high": 0.9, "divergence": "ce", "convex": True, "tau": 3.0},
    ),
    "fedlsd, sum": (
        "fedlsd",
        {"alpha": 0.4, "tau": 3.0, "kd_scale": "sum"},
        {"beta": 0.4, "divergence": "ce", "convex": True, "tau": 3.0, "kd_scale": "sum"},
    ),
    "fedntd": ("fedntd", {"beta": 0.7, "tau": 3.0}, {"mask": "not-true", "beta": 0.7, "tau": 3.0}),
    "fedntd-tf": (
        "fedntd",
        {"beta": 0.7, "tau": 3.0, "teacher": False},
        {"teacher": "uniform", "mask": "not-true", "beta": 0.7, "tau": 3.0},
    ),
    "fedlmd": ("fedlmd", {"beta": 0.7, "tau": 3.0}, {"mask": "minority", "beta": 0.7, "tau": 3.0}),
    "fedlmd-tf": (
        "fedlmd-tf",
        {"beta": 0.7, "tau": 3.0},
        {"teacher": "uniform", "mask": "minority", "beta": 0.7, "tau": 3.0},
    ),
    "fedssd, linear": (
        "fedssd",
        {"m_max": 0.8, "weighting": "linear"},
        {"trust": "channel", "divergence": "l2", "beta": 0.8},
    ),
    "fedcsd, base": (
        "fedcsd",
        {"mu": 0.2, "tau": 3.0, "use_similarity": False, "use_mask": "none", "use_tma": False},
        {"divergence": "ce", "beta": 0.2, "tau": 3.0},
    ),
    "fedcsd, masked": (
        "fedcsd",
        {"mu": 0.2, "tau": 3.0, "use_similarity": False, "use_tma": False},
        {"trust": "gate", "divergence": "ce", "beta": 0.2, "tau": 3.0},
    ),
}


@NETS
@pytest.mark.parametrize("point", POINTS)
def test_named_methods_are_points_of_the_grid(point: str, batch_norm: bool) -> None:
    name, hyper, coordinates = POINTS[point]
    kwargs = {"batch_norm": batch_norm, "dtype": torch.float64}
    named, in_grid = (states(m, **kwargs) for m in (METHODS[name](**hyper), METHODS["grid"](**coordinates)))
    for a, b in zip(named, in_grid, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
