"""Tables as people have them: missing values, identifiers, categories, test tables, splits by group and by time."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
import torch

import fedrecall as fr
from fedrecall.data.dataset import Dataset
from fedrecall.data.preprocessing import ColumnEncoding
from fedrecall.data.tabular import from_table
from fedrecall.errors import UserError
from fedrecall.tensor_dict import TensorDict


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 60
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, n),
            "pulse": rng.integers(50, 100, n),
            "sex": rng.choice(["f", "m"], n),
            "ward": rng.choice(["a", "b", "c"], n),
            "visit": pd.date_range("2024-01-01", periods=n).astype(str),
            "patient": np.repeat(np.arange(n // 3), 3),
            "hospital": rng.choice(["north", "south"], n),
            "ill": rng.choice(["no", "yes"], n),
        }
    )
    frame.loc[::7, "age"] = np.nan
    frame.loc[::9, "ward"] = None
    return frame


def test_all_problems_of_a_table_are_in_one_error(table: pd.DataFrame) -> None:
    with pytest.raises(UserError) as error:
        from_table(table, "ill", client="city", group="patient", drop=["nothing"])
    assert (error.value.code, error.value.key) == ("data.several_problems", "table")
    for problem in ('"city"', '"nothing"', '"age" has no value in 9 of 60', '"ward"', '"visit" has 60 different'):
        assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_dropped_columns_are_no_features_and_rules_fill_missing_values(table: pd.DataFrame) -> None:
    columns = {"drop": ["visit", "patient"], "client": "hospital"}
    mean = from_table(table, "ill", missing="mean", **columns)
    assert mean.shape == (1 + 1 + 2 + 3,)  # age, pulse, sex, ward
    train_age = mean.train_x[:, 0]
    known = table["age"].dropna()
    assert abs(float(train_age.mean())) < 1e-5
    assert (train_age.abs() < 1e-5).sum() + (mean.test_x[:, 0].abs() < 1e-5).sum() == len(table) - len(known)
    assert (mean.train_x[:, 4:].sum(1) == 0).any()  # a missing ward is no category

    category = from_table(table, "ill", missing="category", **columns)
    assert category.shape == (1 + 1 + 1 + 2 + 4,)  # age has a flag, ward the category of missing values
    flags = torch.cat([category.train_x[:, 1], category.test_x[:, 1]])
    assert flags.sum() == table["age"].isna().sum()
    assert set(flags.tolist()) == {0.0, 1.0}
    assert (category.train_x[:, 5:].sum(1) == 1).all()


def test_the_mean_that_fills_is_of_the_training_rows(table: pd.DataFrame) -> None:
    data = from_table(table[["age", "ill"]], "ill", missing="mean", seed=3)
    rows = table.reset_index()[["index", "ill"]].copy()
    split = from_table(rows, "ill", seed=3)  # the same labels and seed: the same rows
    (encoding,) = split.columns
    train = (split.train_x[:, 0] * encoding.scale + encoding.center).round().long().numpy()
    assert data.columns[0].center == pytest.approx(table["age"].iloc[train].mean())


def test_categories_as_integers_are_embedded_and_used_for_prediction(table: pd.DataFrame, tmp_path: Path) -> None:
    options = {"drop": ["visit", "patient"], "client": "hospital", "missing": "category", "categorical": "integers"}
    data = from_table(table, "ill", **options)
    assert isinstance(data.train_x, TensorDict)
    assert data.shape == {"numbers": (3,), "categories": (2,)}
    assert data.num_values == {"categories": (3, 5)}  # 0 is an unknown category
    fr.run(data=data, rounds=1, epochs=1, out=tmp_path / "run", progress=False)
    trained = fr.load(tmp_path / "run")
    new = table.drop(columns=["ill", "hospital"]).assign(ward="new ward")
    assert len(trained.predict(new)) == len(table)


def test_identifiers_are_named(table: pd.DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    frame = table.dropna(axis=1).drop(columns="visit").assign(patient_id=3, record=range(1000, 1060))
    from_table(frame, "ill", client="hospital")
    warned = [r.getMessage() for r in caplog.records if "identifier" in r.getMessage()]
    assert len(warned) == 2
    assert '"patient_id"' in warned[0]
    assert 'data.drop = ["record"]' in warned[1]


def test_a_test_table_is_the_test_set_and_shares_no_group(table: pd.DataFrame, tmp_path: Path) -> None:
    frame = table.drop(columns=["visit"]).fillna({"age": 60.0, "ward": "a"})
    train, test = frame[frame.patient < 15], frame[frame.patient >= 15]
    train.to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    data = from_table(tmp_path / "train.csv", "ill", client="hospital", group="patient", test=tmp_path / "test.csv")
    assert (len(data.train_y), len(data.test_y), data.split_again) == (45, 15, None)
    assert data.test_split == "all rows of test.csv"
    assert abs(float(data.train_x[:, 0].mean())) < 1e-5  # fitted on the training table alone
    section = {"name": "table", "path": str(tmp_path / "train.csv"), "test_path": str(tmp_path / "test.csv")}
    result = fr.run(
        {"data": section | {"label": "ill", "drop": ["patient"], "client": "hospital"}}, rounds=1, progress=False
    )
    assert result.experiment.data.test_path == tmp_path / "test.csv"
    with pytest.raises(UserError) as error:
        from_table(tmp_path / "train.csv", "ill", group="patient", test=frame[frame.patient >= 14])
    assert error.value.code == "data.divided_group"


def test_the_last_rows_by_time_are_the_test_set(table: pd.DataFrame) -> None:
    frame = table[["age", "visit", "patient", "ill"]].fillna({"age": 60.0})
    shuffled = frame.sample(frac=1.0, random_state=1)
    data = from_table(shuffled, "ill", time="visit", drop=["patient"], test=0.25)
    last = frame.sort_values("visit").iloc[45:]
    expected = sorted((last["age"] - frame["age"].iloc[:45].mean()) / frame["age"].iloc[:45].std(ddof=0))
    assert sorted(data.test_x[:, 0].tolist()) == pytest.approx(expected, abs=1e-4)
    assert (data.split_again, data.test_split) == (None, "the last 25 % by time")
    groups = from_table(shuffled, "ill", time="visit", group="patient", test=0.25)
    assert len(groups.test_y) == 15  # five whole patients
    with pytest.raises(UserError) as error:
        from_table(frame.assign(visit="2024"), "ill", time="visit")
    assert (error.value.code, error.value.key) == ("data.cannot_hold_out", "time")


def test_a_data_set_prints_as_one_line_with_its_split(table: pd.DataFrame) -> None:
    data: Dataset = from_table(table[["pulse", "sex", "hospital", "ill"]], "ill", client="hospital")
    text = repr(data)
    assert "\n" not in text
    assert len(text) < 300
    for fact in ("47 training", "13 test", "no, yes", "north, south", "20 % of the examples of every class"):
        assert fact in text


def test_the_split_has_a_seed_of_its_own(table: pd.DataFrame, tmp_path: Path) -> None:
    table.drop(columns=["age", "ward", "visit", "patient"]).to_csv(tmp_path / "t.csv", index=False)

    def split(run_seed: int, **seed: object) -> str:
        section = fr.Experiment(data={"name": "table", "path": str(tmp_path / "t.csv"), "label": "ill", **seed}).data
        return section.load(run_seed=run_seed).fingerprint

    assert split(0) == split(1) == split(1, split_seed=0), "by default the test set does not depend on the run's seed"
    assert split(0, split_seed=1) == split(5, split_seed=1) != split(0)
    assert split(1, split_seed="run") == split(0, split_seed=1)


@pytest.mark.parametrize("numbers", [{}, {"age": [1.0, 2.0] * 10}])
def test_the_number_of_values_is_that_of_the_encoding(numbers: dict[str, list[float]]) -> None:
    frame = pd.DataFrame({"ward": ["a", "b"] * 10, **numbers, "ill": ["no", "no", "yes", "yes"] * 5})
    fixed = dict.fromkeys(numbers) | {"ward": ColumnEncoding("ward", ("a", "b", "c"), integers=True)}
    name = "categories" if numbers else ""
    assert from_table(frame, "ill", fixed=fixed).num_values == {name: (4,)}
    assert from_table(frame, "ill", categorical="integers").num_values == {name: (3,)}


def test_a_column_without_values_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("note,age,ill\n" + ",30,no\n,40,yes\n" * 10)
    for missing in ("refuse", "mean"):
        with pytest.raises(UserError) as error:
            from_table(file, "ill", missing=missing)
        assert (error.value.code, error.value.key) == ("data.missing_value", str(file))
        assert 'data.drop = ["note"]' in str(error.value)
    assert from_table(file, "ill", missing="category").shape == (2,)


@pytest.mark.parametrize(
    ("cells", "categories"),
    [
        (("true", "false"), ("false", "true")),
        (("True", "False"), ("False", "True")),
        (("01230", "04567"), ("01230", "04567")),
        (("1", "2"), ("1", "2")),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_named_categories_and_classes_have_their_spelling(
    tmp_path: Path, cells: tuple[str, str], categories: tuple[str, str], kind: str
) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,y\n" + "".join(f"{cell},{cell}\n" for cell in cells) * 10)
    if kind == "parquet":
        pq.write_table(arrow_csv.read_csv(file), file.with_suffix(".parquet"))
    data = from_table(
        file.with_suffix(f".{kind}"), "y", fixed={"a": ColumnEncoding("a", categories)}, classes=categories
    )
    assert data.classes == categories
    assert torch.equal(data.train_x.argmax(1), data.train_y)
    assert torch.equal(data.train_x.sum(1), torch.ones(16))


def test_a_number_that_has_several_spellings_is_no_category() -> None:
    column = pa.chunked_array([[1, 2, 3]])
    encoding = ColumnEncoding("a", ("001", "01", "02", "3"))
    assert encoding.encode(column, "t").tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
