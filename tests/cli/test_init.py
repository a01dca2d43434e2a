"""`fedrecall init` writes a valid, described configuration that runs."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedrecall as fr
from fedrecall.config.schema import SCHEMA_FILE, choice_members, choice_schema, key_infos, member_settings
from fedrecall.config.template import schema_reference, template_lines, write_template
from fedrecall.errors import UserError
from fedrecall.methods.presets import PRESETS
from support.command import call


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path / "patients.csv"
    rows = (f"{x:.3f},{'ab'[i % 2]},{int(x > 0)},site-{i % 3}" for i, x in enumerate(rng.normal(size=90)))
    file.write_text("\n".join(["score,kind,ill,hospital", *rows]) + "\n")
    return file


@pytest.mark.parametrize("method", fr.METHODS)
def test_it_reads_back_as_the_defaults_and_the_choices(method: str, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    written = write_template(file, method=method)
    assert fr.Experiment.load(file) == written == fr.Experiment(method={"name": method})


def test_every_key_is_written_and_valid(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    write_template(file, data="cifar10", method="fedcsd")
    section, found = "", set()
    for line in file.read_text().splitlines():
        if header := re.match(r"(?:# )?\[([\w.]+)\]", line):
            section = header[1]
        elif key := re.match(r"(?:# )?(\w+) =", line):
            found.add(f"{section}.{key[1]}")
    every = key_infos()
    settings = member_settings(choice_members(choice_schema("method"))["fedcsd"])
    expected = {key for key in every if not key.startswith(("method.", "model.", "federation.partition."))}
    expected = {
        key
        for key in expected
        if not re.match(
            r"federation.(straggler|attack)|server.(robust|preaggregation|privacy)|local.schedule|data.imbalance", key
        )
    }
    expected |= {f"method.{key}" for key in ("name", "preset", *settings)}
    assert expected <= found
    assert found - {"method.preset"} <= set(every)


def test_editors_find_the_schema(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    write_template(file)
    assert SCHEMA_FILE.as_posix() not in file.read_text(), "no path of this machine"
    below = SCHEMA_FILE.parents[2] / "e.toml"
    assert schema_reference(below) == "fedrecall/config/schema.json"
    assert next(iter(template_lines(fr.Experiment(), below))) == "#:schema fedrecall/config/schema.json"
    assert schema_reference(SCHEMA_FILE.parents[2] / "configs" / "e.toml") == "../fedrecall/config/schema.json"


def test_a_preset_in_the_template_can_be_uncommented(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    write_template(file, method="fedcad")
    text = file.read_text()
    head, method, rest = re.split(r"(?s)(\n\[method\].*?\n)(?=\n\[server\])", text)
    (preset,) = re.findall(r'# (preset = "fedcad-sa")', method)
    file.write_text(f'{head}\n[method]\nname = "fedcad"\n{preset}\n{rest}')
    method = fr.Experiment.load(file).to_tables()["method"]
    assert method["estimate"] == PRESETS["fedcad-sa"]["fedcad"]["estimate"] == "local"


def test_a_named_method_runs_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(monkeypatch, capsys, "init", "--method", "fedlmd")
    assert code == 0
    (command,) = re.findall(r"^ *fedrecall (run .*)$", out, re.M)
    short = ["--set", "run.rounds=2", "--set", "local.epochs=1", "--set", "engine.name=serial"]
    code, out, _ = call(monkeypatch, capsys, *command.split(), *short)
    assert code == 0
    assert all(fact in out for fact in ("fedlmd", "digits", "2 rounds"))


def test_a_table_with_clients(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    written = write_template(file, data=str(table), label="ill", client="hospital", method="fedntd")
    assert (written.federation.clients, written.data.label, written.data.client) == (3, "ill", "hospital")
    experiment = fr.Experiment.load(file, ["run.rounds=2", "engine.name=serial"])
    assert fr.run(experiment).summary["final"] > 0.5


def test_a_folder_of_images(tmp_path: Path) -> None:
    for kind, grey in (("dark", 20), ("light", 220)):
        folder = tmp_path / "pictures" / kind
        folder.mkdir(parents=True)
        for i in range(30):
            Image.new("L", (16, 16), grey + i).save(folder / f"{i}.png")
    file = tmp_path / "e.toml"
    written = write_template(file, data=str(tmp_path / "pictures"))
    assert tomllib.loads(file.read_text())["data"]["name"] == written.data.name == "folder"
    assert written.federation.clients == 2  # there are 48 to train on, too few for ten clients
    assert fr.run(fr.Experiment.load(file, ["run.rounds=1", "engine.name=serial"])).summary["rounds"] == 1
    Image.new("L", (20, 30)).save(folder / "other.png")
    with pytest.raises(UserError) as error:
        write_template(tmp_path / "resized.toml", data=str(tmp_path / "pictures"))
    assert (error.value.code, error.value.key) == ("data.shape_mismatch", str(folder / "other.png"))
    assert "--size" in str(error.value.hint)
    write_template(tmp_path / "resized.toml", data=str(tmp_path / "pictures"), size=8)
    assert tomllib.loads((tmp_path / "resized.toml").read_text())["data"]["size"] == 8


def test_bad_input_writes_nothing(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    for arguments, code, key, fact in (
        ({"data": str(table)}, "cli.missing_option", "--label", "score, kind, ill, hospital"),
        ({"data": str(table), "label": "il"}, "data.missing_column", "--label", '"ill"'),
        ({"data": str(table), "label": "ill", "client": "hospitl"}, "data.missing_column", "--client", '"hospital"'),
        ({"data": "mnits"}, "config.unknown_name", "--data", '"mnist"'),
        ({"data": "cifar10", "label": "x"}, "cli.conflicting_options", "--label", "cifar10"),
        ({"data": str(tmp_path), "label": "x"}, "cli.conflicting_options", "--label", "table"),
        ({"data": str(table), "label": "ill", "size": 8}, "cli.conflicting_options", "--size", "folder"),
        ({"method": "fedlm"}, "config.unknown_name", "method.name", '"fedlmd"'),
    ):
        with pytest.raises(UserError) as error:
            write_template(file, **arguments)
        assert (error.value.code, error.value.key) == (code, key)
        assert fact in str(error.value)
        assert not file.exists()
    with pytest.raises(UserError) as error:
        write_template(tmp_path / "nowhere" / "e.toml")
    assert (error.value.code, error.value.key) == ("cli.cannot_write", str(tmp_path / "nowhere" / "e.toml"))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text("mine")
    with pytest.raises(UserError) as error:
        write_template(file)
    assert (error.value.code, error.value.key) == ("cli.file_exists", str(file))
    assert file.read_text() == "mine"


def test_a_table_with_gaps_and_identifiers_gets_the_keys_for_them(tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    rows = (f"P{i},{i % 7 if i % 9 else ''},{'ab'[i % 2]},site-{i % 3}" for i in range(90))
    file.write_text("\n".join(["patient,score,ill,hospital", *rows]) + "\n")
    written = write_template(tmp_path / "e.toml", data=str(file), label="ill", client="hospital")
    assert (written.data.drop, written.data.missing) == (("patient",), "category")
    assert fr.Experiment.load(tmp_path / "e.toml") == written
