"""Absurd settings, endless files, limits of the system, mistakes in users' own code: one line and exit code 2."""

import errno
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn

import fedrecall as fr
from fedrecall.config.tables import MAX_CONFIG_BYTES
from fedrecall.core.types import Cohort, Local, Payload
from fedrecall.errors import limit_reached
from support.command import call

QUICK = ["--set", "run.rounds=1", "--set", "local.epochs=1"]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("federation.straggler={spread=1e300}", "federation.straggler.spread"),
        ("federation.straggler={jitter=1e300}", "federation.straggler.jitter"),
        ('server.robust={name="clip",norm=1e-300}', "server.robust.norm"),
        ('server.robust={name="clip",norm=inf}', "server.robust.norm"),
        ("federation.max_norm=1e-300", "federation.max_norm"),
        ("local.lr=1e-45", "local.lr"),
        ("local.lr=1e300", "local.lr"),
        ("local.lr_decay=1e300", "local.lr_decay"),
        ("local.lr_decay=1e-300", "local.lr_decay"),
        ("local.weight_decay=1e300", "local.weight_decay"),
        ("local.prox=1e300", "local.prox"),
        ('server.robust={name="geometric-median",steps=100000000000}', "server.robust.steps"),
        ('federation.attack={name="scaling",scale=1e300}', "federation.attack.scale"),
        ("method={name='fedntd',tau=1e-300}", "method.tau"),
        ("method={name='fedprox',mu=1e300}", "method.mu"),
    ],
)
def test_a_number_that_float32_cannot_use(override: str, key: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.Experiment.load(overrides=[override])
    assert (error.value.code, error.value.key) == ("config.invalid_value", key)
    assert len(str(error.value)) < 100  # bounds are not printed digit by digit


@pytest.mark.parametrize("path", ["/dev/zero", "large.toml"])
def test_a_configuration_without_end_is_not_read(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("large.toml").write_bytes(b"#" * (MAX_CONFIG_BYTES + 1))
    code, _, err = call(monkeypatch, capsys, "run", path)
    assert code == 2
    assert err.endswith("[config.unreadable_file]\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "limit",
    [(resource.RLIMIT_NOFILE, 20), (resource.RLIMIT_FSIZE, 0), *((resource.RLIMIT_AS, n * 10**8) for n in (2, 3))],
)
def test_a_limit_of_the_system_is_named(limit: tuple[int, int], tmp_path: Path) -> None:
    """In a process of its own: a limit cannot be raised again.

    The memory is too small for torch's largest library. With little more, the library is loaded, and may abort the
    process while it initialises.
    """
    program = (
        f"import resource; resource.setrlimit({limit[0]}, ({limit[1]}, {limit[1]})); "
        "from fedrecall.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", *QUICK],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().endswith(
        ("[system.limit_reached]", "[run.cannot_write]", "[engine.worker_start_failed]")
    )


def test_memory_that_ends_is_a_limit_and_another_error_is_not() -> None:
    for error in (
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 TB"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ):
        known = limit_reached(error)
        assert known is not None
        assert known.code == "system.limit_reached"
    assert limit_reached(RuntimeError("a bug")) is None
    assert limit_reached(FileNotFoundError(2, "No such file or directory")) is None


@dataclass(frozen=True)
class WrongReply(fr.Method):
    """Replies with something else than the weights."""

    how: str = "float64"

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        wrong: dict[str, Callable[[], Any]] = {
            "float64": w.double,
            "complex64": lambda: torch.complex(w, w),
            "int64": w.long,
            "meta": lambda: w.to("meta"),
            "[3]": lambda: w[:3],
            "list": w.tolist,
        }
        return {"w": wrong[self.how]()}, {}


@dataclass(frozen=True)
class NoReply(fr.Method):
    """Replies without weights."""

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        return {"other": w}, {}


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_weights_of_another_form_are_named(engine: str) -> None:
    for how in ("float64", "complex64", "int64", "meta", "[3]", "list"):
        with pytest.raises(fr.UserError) as error:
            fr.run({"engine": {"name": engine}}, method=WrongReply(how), rounds=1)
        assert error.value.code == "round.client_failed"
        assert how in str(error.value)
        assert '"w"' in str(error.value)
    with pytest.raises(fr.UserError) as error:
        fr.run({"engine": {"name": engine}}, method=NoReply(), rounds=1)
    assert error.value.code == "method.no_weights"


@dataclass(frozen=True)
class WrongServer(fr.Method):
    """Aggregates to something else than a server with the weights of the model."""

    how: str = "float64"

    def aggregate(self, server: fr.Server, replies: Iterable[fr.Reply], cohort: Cohort) -> fr.Server:
        after = super().aggregate(server, replies, cohort)
        w = {"float64": after.w.double(), "complex64": after.w + 0j, "meta": after.w.to("meta"), "[3]": after.w[:3]}
        return replace(after, w=w[self.how]) if self.how in w else None


def test_a_server_of_another_form_is_named() -> None:
    for how in ("float64", "complex64", "meta", "[3]", "NoneType"):
        with pytest.raises(fr.UserError) as error:
            fr.run({"engine": {"name": "serial"}, "local": {"epochs": 1}}, method=WrongServer(how), rounds=1)
        assert (error.value.code, error.value.key) == ("method.invalid_weights", "method")
        assert how in str(error.value)


NO_PAYLOADS: dict[str, Any] = {
    "NoneType": None,
    "list": [torch.ones(3)],
    "float": {"c": 1.0},
    "not a string": {3: torch.ones(3)},
    "sparse": {"c": torch.eye(3).to_sparse()},
    "meta": {"c": torch.ones(3, device="meta")},
}


@dataclass(frozen=True)
class WrongHook(fr.Method):
    """One of its hooks at the server returns something else than a dictionary of tensors."""

    hook: str = "broadcast"
    how: str = "NoneType"

    def init(self, w: Tensor) -> Payload:
        return NO_PAYLOADS[self.how] if self.hook == "init" else {}

    def broadcast(self, server: fr.Server) -> Payload:
        return NO_PAYLOADS[self.how] if self.hook == "broadcast" else {}

    def round(self, server: fr.Server, cohort: Cohort) -> fr.Server:
        if self.hook == "round":
            return self.aggregate(server, cohort.run("train", NO_PAYLOADS[self.how]), cohort)
        return super().round(server, cohort)

    def aggregate(self, server: fr.Server, replies: Iterable[fr.Reply], cohort: Cohort) -> fr.Server:
        after = super().aggregate(server, replies, cohort)
        return replace(after, extra=NO_PAYLOADS[self.how]) if self.hook == "aggregate" else after


@pytest.mark.parametrize("engine", ["serial", "pool"])
@pytest.mark.parametrize("hook", ["init", "broadcast", "round", "aggregate"])
def test_a_hook_that_returns_no_tensors_by_name_is_named(hook: str, engine: str) -> None:
    for how in NO_PAYLOADS if engine == "serial" else ("NoneType", "meta"):
        with pytest.raises(fr.UserError) as error:
            fr.run({"engine": {"name": engine}, "local": {"epochs": 1}}, method=WrongHook(hook, how), rounds=1)
        assert (error.value.code, error.value.key) == ("method.invalid_payload", "method")
        assert how in str(error.value)
        assert {"round": "cohort.run", "aggregate": "aggregation"}.get(hook, hook) in str(error.value)


def test_a_mistake_in_a_method_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hasty.py").write_text(
        "import fedrecall as fr\n\nclass Hasty(fr.Method):\n    def broadcast(self, server):\n        pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = call(monkeypatch, capsys, "run", *QUICK, "--set", "method.name=hasty:Hasty")
    assert code == 2
    assert err.splitlines()[-1].endswith("[method.invalid_payload]")
    assert "Traceback" not in err


@dataclass(frozen=True)
class WrongVector(fr.Method):
    """Returns a server whose weights are right, and something else is not."""

    how: str = "evaluated"

    def aggregate(self, server: fr.Server, replies: Iterable[fr.Reply], cohort: Cohort) -> fr.Server:
        after = super().aggregate(server, replies, cohort)
        if self.how == "evaluated":
            return after.with_extra(evaluated=after.w[:3])
        return replace(after, **{self.how: None}) if self.how != "finish" else after

    def finish(self, server: fr.Server, cohort: Cohort) -> fr.Server:
        return None if self.how == "finish" else server


@pytest.mark.parametrize("how", ["evaluated", "b", "int_buffers", "finish"])
def test_a_server_with_another_vector_is_named(how: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run({"engine": {"name": "serial"}, "local": {"epochs": 1}}, method=WrongVector(how), rounds=1)
    assert (error.value.code, error.value.key) == ("method.invalid_weights", "method")
    assert how in str(error.value)


def test_the_root_of_the_file_system_is_no_folder_of_images() -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run({"data": {"name": "folder", "path": "/"}}, rounds=1)
    assert (error.value.code, error.value.key) == ("data.unsupported_type", "/")


class WrongOutput(nn.Module):
    """A model whose logits are of a type that no loss is computed of."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(4, 3), how

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        return {"complex64": torch.complex(z, z), "int64": z.long(), "meta": z.to("meta")}[self.how]


@pytest.mark.parametrize("how", ["complex64", "int64", "meta"])
def test_logits_that_are_no_real_numbers(how: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(data=(torch.randn(300, 4), [0, 1, 2] * 100), model=WrongOutput(how), rounds=1)
    assert (error.value.code, error.value.key) == ("model.invalid_output", "model")
    assert how in str(error.value)


@pytest.mark.parametrize(
    ("x", "y", "code"),
    [
        (torch.randn(6, 4), None, "data.invalid_labels"),
        (torch.randn(6, 4), torch.zeros(6, device="meta"), "data.invalid_labels"),
        (torch.randn(6, 4, device="meta"), [0, 1] * 3, "data.invalid_inputs"),
        (torch.randn(6, 0), [0, 1] * 3, "data.empty"),
    ],
)
def test_data_without_values(x: Any, y: Any, code: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.from_arrays(x, y)
    assert error.value.code == code


@pytest.mark.parametrize("values", [[b"xx"] * 6, [[1, 2]] * 6, [{"x": 1}] * 6])
def test_a_table_column_that_is_neither_numbers_nor_text(values: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"a": [1.0] * 6, "b": values, "label": [0, 1] * 3}), file)
    with pytest.raises(fr.UserError) as error:
        fr.from_table(file, label="label")
    assert error.value.code == "data.unsupported_type"
    assert '"b"' in str(error.value)
