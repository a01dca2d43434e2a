"""The ledger: classes by their definitions, one row for each table and figure, numbers from the records."""

import pytest

from fedrecall.runs.predictions import load_predictions
from fedrecall.studies.definitions import experiment_ids
from fedrecall.studies.papers import load_definition
from fedrecall.studies.results import load_results
from support.markdown import DOCS, ROOT, script, table

ledger = script("make_results")


@pytest.mark.parametrize(
    ("value", "low", "high", "seeds", "printed", "verdict"),
    [
        (2.0, 1.0, 3.0, 3, 1.5, ledger.REPRODUCED),
        (2.0, 1.0, 3.0, 1, 1.5, ledger.SUPPORTED),
        (2.0, 1.0, 3.0, 2, 1.5, ledger.NO_DIFFERENCE),
        (2.0, -1.0, 5.0, 3, 1.5, ledger.NO_DIFFERENCE),
        (-2.0, -3.0, -1.0, 3, 1.5, ledger.CONTRADICTED),
        (-2.0, -3.0, -1.0, 1, 1.5, ledger.CONTRADICTED),
        (-2.0, -3.0, -1.0, 3, -1.5, ledger.REPRODUCED),
    ],
)
def test_classes(value: float, low: float, high: float, seeds: int, printed: float, verdict: str) -> None:
    assert ledger.classify(ledger.Interval(value, low, high, seeds), printed) == verdict


def test_an_interval_of_one_seed_is_over_test_examples() -> None:
    found = ledger.difference({0: 60.0}, {0: 50.0})
    assert found.high - found.value == pytest.approx(1.96 * (0.24 / 10_000 + 0.25 / 10_000) ** 0.5 * 100)
    assert (found.value, found.seeds) == (10.0, 1)
    assert ledger.difference({0: 60.0}, {1: 50.0}) is None


def test_every_table_and_figure_has_a_row() -> None:
    rows = {row[0].strip("[").partition("]")[0]: row for row in table(DOCS / "results.md", "study")}
    assert list(rows) == experiment_ids()
    assert len(rows) == 41
    classes = {ledger.REPRODUCED, ledger.SUPPORTED, ledger.CONTRADICTED, ledger.NO_DIFFERENCE, ledger.DRAWN}
    for name, row in rows.items():
        folder = ROOT / "results" / name
        if (folder / "study.toml").exists():
            assert set(row[1].split(", ")) <= {*classes, "supported", "one seed"}
            expected = ledger.ledger_row(load_definition(name), load_results(folder))
            assert list(row) == [cell.strip() for cell in expected], "python docs/make_results.py"
        else:
            assert row[1] in (ledger.NOT_RUN, ledger.CANNOT)


def test_records_are_of_full_length_and_name_no_place() -> None:
    for folder in (ROOT / "results").glob("*/study.toml"):
        results = load_results(folder.parent)
        assert results.study.fraction == 1
        for run in results.finished_runs():
            assert {path.name for path in run.path.glob("*.safetensors")} <= {"predictions.safetensors"}
            if (kept := load_predictions(run.path)) is not None:
                assert float(kept.shares_correct("final").mean()) == run.summary["final"]
            config = (run.path / "config.toml").read_text()
            assert "/root" not in config
            assert "/work" not in config
