"""Errors for misspelt names and keys: one line with the nearest valid name."""

from pathlib import Path
from typing import Any

import pytest

import fedrecall as fr
from fedrecall.errors import UserError
from fedrecall.studies.tuning.search import resolve_search
from support.command import call

KEYS = [  # key, the wrong value or key, and what was meant
    ("method.name", "fedlm", "fedlmd"),
    ("model.name", "resnet5", "resnet50"),
    ("data.name", "mnits", "mnist"),
    ("data.name", "foldr", "folder"),
    ("federation.partition.name", "dirichlett", "dirichlet"),
    ("federation.attack.name", "labelflip", "label-flip"),
    ("federation.straggler.name", "log-normal", "lognormal"),
    ("server.robust.name", "kru", "krum"),
    ("server.privacy.name", "gausian", "gaussian"),
    ("server.optimiser", "adm", "adam"),
    ("engine.name", "pol", "pool"),
    ("run.track", "tensorbord", "tensorboard"),
    ("data.aux", "overlp", "overlap"),
]
MISSPELT = [
    ("rnu.rounds=3", "run"),
    ("rounds=3", "run.rounds"),
    ("run.rouns=3", "rounds"),
    ("federation.partition.alhpa=1", "alpha"),
    ("federation.alpha=1", "federation.partition.alpha"),
    ("alpha=1", "federation.partition.alpha"),
    ("run.lr=1", "local.lr"),
    ("method.nme=fedlmd", "method.name"),
    ("method.lr=1", "local.lr"),
    ('run.probes=["confsion"]', "confusion"),
]


@pytest.mark.parametrize(("key", "wrong", "meant"), KEYS)
def test_a_value(key: str, wrong: str, meant: str, tmp_path: Path) -> None:
    hint = f'"{meant}"'
    with pytest.raises(UserError) as error:
        fr.Experiment.load(overrides=[f"{key}={wrong}"])
    assert (error.value.code, error.value.key) == ("config.unknown_name", key)
    assert hint in str(error.value.hint)
    tables: Any = wrong
    for part in reversed(key.split(".")):
        tables = {part: tables}
    with pytest.raises(UserError) as error:
        fr.Experiment(**tables)
    assert hint in str(error.value.hint)
    *section, last = key.split(".")
    file = tmp_path / "c.toml"
    file.write_text(f'[{".".join(section)}]\n{last} = "{wrong}"\n')
    with pytest.raises(UserError) as error:
        fr.run(file)
    assert hint in str(error.value.hint)


@pytest.mark.parametrize(("text", "meant"), MISSPELT)
def test_a_key(text: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        fr.Experiment.load(overrides=[text])
    assert error.value.code in ("config.unknown_section", "config.unknown_key", "config.unknown_name")
    assert f'"{meant}"' in str(error.value.hint)


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["rn"], "'run'"),
        (["show", "methds"], "'methods'"),
        (["flower", "demmo"], "'demo'"),
        (["run", "--rsume", "x"], "--resume"),
        (["run", "--lr", "1"], "--set local.lr="),
        (["compare", "--epochs", "1"], "--set local.epochs="),
        (["run", "missing.toml"], "fedrecall init"),
        (["run", "--set", "method.name=fedcad", "--set", "method.estimate=loca"], '"local"'),
        (["run", "--set", "method.name=fedcad", "--set", "method.preset=fedcad-s"], '"fedcad-sa"'),
        (["compare", "fedavgg"], '"fedavg"'),
        (["compare", "fedlmd:taau=3"], '"tau"'),
        (["reproduce", "fedlmd-tabel-1"], '"fedlmd-table-1"'),
        (["reproduce", "fedlmd-table-1", "--methods", "FedAv"], '"FedAvg"'),
        (["reproduce", "fedlmd-table-1", "--cells", "CIFAR-10 LDA 0.5"], '"CIFAR-10 LDA 0.05"'),
        (["tune", "fedlm"], '"fedlmd"'),
        (["tune", "fedlmd", "--over", "method.taau=1,2"], '"tau"'),
        (["init", "x.toml", "--data", "digts"], '"digits"'),
        (["init", "x.toml", "--method", "fedlm"], '"fedlmd"'),
    ],
)
def test_an_argument(
    args: list[str],
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, *args)
    assert code == 2
    assert meant in err.splitlines()[-1]
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_in_python() -> None:
    for wrong in (lambda: fr.run(method="fedlm"), lambda: resolve_search("fedlm", None, [], [])):
        with pytest.raises(UserError) as error:
            wrong()
        assert (error.value.code, error.value.key) == ("config.unknown_name", "method.name")
        assert '"fedlmd"' in str(error.value.hint)
