"""The Ray engine without failures: a short run, messages, and errors before the start."""

import sys
from pathlib import Path

import pytest
import torch

import fedrecall as fr
from fedrecall.simulation.ray.actor import copy_payload, make_actor_args, pack_payload, pack_tensor, view_tensor
from fedrecall.simulation.ray.session import open_session
from fedrecall.testing.federation import model, simulated_clients


def test_a_run_has_the_bits_of_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client states, metrics, held-out examples and settings of the training: one run, because Ray starts slowly."""
    monkeypatch.chdir(Path(__file__).parents[2])  # Ray's workers import own code from the current folder
    config = {
        "federation": {"clients": 3},
        "data": {"client_test": 0.2, "validation": 0.2},
        "method": {"name": "scaffold"},
        "local": {"epochs": 1, "optimiser": "adamw", "clip": 0.5, "class_weights": "balanced"},
        "run": {"rounds": 2, "metrics": ["macro_f1", "support.own_code:brier"], "stop": {"patience": 5}},
    }
    expected = fr.run(config | {"engine": {"name": "serial"}})
    got = fr.run(config | {"engine": {"name": "ray", "workers": 1}})
    assert torch.equal(got.server.state, expected.server.state)
    for key in ("accuracy", "metrics", "client_test", "validation"):
        assert [line[key] for line in got.rounds] == [line[key] for line in expected.rounds], key


def test_tensors_of_every_type_arrive_unchanged() -> None:
    config = {
        "float": torch.randn(3, 5).T,
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4, dtype=torch.float64),
        "bool": torch.tensor([True, False]),
        "half": torch.randn(7).bfloat16(),
        "images": torch.randint(0, 255, (2, 3, 4, 4), dtype=torch.uint8).contiguous(memory_format=torch.channels_last),
    }
    got = copy_payload(pack_payload(config))
    assert list(got) == list(config)
    for name, t in config.items():
        assert got[name].dtype == t.dtype
        assert torch.equal(got[name], t)
    assert got["images"].stride() == config["images"].stride()
    array = pack_tensor(torch.arange(100.0))
    assert view_tensor(array).data_ptr() == array.content.ctypes.data, "in place"
    odd = view_tensor(array._replace(content=array.content[4:], shape=(99,)))
    assert odd.data_ptr() % 64 == 0, "unless torch would not have put it there: the last bit may depend on it"


@pytest.mark.parametrize(
    ("address", "code"),
    [
        *((address, "config.invalid_value") for address in ("nonsense", "host:port", "127.0.0.1:", ":1")),
        *((address, "engine.ray_unreachable") for address in ("127.0.0.1:1", "ray://127.0.0.1:1")),
    ],
)
def test_addresses_without_ray(address: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # whatever other tests have left running
    with pytest.raises(fr.UserError) as caught:
        open_session(address, None)
    assert (caught.value.code, caught.value.key) == (code, "ray.address")
    assert f'"{address}"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_error_without_ray_has_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fr.UserError) as caught:
        fr.run({"engine": {"name": "ray"}}, out=tmp_path / "a")
    assert (caught.value.code, caught.value.key) == ("install.missing_extra", "ray")
    assert ".[ray]" in str(caught.value)
    assert [path.name for path in (tmp_path / "a").iterdir()] in ([], ["run.lock"]), "nothing half-written"


def test_settings() -> None:
    with pytest.raises(fr.UserError) as caught:
        fr.Experiment.load(None, ["ray.address=auto"])
    assert (caught.value.code, caught.value.key) == ("config.conflict", "ray.address")
    assert 'engine.name = "pool"' in str(caught.value)
    experiment = fr.Experiment.load(None, ["ray.address=auto", "engine.name=ray", "engine.workers=3"])
    assert fr.Experiment(**experiment.to_tables()) == experiment
    assert "ray" not in fr.Experiment().to_tables(), "only who uses it hears of it"


def test_the_model_is_sent_with_its_first_values() -> None:
    f = model(batch_norm=True)
    f.attach(torch.zeros_like(f.w), torch.zeros_like(f.b), f.int_buffers)  # as it is after somebody has trained it here
    cargo = make_actor_args(simulated_clients(fr.Method()), f)
    sent = [p for p in cargo.model.parameters() if p.requires_grad]
    assert torch.equal(torch.cat([p.detach().flatten() for p in sent]), f.w)
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in sent), "and without what it is a view of"
