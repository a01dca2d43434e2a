from dataclasses import replace
from math import cos, pi

import pytest
import torch

from fedrecall.core.optim import ClientAdam, ClientSGD
from fedrecall.core.schedules import SCHEDULES, Constant, Cosine, Decay, Schedule, StepDecay, Warmup
from fedrecall.core.training import LocalTraining
from fedrecall.errors import UserError

FACTORS = [
    (Constant(), [1, 1, 1, 1]),
    (Decay(0.99), [1, 0.99, 0.9801, 0.970299]),
    (StepDecay(every=2, rate=0.1), [1, 1, 0.1, 0.1, 0.01]),
    (Warmup(rounds=4), [0.25, 0.5, 0.75, 1, 1]),
    (Cosine(rounds=4), [1, (1 + cos(pi / 4)) / 2, 0.5, (1 + cos(3 * pi / 4)) / 2, 0, 0]),
    (Cosine(rounds=4, final=0.2), [1, 0.2 + 0.4 * (1 + cos(pi / 4)), 0.6, 0.2 + 0.4 * (1 + cos(3 * pi / 4)), 0.2, 0.2]),
    (Cosine(rounds=4, warmup=2), [1 / 3, 2 / 3, 1, 0.5, 0]),
]


@pytest.mark.parametrize(("schedule", "factors"), FACTORS)
def test_factors_by_round(schedule: Schedule, factors: list[float]) -> None:
    assert [schedule.factor(t) for t in range(len(factors))] == pytest.approx(factors)


@pytest.mark.parametrize("optimiser", [ClientSGD(0.1), ClientAdam(0.1)])
@pytest.mark.parametrize(("schedule", "factors"), FACTORS)
def test_the_learning_rate_of_a_round(
    optimiser: ClientSGD | ClientAdam, schedule: Schedule, factors: list[float]
) -> None:
    training = LocalTraining(optimiser=optimiser, schedule=schedule)
    for t, factor in enumerate(factors):
        assert training.at_round(t).optimiser == replace(optimiser, lr=0.1 * schedule.factor(t))
        assert training.at_round(t).at_round(t).optimiser.lr == pytest.approx(0.1 * factor)


@pytest.mark.parametrize(
    ("schedule", "scheduler", "settings"),
    [
        (Decay(0.9), "ExponentialLR", {"gamma": 0.9}),
        (StepDecay(3, 0.5), "StepLR", {"step_size": 3, "gamma": 0.5}),
        (Cosine(rounds=8), "CosineAnnealingLR", {"T_max": 8}),
        (Cosine(rounds=8, final=0.25), "CosineAnnealingLR", {"T_max": 8, "eta_min": 0.025}),
        (Warmup(4), "LinearLR", {"start_factor": 0.25, "total_iters": 3}),
    ],
)
def test_schedules_are_those_of_torch(schedule: Schedule, scheduler: str, settings: dict[str, float]) -> None:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    reference = getattr(torch.optim.lr_scheduler, scheduler)(optimiser, **settings)
    for t in range(8):
        assert 0.1 * schedule.factor(t) == pytest.approx(optimiser.param_groups[0]["lr"]), t
        optimiser.step()
        reference.step()


def test_settings_out_of_range_are_errors() -> None:
    for name, settings, key in (
        ("decay", {"rate": 0.0}, "rate"),
        ("step", {"every": 0}, "every"),
        ("cosine", {"final": 1.5}, "final"),
        ("warmup", {"rounds": -1}, "rounds"),
    ):
        with pytest.raises(UserError) as error:
            SCHEDULES[name](**settings)
        assert (error.value.code, error.value.key) == ("config.invalid_value", f"local.schedule.{key}")
