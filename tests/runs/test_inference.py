"""A trained model in use: loaded without data, applied to raw examples, exported."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

import fedrecall as fr
from fedrecall.core.flat_model import FlatModel
from support.command import call

QUICK = {"engine": {"name": "serial"}, "local": {"epochs": 1}, "run": {"rounds": 2}}
N = 150


def patients() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id_like": np.arange(N) + 1e9, "age": rng.normal(60, 10, N)})
    frame["smoker"] = rng.choice(["yes", "no", "ex"], N)
    frame["hospital"] = rng.choice(["north", "south", "west"], N)
    frame["ill"] = np.where(frame.age + 9 * (frame.smoker == "yes") + rng.normal(0, 3, N) > 63, "ill", "well")
    return frame


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[fr.Result, Path]:
    folder = tmp_path_factory.mktemp("patients")
    patients().to_csv(folder / "patients.csv", index=False)
    data = {"name": "table", "path": str(folder / "patients.csv"), "label": "ill", "client": "hospital"}
    return fr.run(QUICK | {"data": data}, out=folder / "run"), folder


def test_predictions_on_the_raw_table_are_those_of_the_evaluation(
    trained: tuple[fr.Result, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, folder = trained
    data = fr.from_table(folder / "patients.csv", "ill", client="hospital")
    f = FlatModel(result.model())
    monkeypatch.chdir(tmp_path)
    raw = patients()
    encoded = fr.load(folder / "run")._trained(fr.load(folder / "run")._run(None, None))._inputs(raw)[0]
    both = torch.cat([data.train_x, data.test_x])
    assert {tuple(row) for row in encoded.tolist()} == {tuple(row) for row in both.tolist()}, "to the bit"
    rows = [{tuple(row): i for i, row in enumerate(encoded.tolist())}[tuple(row)] for row in data.test_x.tolist()]
    moved = folder.parent / "moved"
    (folder / "patients.csv").rename(folder.parent / "away.csv")
    try:
        (folder / "run").rename(moved)
        predictions = fr.load(moved).predict(raw.iloc[rows])
    finally:
        moved.rename(folder / "run")
        (folder.parent / "away.csv").rename(folder / "patients.csv")
    from fedrecall.core.seeds import single_threaded
    from fedrecall.data.examples import Examples

    with single_threaded():
        z = f.outputs(f.w, Examples(data.test_x, data.test_y, data.test_transform)).z
    expected = z.softmax(1)
    assert torch.equal(torch.tensor(predictions[["p(ill)", "p(well)"]].to_numpy()), expected)
    accuracy = np.mean(predictions["prediction"] == np.asarray(data.classes)[data.test_y.numpy()])
    assert accuracy == pytest.approx(result.summary["final"], abs=1e-12)


def test_files_of_a_run_have_what_inference_needs_and_no_client(trained: tuple[fr.Result, Path]) -> None:
    _, folder = trained
    preprocess = json.loads((folder / "run" / "preprocess.json").read_text())
    assert preprocess["classes"] == ["ill", "well"]
    assert [column["name"] for column in preprocess["columns"]] == ["id_like", "age", "smoker"]
    assert preprocess["columns"][2]["categories"] == ["ex", "no", "yes"]
    with safe_open(folder / "run" / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["preprocess"]) == preprocess
    assert "north" not in json.dumps(metadata)
    card = (folder / "run" / "card.md").read_text()
    assert all(f"| {name} |" in card for name in ("ill", "well", "north", "south", "west"))


def test_predict_on_the_command_line(
    trained: tuple[fr.Result, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, folder = trained
    monkeypatch.chdir(tmp_path)
    new = patients().drop(columns=["ill", "hospital"])
    new.loc[0, "smoker"] = "sometimes"
    new.to_csv("new.csv", index=False)
    code, out, _ = call(monkeypatch, capsys, "predict", folder / "run", "new.csv", "--out", "p.csv")
    assert code == 0
    assert f"{N} predictions" in out
    written = pd.read_csv("p.csv")
    assert list(written["prediction"]) == list(result.predict(new)["prediction"])
    assert written[["p(ill)", "p(well)"]].sum(axis=1).to_numpy() == pytest.approx(1.0)
    for args, wanted in (
        ([folder / "run", "new.csv", "--out", "p.csv"], "cli.file_exists"),
        ([folder / "run", "none.csv", "--out", "q.csv"], "data.unreadable_file"),
        (["nowhere", "new.csv", "--out", "q.csv"], "study.not_found"),
    ):
        code, _, err = call(monkeypatch, capsys, "predict", *args)
        assert (code, f"[{wanted}]" in err) == (2, True)
    new.drop(columns="age").to_csv("short.csv", index=False)
    code, _, err = call(monkeypatch, capsys, "predict", folder / "run", "short.csv", "--out", "q.csv")
    assert (code, "[data.missing_column]" in err) == (2, True)
    assert not Path("q.csv").exists()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> fr.Result:
    return fr.run(QUICK, model=Net, clients=3, out=tmp_path_factory.mktemp("own") / "run")


def test_a_module_of_ones_own(own: fr.Result) -> None:
    x = torch.rand(5, 1, 8, 8)
    expected = own.model()(x)[1]
    loaded = fr.load(own.directory, model=Net)
    assert torch.equal(loaded.model()(x)[1], expected)
    plain = loaded.model(plain=True)
    assert type(plain) is Net
    assert torch.equal(plain(x), expected)
    assert torch.equal(own.model(plain=True)(x), expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in plain.modules())
    with pytest.raises(fr.UserError) as error:
        fr.load(own.directory).model()
    assert (error.value.code, error.value.key) == ("config.needs_python_object", "model")


def test_images_and_arrays(own: fr.Result, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    by_folder, by_array = own.predict(tmp_path), own.predict(pixels)
    assert [Path(name).name for name in by_folder["file"]] == ["0.png", "1.png", "2.png"]
    assert by_folder["prediction"].tolist() == by_array["prediction"].tolist()
    for wrong in (np.zeros((2, 9, 9), np.uint8), tmp_path / "no.csv", pd.DataFrame({"a": [1.0]})):
        with pytest.raises(fr.UserError) as error:
            own.predict(wrong)
        assert error.value.code in ("data.shape_mismatch", "data.unreadable_file", "data.unsupported_type")


@pytest.mark.parametrize("kind", ["safetensors", "torch.export", "onnx"])
def test_exported_logits_are_equal(kind: str, own: fr.Result, tmp_path: Path) -> None:
    if kind == "onnx":
        runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
        pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    file = own.export(kind, tmp_path / "model")  # type: ignore[arg-type]
    for batch in (1, 7):
        x = torch.rand(batch, 1, 8, 8, generator=torch.Generator().manual_seed(batch))
        expected = own.model(plain=True)(x).detach()
        if kind == "safetensors":
            module = Net()
            with safe_open(file, "pt") as content:
                module.load_state_dict({name: content.get_tensor(name) for name in content.keys()})  # noqa: SIM118
            assert torch.equal(module.eval()(x), expected)
        elif kind == "torch.export":
            assert torch.allclose(torch.export.load(file).module()(x), expected, atol=1e-6)
        else:
            (logits,) = runtime.InferenceSession(file).run(None, {"input": x.numpy()})
            assert np.allclose(logits, expected.numpy(), atol=1e-6)


def test_several_inputs_and_an_unknown_format(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(7, 3)

        def forward(self, image: Tensor, age: Tensor) -> Tensor:
            return self.head(torch.cat([self.embedding(age), image], 1))

    rng = np.random.default_rng(0)
    x = {"image": rng.normal(size=(60, 3)).astype(np.float32), "age": rng.integers(0, 10, 60)}
    result = fr.run(QUICK, data=(x, np.arange(60) % 3), model=Two, clients=2, partition="iid", out=tmp_path / "r")
    assert fr.load(tmp_path / "r", model=Two).predict(x).equals(result.predict(x))
    program = torch.export.load(result.export("torch.export")).module()
    tensors = {name: torch.from_numpy(values[:5]) for name, values in x.items()}
    assert torch.allclose(program(*tensors.values()), result.model(plain=True)(**tensors), atol=1e-6)
    with pytest.raises(fr.UserError) as error:
        result.export("onx")  # type: ignore[arg-type]
    assert error.value.code == "config.unknown_name"


def test_a_comparison_predicts(tmp_path: Path) -> None:
    frame = patients()
    data = fr.from_table(frame, "ill", client="hospital")
    side = fr.compare(["fedavg", "fedprox"], data=data, config=QUICK, seeds=1, out=tmp_path / "s")
    again = fr.load(tmp_path / "s")
    assert again.predict(frame, "fedprox").equals(side.predict(frame, "fedprox"))


def test_texts_are_encoded_as_in_training(tmp_path: Path) -> None:
    frame = pd.DataFrame({"note": ["a red rose in may", "two blue skies", "rose", "the sky is blue"] * 20})
    frame["topic"], frame["site"] = ["flower", "sky"] * 40, ["a", "b", "c", "d"] * 20
    data = fr.from_table(frame, "topic", client="site", text="note", max_tokens=4)
    result = fr.run(QUICK, data=data, model="rnn", rounds=1, out=tmp_path / "run", progress=False)
    stored = json.loads((tmp_path / "run" / "preprocess.json").read_text())["text"]
    assert (stored["max_tokens"], stored["column"], stored["tokenizer"]) == (4, "note", None)
    loaded = fr.load(tmp_path / "run")
    by_table, by_list = loaded.predict(frame[["note"]]), loaded.predict(frame["note"].tolist())
    assert by_table.equals(by_list)
    right = dict(zip(frame["note"], frame["topic"], strict=True))
    share = np.mean([right[text] == found for text, found in zip(frame["note"], by_list["prediction"], strict=True)])
    assert share == pytest.approx(result.summary["final"], abs=0.3)
    with pytest.raises(fr.UserError) as error:
        loaded.predict(frame[["topic"]])
    assert error.value.code == "data.missing_column"
