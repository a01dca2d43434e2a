"""Tests of integer inputs and of several inputs by name, from the data to the result, with every method."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrecall as fr
from fedrecall import METHODS
from fedrecall.errors import UserError

RNG = np.random.default_rng(0)
N = 60
Y = np.arange(N) % 3
IDS = np.where(RNG.random((N, 5)) < 0.5, Y[:, None] + 1, RNG.integers(0, 7, (N, 5)))
MASK = np.arange(5) < RNG.integers(2, 6, (N, 1))
PIXELS = RNG.integers(0, 256, (N, 4, 4), dtype=np.uint8)
CLIENTS = np.where(RNG.random(N) < 0.7, Y, (Y + 1) % 3)
SETTINGS = {
    "data": {"aux_per_class": 2},
    "federation": {"clients": 3, "partition": {"name": "groups"}},
    "local": {"epochs": 2, "batch": 8, "lr": 0.1},
    "engine": {"name": "serial"},
    "run": {"rounds": 2, "local_accuracy": True},
}


class WordsAndImage(nn.Module):
    """Embeddings of words beside an image."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.image, self.last = nn.Embedding(7, 6), nn.Linear(16, 6), nn.Linear(12, 3)

    def forward(self, ids: Tensor, mask: Tensor, image: Tensor) -> Tensor:
        words = (self.words(ids) * mask.unsqueeze(-1)).sum(1)
        return self.last(torch.cat([words, self.image(image.flatten(1))], 1))


WORDS = {"ids": IDS, "mask": MASK, "image": PIXELS}


def words(x: object = WORDS) -> fr.Dataset:
    return fr.from_arrays(x, Y, clients=CLIENTS, name="words")


def run(method: object = "fedavg", **changes: object) -> fr.Result:
    return fr.run(SETTINGS, data=words(), model=WordsAndImage, method=method, progress=False, **changes)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_trains_on_inputs_by_name(method: str) -> None:
    result = run(method)
    assert len(result.rounds) == 2
    assert all(np.isfinite(record["train_loss"]) for record in result.rounds)


def test_the_pool_gives_the_bits_of_serial() -> None:
    settings = ["data.augment={flip=true}", "run.probes=['shift', 'own_data']"]
    serial = run("fedlmd", overrides=settings)
    pool = run("fedlmd", overrides=[*settings, "engine.name='pool'", "engine.workers=2"])
    assert torch.equal(serial.server.w, pool.server.w)
    assert [r["accuracy"] for r in serial.rounds] == [r["accuracy"] for r in pool.rounds]
    assert serial.probes == pool.probes


def test_one_input_by_name_is_the_same_input_alone() -> None:
    class Plain(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    def net() -> nn.Module:
        return Plain(nn.Embedding(7, 6), nn.Flatten(), nn.Linear(30, 3))

    named, alone = (
        fr.run(SETTINGS, data=words(x), model=net, method="fedcurv", progress=False) for x in ({"x": IDS}, IDS)
    )
    assert torch.equal(named.server.w, alone.server.w)


def test_the_model_of_a_result_takes_names() -> None:
    result = run()
    mask, image = torch.tensor(MASK[:2]), torch.tensor(PIXELS[:2]).float() / 255
    _, z = result.model()(ids=torch.tensor(IDS[:2]), mask=mask, image=image)
    assert z.shape == (2, 3)


def test_a_run_on_inputs_by_name_is_resumed_to_the_bit(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def interrupt(record: object) -> None:
        raise Stop

    whole = run("fedlmd")
    with pytest.raises(Stop):
        run("fedlmd", out=tmp_path / "run", watch=interrupt)
    resumed = run("fedlmd", out=tmp_path / "run", resume=True)
    assert torch.equal(whole.server.w, resumed.server.w)


def test_integers_reach_an_embedding_and_the_mlp() -> None:
    embedded = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 3))
    for model in (embedded, None):
        result = fr.run(SETTINGS, data=(IDS, Y, CLIENTS), model=model, progress=False)
        assert len(result.rounds) == 2


@pytest.mark.parametrize("model", [None, {"name": "mlp"}])
def test_models_for_one_input_refuse_several(model: dict[str, str] | None) -> None:
    with pytest.raises(UserError) as error:
        fr.run(SETTINGS | ({"model": model} if model else {}), data=words(), progress=False)
    assert (error.value.code, error.value.key) == ("model.unsupported_input", "model")
    assert "ids, mask, image" in str(error.value)


def test_an_id_that_only_one_example_has_is_found_before_the_run() -> None:
    ids = IDS.copy()
    ids[17, 3] = 7
    with pytest.raises(UserError) as error:
        fr.run(SETTINGS, data=words(WORDS | {"ids": ids}), model=WordsAndImage, progress=False)
    assert error.value.code == "model.unsupported_input"
    assert "largest integer is 7" in str(error.value)


def test_accuracy_at_chance_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(overrides=["local.lr=1e-8", "local.epochs=1"])
        assert "chance" in caplog.text
        caplog.clear()
        fr.run(SETTINGS, data=(np.eye(3, dtype=np.float32)[Y], Y, CLIENTS), rounds=8, progress=False)
        assert "chance" not in caplog.text
