"""Placement of workers: the logic with a pretended number of GPUs, and runs on a GPU where there is one."""

import pytest
import torch

import fedrecall as fr
from fedrecall.simulation.devices import available_cores, default_workers, make_deterministic, worker_device
from fedrecall.simulation.processes import default_start_method

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)
    return request.param


@pytest.mark.parametrize("gpus", [0], indirect=True)
def test_without_a_gpu(gpus: int) -> None:
    for device in ("auto", "cpu"):
        assert worker_device(3, device) == torch.device("cpu")
        assert default_workers(device) == available_cores()
        assert default_start_method(device) in ("fork", "spawn")
    for device in ("cuda", "cuda:0"):
        with pytest.raises(fr.UserError) as error:
            worker_device(0, device)
        assert (error.value.code, error.value.key) == ("engine.no_device", "engine.device")


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_with_two_gpus(gpus: int) -> None:
    for device in ("auto", "cuda"):
        assert [worker_device(number, device).index for number in range(5)] == [0, 1, 0, 1, 0]
        assert default_workers(device) == 2
        assert default_start_method(device) == "spawn"
    assert [str(worker_device(number, "cuda:1")) for number in range(3)] == ["cuda:1"] * 3
    assert default_workers("cuda:1") == 1
    assert worker_device(1, "cpu") == torch.device("cpu")
    assert default_workers("cpu") == available_cores()
    with pytest.raises(fr.UserError) as error:
        worker_device(0, "cuda:2")
    assert (error.value.code, error.value.key) == ("engine.no_device", "engine.device")


def test_the_cpu_keeps_its_kernels() -> None:
    make_deterministic(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_run_on_a_missing_device_leaves_no_files(engine: str, tmp_path) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run({"engine": {"name": engine, "device": "cuda"}}, out=tmp_path / "run", progress=False)
    assert error.value.code == "engine.no_device"
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_the_cpu_by_name_gives_the_bits_of_the_cpu(engine: str) -> None:
    accuracies = [
        fr.run({"engine": {"name": engine, "device": device}}, rounds=1, clients=2, progress=False).summary["final"]
        for device in ("auto", "cpu")
    ]
    assert accuracies[0] == accuracies[1] or torch.cuda.is_available()


@needs_gpu
def test_several_workers_share_a_gpu() -> None:
    tables = {"engine": {"name": "pool", "device": "cuda:0", "workers": 3}}
    states = [fr.run(tables, rounds=2, clients=4, progress=False).model().state_dict() for _ in range(2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    serial = fr.run({"engine": {"name": "serial", "device": "cuda:0"}}, rounds=2, clients=4, progress=False)
    for name, value in serial.model().state_dict().items():
        torch.testing.assert_close(value, states[0][name])


@needs_gpu
def test_the_memory_of_a_worker_is_released_when_it_ends() -> None:
    torch.cuda.mem_get_info()  # the context of this process
    before, _ = torch.cuda.mem_get_info()
    fr.run({"engine": {"name": "pool", "device": "cuda:0", "workers": 2}}, rounds=1, clients=4, progress=False)
    after, _ = torch.cuda.mem_get_info()
    assert after >= before - 2**20
