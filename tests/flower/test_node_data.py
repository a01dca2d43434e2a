"""Tests of the data and the pretrained model of a Flower node. They need no Flower."""

import csv
from pathlib import Path

import pytest
import torch

import fedrecall as fr
from fedrecall.data.preprocessing import Preprocessing
from fedrecall.errors import UserError
from fedrecall.flower.app_config import NodeConfig
from fedrecall.flower.app_template import write_app
from fedrecall.flower.node_data import load_node_data, make_client_runner, with_base_of_node
from fedrecall.runs.setup import prepare_run
from support.tiny_transformer import make_texts, save_transformer

pytest.importorskip("peft", reason="needs the extra text")


def write_notes(file: Path, seed: int = 0) -> Path:
    with file.open("w", newline="") as f:
        csv.writer(f).writerows([("note", "topic", "site"), *zip(*make_texts(seed=seed), strict=True)])
    return file


def write_config(folder: Path, base: Path) -> Path:
    file = folder / "experiment.toml"
    file.write_text(f"""
        [data]
        name = "table"
        path = "{write_notes(folder / "server.csv")}"
        label = "topic"
        text = "note"
        [federation]
        clients = 2
        [model]
        name = "huggingface"
        path = "{base}"
        lora = {{ targets = ["query"] }}
        """)
    return file


def test_a_node_trains_adapters_on_its_own_texts_and_its_own_copy_of_the_base(tmp_path: Path) -> None:
    base, copy = (save_transformer(tmp_path / name) for name in ("base", "copy"))
    app = write_app(tmp_path / "app", write_config(tmp_path, base))
    assert app.model is not None
    experiment = fr.Experiment(**app.to_tables())
    node = NodeConfig(1, tmp_path / "state", table=write_notes(tmp_path / "node.csv", seed=1), base=copy)
    experiment = with_base_of_node(experiment, node)
    schema = Preprocessing(("flower", "sky", "tree"), {"input_ids": (8,)}, {"input_ids": "int64"})
    data = load_node_data(node, experiment, schema)
    clients, f = make_client_runner(experiment, data)
    reply = clients.run_task(f, "train", 1, 0, {"w": f.w}, None)
    assert reply.up["w"].shape == f.w.shape
    assert not torch.equal(reply.up["w"], f.w)


def test_a_node_with_its_own_copy_of_the_base_has_the_reply_of_serial(tmp_path: Path) -> None:
    base, copy = (save_transformer(tmp_path / name) for name in ("base", "copy"))
    app = write_app(tmp_path / "app", write_config(tmp_path, base))
    experiment = fr.Experiment(**app.to_tables())
    setup = prepare_run(experiment)
    expected = setup.clients.run_task(setup.server.f, "train", 1, 0, {"w": setup.server.w}, None)
    node = NodeConfig(1, tmp_path / "state", base=copy)
    experiment = with_base_of_node(experiment, node)
    clients, f = make_client_runner(experiment, load_node_data(node, experiment, ()))
    reply = clients.run_task(f, "train", 1, 0, {"w": setup.server.w}, None)
    assert torch.equal(reply.up["w"], expected.up["w"])
    assert reply.n == expected.n


def test_a_node_with_another_base_is_refused(tmp_path: Path) -> None:
    base, other = save_transformer(tmp_path / "base"), save_transformer(tmp_path / "other", seed=1)
    write_app(tmp_path / "app", write_config(tmp_path, base))
    written = (tmp_path / "app" / "pyproject.toml").read_text()
    assert "checksum" in written
    experiment = fr.Experiment(**write_app(tmp_path / "again", tmp_path / "experiment.toml").to_tables())
    node = NodeConfig(0, tmp_path / "state", table=tmp_path / "server.csv", base=other)
    experiment = with_base_of_node(experiment, node)
    data = load_node_data(node, experiment)
    with pytest.raises(UserError) as error:
        make_client_runner(experiment, data)
    assert (error.value.code, error.value.key) == ("model.other_base", "model.checksum")
    with pytest.raises(UserError) as error:
        with_base_of_node(fr.Experiment(), node)
    assert (error.value.code, error.value.key) == ("flower.invalid_node_config", "node-config.base")
