from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedrecall as fr
from fedrecall.core import precision
from fedrecall.core.precision import (
    ALLOW_SLOW,
    ONEDNN_LIMIT,
    WITHOUT_AMX,
    amx_traps,
    bf16_instructions,
    require_fast,
    require_working,
)
from fedrecall.methods import METHODS
from fedrecall.testing.federation import run_federation, simulated_clients
from support.tiny_federation import flat, vectors

BF16 = replace(simulated_clients(fr.Method()).training, precision="bf16")
CPU = torch.device("cpu")


@pytest.fixture
def allow_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_SLOW, "1")


def test_outputs_are_rounded_and_keep_their_type() -> None:
    f, x = flat(), vectors().x
    full = f.run(f.model, x)
    with f.autocast("bf16"):
        half = f.run(f.model, x)
        frozen = f(f.w, x)
        loss = f.score(f.w, vectors()).loss
    assert loss == f.score(f.w, vectors()).loss, "an evaluation has the precision of the weights"
    assert half.z.dtype == frozen.z.dtype == torch.float32
    assert torch.equal(half.z, half.z.bfloat16().float())
    assert torch.equal(half.z, frozen.z)
    torch.testing.assert_close(half.z, full.z, rtol=0.05, atol=0.05)
    assert not torch.equal(half.z, full.z)
    assert torch.equal(f.run(f.model, x).z, full.z), "the precision ends with its block"


@pytest.mark.usefixtures("allow_slow")
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "fedlmd", "fedcsd"])
def test_the_pool_gives_the_bits_of_serial(name: str, augment: bool) -> None:
    method = METHODS[name]()
    states = []
    for engine in ("serial", "pool"):
        done, _ = run_federation(method, engine=engine, training=BF16, augment=augment)
        states.append(done[-1].server.state)
        assert states[-1].dtype == torch.float32
    full, _ = run_federation(method, augment=augment)
    assert torch.equal(*states)
    assert not torch.equal(states[0], full[-1].server.state)
    torch.testing.assert_close(states[0], full[-1].server.state, rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("allow_slow")
def test_any_number_of_workers_gives_the_same_bits_on_digits() -> None:
    results = []
    for engine in ({"name": "serial"}, {"name": "pool", "workers": 1}, {"name": "pool", "workers": 3}):
        tables = {"local": {"precision": "bf16", "epochs": 1}, "engine": engine, "method": {"name": "fedlmd"}}
        results.append(fr.run(tables, rounds=2, clients=4, progress=False))
    accuracies = [[record["accuracy"] for record in result.rounds] for result in results]
    assert accuracies[0] == accuracies[1] == accuracies[2]
    assert accuracies[0][-1] > 0.3
    weights = [torch.cat([p.flatten() for p in result.model().parameters()]) for result in results]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_a_processor_without_instructions_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ALLOW_SLOW, raising=False)
    monkeypatch.setattr(precision, "bf16_instructions", lambda: ("amx_bf16",))
    require_fast("bf16", CPU)
    monkeypatch.setattr(precision, "bf16_instructions", lambda: ())
    require_fast("fp32", CPU)
    for engine in ("serial", "pool"):
        with pytest.raises(fr.UserError) as error:
            fr.run({"local": {"precision": "bf16"}, "engine": {"name": engine}}, out=tmp_path / "run", progress=False)
        assert (error.value.code, error.value.key) == ("engine.slow_precision", "local.precision")
        assert "\n" not in str(error.value)
        assert not list(tmp_path.rglob("*.jsonl"))
    monkeypatch.setenv(ALLOW_SLOW, "1")
    require_fast("bf16", CPU)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16 amx_tile\n", ("avx512_bf16", "amx_bf16")),
        ("flags\t\t: fpu avx512f avx512_vnni\n", ()),
        ("Features\t: fp asimd bf16 i8mm\n", ("bf16",)),
        ("", ()),
    ],
)
def test_instructions_are_read_from_the_processor(
    text: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    monkeypatch.delenv(ONEDNN_LIMIT, raising=False)
    bf16_instructions.cache_clear()
    try:
        assert bf16_instructions() == found
    finally:
        bf16_instructions.cache_clear()


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ("", ("avx512_bf16", "amx_bf16")),
        ("ALL", ("avx512_bf16", "amx_bf16")),
        ("avx512_core_amx", ("avx512_bf16", "amx_bf16")),
        (WITHOUT_AMX, ("avx512_bf16",)),
    ],
)
def test_instructions_that_onednn_may_not_use_do_not_count(
    limit: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "flags\t\t: avx512_bf16 amx_bf16\n")
    monkeypatch.setenv(ONEDNN_LIMIT, limit)
    bf16_instructions.cache_clear()
    try:
        assert bf16_instructions() == found
    finally:
        bf16_instructions.cache_clear()


@pytest.mark.parametrize(
    ("program", "traps"), [("import os, signal; os.kill(os.getpid(), signal.SIGILL)", True), ("pass", False)]
)
def test_a_processor_that_traps_at_amx_is_refused(
    program: str, traps: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(precision, "bf16_instructions", lambda: ("amx_bf16",))
    monkeypatch.setattr(precision, "_AMX_PROBE", program)
    amx_traps.cache_clear()
    try:
        assert amx_traps() is traps
        require_working("fp32", CPU)
        if not traps:
            require_working("bf16", CPU)
            return
        for engine in ("serial", "pool"):
            tables = {"local": {"precision": "bf16"}, "engine": {"name": engine}}
            with pytest.raises(fr.UserError) as error:
                fr.run(tables, out=tmp_path / "run", progress=False)
            assert (error.value.code, error.value.key) == ("engine.failing_precision", "local.precision")
            assert not list(tmp_path.rglob("*.jsonl"))
    finally:
        amx_traps.cache_clear()
