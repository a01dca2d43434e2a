"""Baselines of a comparison: pooled training, each client alone, the most frequent class."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrecall as fr
from fedrecall.config.experiment import Experiment
from fedrecall.data.dataset import Dataset
from fedrecall.data.tokens import from_tokens
from fedrecall.errors import UserError
from fedrecall.runs.keywords import Keywords
from fedrecall.runs.predictions import load_predictions
from fedrecall.runs.setup import prepare_run
from fedrecall.studies.baselines import write_baseline
from fedrecall.studies.compare import comparison_study
from fedrecall.studies.cost import cost

CONFIG = {"local": {"epochs": 2, "batch": 16, "lr": 0.1}, "run": {"rounds": 4}, "engine": {"name": "serial"}}


class Tagger(nn.Module):
    """Logits for every token, from the token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.classifier = nn.Embedding(8192, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.embedding(input_ids))
        return logits


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    y = rng.choice(["a", "b"], 240, p=[0.7, 0.3])
    clients = rng.choice(["north", "south", "west"], 240)
    x = rng.normal(0, 1, (240, 4)).astype(np.float32)
    x[:, 0] += np.where((y == "b") == (clients == "south"), -3, 3)  # the south is the opposite of the others
    return fr.from_arrays(x, y, clients=clients)


@pytest.fixture(scope="module")
def comparison(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> fr.Comparison:
    out = tmp_path_factory.mktemp("study") / "study"
    names = ["central", "local", "majority"]
    return fr.compare(["fedavg"], config=CONFIG, data=data, seeds=2, baselines=names, out=out, progress=False)


def test_baselines_are_rows_of_the_same_table(comparison: fr.Comparison) -> None:
    assert comparison.methods == ["fedavg"]
    assert comparison.baselines == ["central", "local", "majority"]
    (table,) = comparison.tables()
    rows = {name: dict(zip(table.header[1:], cells, strict=True)) for name, cells in table.rows}
    assert list(rows) == ["fedavg", "central", "local", "majority"]
    for name in comparison.baselines:
        assert rows[name]["speedup"].lines == rows[name]["MB up"].lines == ("-",)
        assert len(rows[name]["last 10 less fedavg"].lines) == 4  # with both intervals and the verdict
    gap = rows["central"]["last 10 less fedavg"].value
    assert any(note.text.startswith(f"central less fedavg: {gap:+.2f} points") for note in table.notes)


def test_majority_is_the_share_of_the_most_frequent_class(comparison: fr.Comparison, data: Dataset) -> None:
    for run in comparison.runs:
        if run.cell.row == "majority":
            kept = load_predictions(run.path)
            assert kept is not None
            assert run.summary["last10"] == pytest.approx(float((kept.y == 0).double().mean()))
            assert (kept.predicted == 0).all()


def test_local_is_the_accuracy_of_each_clients_own_model(comparison: fr.Comparison, data: Dataset) -> None:
    accuracy = {row: comparison.to_dict()[row]["final"]["mean"] for row in ("local", "central", "fedavg")}
    assert accuracy["local"] > accuracy["central"] + 5  # one model cannot fit both
    run = next(run for run in comparison.runs if run.cell.row == "local")
    kept, split = load_predictions(run.path), data.split_again(seed=run.cell.seed)
    assert kept is not None
    assert torch.equal(kept.groups.long(), split.test_groups)
    assert run.summary["final"] == pytest.approx(float((kept.predicted == kept.y).double().mean()))
    # the model of one client, trained alone in a run of its own, classifies its test examples so
    rows = split.train_groups == 1
    alone = Dataset("south", split.train_x[rows], split.train_y[rows], split.test_x, split.test_y, split.classes)
    single = {"federation": {"clients": 1, "partition": {"name": "iid"}}}
    result = fr.run({**CONFIG, **single, "data": {"aux_per_class": 0}}, data=alone, seed=run.cell.seed, progress=False)
    mine = kept.groups == 1
    found = result.predict(split.test_x)["prediction"].to_numpy()[mine.numpy()]
    agreement = np.mean(found == np.asarray(split.classes)[kept.predicted[mine].long().numpy()])
    assert agreement > 0.9  # batches are drawn in another order


def test_central_makes_the_passes_of_fedavg(data: Dataset) -> None:
    for clients, expected in ((4, (4, 2)), (2, (4, 1)), (1, (2, 1))):
        config = {**CONFIG, "federation": {"clients": 4, "sample": clients, "partition": {"name": "iid"}}}
        study, _ = comparison_study(["fedavg"], config, seeds=1, baselines=["central"], keywords=None)
        tables = study.cell("central", next(iter(study.columns)), 0).config
        assert (tables["run"]["rounds"], tables["local"]["epochs"]) == expected
        assert tables["federation"] == {"clients": 1, "partition": {"name": "iid"}}
    both = comparison_study(["fedavg"], {**CONFIG, "federation": {"clients": 4}}, seeds=1, baselines=["central"])[0]
    alone = both.subset(rows=["fedavg"])
    assert cost(both).passes == pytest.approx(2 * cost(alone).passes, rel=0.01)


def test_defaults(data: Dataset) -> None:
    assert comparison_study(["fedavg"])[0].baselines == []
    own = comparison_study(["fedavg"], keywords=Keywords(data=data))[0]
    assert own.baselines == ["central", "majority"]
    assert comparison_study(["fedavg"], keywords=Keywords(data=data), baselines=[])[0].baselines == []
    with pytest.raises(UserError) as error:
        comparison_study(["fedavg"], baselines=["centre"])
    assert (error.value.code, error.value.key, error.value.hint) == (
        "config.unknown_name",
        "baselines",
        'did you mean "central"?',
    )


def test_baselines_are_horizontal_lines(comparison: fr.Comparison, tmp_path: Path) -> None:
    from fedrecall.reporting.html.charts import chart_data

    figure = comparison.plot()
    lines = [line for axes in figure.axes for line in axes.get_lines() if len(set(line.get_ydata())) == 1]
    assert len(lines) >= 3
    levels = {row: comparison.to_dict()[row]["last 10"]["mean"] for row in comparison.baselines}
    chart = chart_data(comparison.study_results)
    names = [row["name"] for row in chart["rows"]]
    (panel,) = chart["panels"]
    shown = {names[line["row"]]: line["y"] for line in panel["lines"]["accuracy"]}
    assert {name: shown[name][0] for name in levels} == pytest.approx(levels, abs=0.01)
    assert [line["row"] for line in panel["lines"]["train_loss"]] == [0]


def test_clients_that_train_alone_do_not_stop_early(data: Dataset, tmp_path: Path) -> None:
    config = {**CONFIG, "run": {"rounds": 6, "stop": {"patience": 1}}}
    found = fr.compare(["fedavg"], config=config, data=data, seeds=2, baselines=["local"], out=tmp_path / "s")
    assert [len(run.records) for run in found.runs if run.cell.row == "local"] == [6, 6]


def test_baselines_need_no_number_of_replies(data: Dataset) -> None:
    config = {**CONFIG, "engine": {"name": "serial", "min_replies": 2}}
    names = ["central", "local", "majority"]
    study, _ = comparison_study(["fedavg"], config, keywords=Keywords(data=data), seeds=1, baselines=names)
    assert {cell.row: study.experiment(cell).engine.min_replies for cell in study.cells()} == {
        "fedavg": 2,
        "central": None,
        "local": None,
        "majority": None,
    }


def test_majority_of_the_labels_of_tokens(tmp_path: Path) -> None:
    labels = [["D", "A", "N"], ["A", "N"]] * 20
    data = from_tokens([["a", "red", "rose"], ["blue", "skies"]] * 20, labels, clients=[0, 1, 2, 3] * 10)
    experiment = Experiment(data={"name": "own"}, model={"name": "own"})
    setup = prepare_run(experiment, data=data, model=Tagger)
    write_baseline("majority", setup, tmp_path / "run", Tagger)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    y = setup.data.test.y
    assert summary["final"] == pytest.approx(float((y == 0).double().mean()))  # "A" is as frequent as "N"
