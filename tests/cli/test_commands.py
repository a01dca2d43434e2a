"""Commands of the command line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from fedrecall import cli
from support.command import call


def fedrecall(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedrecall", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=300)


def test_quickstart(tmp_path: Path) -> None:
    done = fedrecall("run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(re.findall(r"^round +\d+/20  accuracy \d+\.\d\d %  \d+\.\d\d s$", done.stdout, re.M)) == 20
    final = re.search(r"final (\d+\.\d\d) %", done.stdout)
    assert final is not None
    assert float(final[1]) > 90
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name in done.stdout.replace("\n", "")
    assert (run / "summary.json").exists()


WITHOUT_TORCH = """
import sys
from fedrecall.cli import main
sys.argv = ["fedrecall", "--help"]
try:
    main()
finally:
    print("torch" in sys.modules)
"""


def test_help_does_not_wait_for_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("subject", "names"),
    [
        ("methods", ["fedavg", "fedprox", "mu=0.001"]),
        ("datasets", ["digits", "cifar10", "office-caltech-10", "folder", "table"]),
        ("models", ["cnn-32-64", "resnet50", "mlp"]),
        ("partitions", ["dirichlet", "alpha=0.5", "shards"]),
    ],
)
def test_show(
    subject: str, names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(monkeypatch, capsys, "show", subject)
    assert code == 0
    assert all(name in out for name in names)
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_show_partition(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / f"p.{suffix}"
    code, out, _ = call(monkeypatch, capsys, "show", "partition", "--set", "federation.clients=30", "--out", figure)
    assert code == 0
    assert "dirichlet" in out
    assert "and 10 more clients" in out
    assert figure.stat().st_size > 1000


@pytest.mark.parametrize(
    ("args", "fact"),
    [
        (["run", "nowhere.toml"], "nowhere.toml"),
        (["run", "--set", "method.name=fedavgg"], '"fedavgg"'),
        (["run", "--set", "data.name=mnits"], '"mnist"'),
        (["run", "--set", "local.lr=1e9", "--set", "run.rounds=2"], "local.lr"),
        (["show", "partition", "--out", "picture.xyz"], "picture.xyz"),
        (["show", "partition", "--set", "federation.clients=0"], "federation.clients = 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    args: list[str], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(monkeypatch, capsys, *args)
    assert code == 2
    assert fact in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


def test_usage_errors_exit_with_2_too() -> None:
    done = fedrecall("run", "--bogus")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


FEDERATION = {"--alpha", "--clients", "--data", "--model", "--rounds", "--sample", "--seed"}  # of run, compare, tune


def test_the_list_of_options_is_frozen() -> None:
    """Settings go into files and --set: an option is added here on purpose or not at all."""
    options: dict[str, list[str]] = {}

    def collect(command, path: str) -> None:
        options[path] = sorted(o for p in command.params for o in p.opts if o.startswith("-"))
        for name, inner in getattr(command, "commands", {}).items():
            collect(inner, f"{path} {name}".strip())

    collect(typer.main.get_command(cli.app), "")
    assert options == {
        "": ["--install-completion", "--show-completion", "--version"],
        "init": ["--client", "--data", "--label", "--method", "--size"],
        "run": sorted(FEDERATION | {"--force", "--json", "--method", "--out", "--resume", "--set", "--trust-code"}),
        "compare": sorted(FEDERATION | {"--baselines", "--config", "--json", "--out", "--seeds", "--set"}),
        "reproduce": [
            "--cells",
            "--fraction",
            "--json",
            "--list",
            "--methods",
            "--out",
            "--seeds",
            "--set",
            "--store",
            "--tune",
        ],
        "tune": sorted(FEDERATION | {"--config", "--json", "--out", "--over", "--set", "--trials"}),
        "report": ["--out"],
        "predict": ["--method", "--out", "--seed", "--trust-code"],
        "doctor": ["--explain", "--json"],
        "flower": [],
        "flower new": ["--config", "--module", "--set", "--with"],
        "flower check": ["--host"],
        "flower status": ["--format", "--serve"],
        "flower certs": ["--host", "--nodes"],
        "flower demo": ["--out", "--set"],
        "show": [],
        "show methods": ["--json"],
        "show models": ["--json"],
        "show partitions": ["--json"],
        "show rules": ["--json"],
        "show attacks": ["--json"],
        "show datasets": ["--json"],
        "show probes": ["--json"],
        "show partition": ["--json", "--out", "--set"],
    }
