"""The generated app, the settings of a node, and data on a node."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedrecall import UserError
from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_code
from fedrecall.data.preprocessing import ColumnEncoding, Preprocessing
from fedrecall.flower.app_config import NodeConfig, read_experiment
from fedrecall.flower.app_template import with_flower_engine, write_app
from fedrecall.flower.node_data import load_node_data, make_client_runner
from support.images import write_images

CHANGES = ["method.name=fedcsd", "federation.clients=3", "run.targets=[0.5]", "engine.min_replies=2"]


def test_the_app_contains_the_complete_configuration(tmp_path: Path) -> None:
    experiment = write_app(tmp_path / "my app", None, CHANGES)
    assert experiment.engine.name == "flower"
    project = tomllib.loads((tmp_path / "my app" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert project["project"]["dependencies"] == []
    config = project["tool"]["flwr"]["app"]["config"]
    assert all(isinstance(value, str) for value in config.values()), "Flower takes plain values only"
    assert read_experiment(config) == experiment
    assert read_experiment(config | {"set": "run.rounds=7 method.tau=3.0"}).run.rounds == 7
    readme = (tmp_path / "my app" / "README.md").read_text()
    assert readme.count("flower-supernode --insecure") == 3
    assert "FLWR_TELEMETRY_ENABLED=0" in readme


def test_clients_that_the_data_names_are_the_clients_of_the_app(tmp_path: Path) -> None:
    file, config = tmp_path / "rows.csv", tmp_path / "exp.toml"
    rows = [f"{i % 7},{'ab'[i % 2]},site-{i % 3}" for i in range(60)]
    file.write_text("\n".join(["p,kind,site", *rows]) + "\n")
    data = f'data = {{ name = "table", path = "{file}", label = "kind", client = "site" }}'
    config.write_text(data)
    federation = write_app(tmp_path / "named", config).federation
    assert (federation.clients, type(federation.partition).__name__) == (3, "Groups")
    divided = write_app(tmp_path / "divided", config, ["federation.partition.name=iid", "federation.clients=5"])
    assert (divided.federation.clients, type(divided.federation.partition).__name__) == (5, "Iid")


def test_the_documented_commands_exist() -> None:
    import typer.main  # not above: beside Flower it is an older one, which warns

    from fedrecall import cli

    text = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text().replace("\n   ", " ")
    commands = re.findall(r"fedrecall flower (new|certs|demo)\b([^\n`]*)", text)
    assert {name for name, _ in commands} == {"new", "certs", "demo"}
    known = typer.main.get_command(cli.app).commands["flower"].commands
    for name, rest in commands:
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options
        for change in re.findall(r"--set (\S+)", rest):
            Experiment.load(None, ["federation.clients=3", change])


def test_a_folder_that_is_not_empty_is_an_error_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    with pytest.raises(UserError) as error:
        write_app(tmp_path, None)
    assert (error.value.code, error.value.key) == ("flower.directory_not_empty", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_settings_of_other_engines_are_dropped() -> None:
    engine = with_flower_engine(Experiment(engine={"workers": 2, "min_replies": 3, "device": "cpu"})).engine
    assert (engine.name, engine.workers, engine.min_replies, engine.device) == ("flower", None, 3, "cpu")


@pytest.mark.parametrize(
    ("config", "code", "key", "fact"),
    [
        ({}, "flower.invalid_node_config", "node-config.client", "client = NUMBER"),
        ({"client": True, "state": "s"}, "flower.invalid_node_config", "node-config.client", "client = NUMBER"),
        ({"client": 0}, "flower.invalid_node_config", "node-config.state", 'state = "FOLDER"'),
        ({"client": 0, "state": "s", "foldr": "x"}, "config.unknown_key", "node-config.foldr", '"folder"'),
        (
            {"client": 0, "state": "s", "folder": "x", "table": "y"},
            "flower.invalid_node_config",
            "node-config.table",
            "folder",
        ),
        ({"client": 0, "state": "s", "label": "x"}, "flower.invalid_node_config", "node-config.label", "table"),
    ],
)
def test_invalid_node_settings_are_errors(config: dict[str, object], code: str, key: str, fact: str) -> None:
    with pytest.raises(UserError) as error:
        NodeConfig.from_node_config(config)
    assert (error.value.code, error.value.key) == (code, key)
    assert fact in str(error.value)


@pytest.mark.parametrize(
    ("app", "key"),
    [({}, "experiment"), ({"experiment": "= no TOML"}, "experiment"), ({"experiment": ""}, "engine.name")],
)
def test_an_app_without_an_experiment_for_flower_is_an_error(app: dict[str, str], key: str) -> None:
    with pytest.raises(UserError) as error:
        read_experiment(app)
    assert (error.value.code, error.value.key) == ("flower.invalid_app", key)


def test_labels_of_a_nodes_folder_are_encoded_by_the_federations_names(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", {"cat": 5, "owl": 10})
    experiment = Experiment(federation={"clients": 3}, data={"name": "folder", "path": "not on this machine"})
    node = NodeConfig(1, tmp_path, folder=folder)
    schema = Preprocessing(("cat", "dog", "owl"), {"": (1, 4, 4)}, {"": "uint8"})
    node_data = load_node_data(node, experiment, schema)
    world, f = make_client_runner(experiment, node_data)
    assert len(node_data.auxiliary) == 0
    assert torch.bincount(node_data.client_examples.y).tolist() == [5, 0, 10], "all examples of the node"
    assert [len(world.partition.rows(client)) for client in range(3)] == [0, 15, 0]
    assert world.classes == 3
    reply = world.run_task(f, "train", 1, 0, {"w": f.w}, None)
    assert reply.n == 15
    with pytest.raises(UserError) as error:
        load_node_data(node, experiment, replace(schema, classes=("dog", "owl")))
    assert (error.value.code, error.value.key) == ("data.unknown_class", "cat")
    assert "dog, owl" in str(error.value)


def test_table_of_a_node(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("x,y,kind\n" + "".join(f"{i},{-i},{'ab'[i % 2]}\n" for i in range(20)))
    experiment = Experiment(federation={"clients": 2}, data={"name": "digits"})
    columns = (ColumnEncoding("y", None, -10.0, 2.0), ColumnEncoding("x", None, 10.0, 5.0))
    schema = Preprocessing(("a", "b", "c"), {"": (2,)}, {"": "float32"}, columns)
    node_data = load_node_data(NodeConfig(0, tmp_path, table=file, label="kind"), experiment, schema)
    assert torch.allclose(node_data.dataset.train_x[:2], torch.tensor([[5.0, -2.0], [4.5, -1.8]]))
    assert torch.bincount(node_data.client_examples.y, minlength=3).tolist() == [10, 10, 0], "all rows of the node"


def test_a_folder_of_test_images_on_a_node_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_images(tmp_path / "images" / part, {"cat": 3, "owl": 3})
    node = NodeConfig(0, tmp_path, folder=tmp_path / "images")
    with pytest.raises(UserError) as error:
        load_node_data(node, Experiment(federation={"clients": 2}, data={"name": "folder"}))
    assert (error.value.code, error.value.key) == ("flower.invalid_node_config", "node-config.folder")


def test_rows_of_the_configured_data(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("5 7\n1400\n")
    experiment = Experiment(federation={"clients": 2})
    node_data = load_node_data(NodeConfig(1, tmp_path, index=tmp_path / "rows.txt"), experiment)
    assert node_data.partition.rows(1).tolist() == [5, 7, 1400]
    for wrong in ("5 5", "-1", "99999", "a", ""):
        (tmp_path / "rows.txt").write_text(wrong)
        with pytest.raises(UserError) as error:
            load_node_data(NodeConfig(1, tmp_path, index=tmp_path / "rows.txt"), experiment)
        assert (error.value.code, error.value.key) == ("flower.invalid_node_config", "node-config.index")


def test_a_client_number_beyond_the_federation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        load_node_data(NodeConfig(3, tmp_path), Experiment(federation={"clients": 3}))
    assert (error.value.code, error.value.key) == ("flower.invalid_node_config", "node-config.client")
    assert "0 to 2" in str(error.value)


def test_own_code_is_packed_by_name_and_imported_by_nodes_that_list_it(tmp_path: Path) -> None:
    tables = {"method": {"name": "support.own_code:Calm"}, "federation": {"clients": 2}}
    experiment = with_flower_engine(Experiment(**tables))
    assert experiment.to_tables()["method"]["name"] == "support.own_code:Calm"
    config = {"client": 0, "state": str(tmp_path)}
    listed = NodeConfig.from_node_config(config | {"code": "other.module:Thing, support.own_code:Calm"})
    assert import_own_code(experiment, allowed=listed.code).known_method is not None
    with pytest.raises(UserError) as error:
        import_own_code(experiment, allowed=NodeConfig.from_node_config(config).code)
    assert error.value.code == "config.untrusted_code"
