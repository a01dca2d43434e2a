"""The study of docs/transformers.md: its tables are those of the records, and what it says of the methods holds."""

import json
from math import prod

import pytest
import torch

import fedrecall as fr
from fedrecall.methods.search_spaces import SEARCH_SPACES
from support.markdown import DOCS, ROOT, script

study = script("make_transformers")
RECORDS = ROOT / "results" / "texts" / "records.jsonl"


def test_the_tables_are_those_of_the_records() -> None:
    page = (DOCS / "transformers.md").read_text()
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    for name, content in study.parts_of_page(records).items():
        written = page.partition(f"<!-- {name} -->\n")[2].partition("\n<!-- end -->")[0]
        assert written == content, f"{name}: python docs/make_transformers.py page"


def test_every_method_was_tuned_with_the_same_effort() -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    searches = [record for record in records if (record["stage"], record["kind"]) == ("heads", "search")]
    assert searches
    for record in searches:
        grid = [getattr(values, "of", ()) for values in SEARCH_SPACES[record["method"]].dimensions.values()]
        points = prod(len(values) or study.TRIALS for values in grid)  # a small grid is searched completely
        assert record["trials"] == min(study.TRIALS, points)
    tuned = {(record["federation"], record["method"]) for record in searches}
    assert {(record["federation"], record["method"]) for record in records if record["kind"] == "run"} <= tuned | {
        ("dirichlet", method) for method in study.LORA_METHODS
    }


@pytest.mark.parametrize("method", study.NO_FEATURES)
def test_methods_on_features_are_fedavg_if_features_are_frozen(method: str) -> None:
    config = {"model": {"name": "mlp", "hidden": []}, "local": {"epochs": 1}, "engine": {"name": "serial"}}
    plain, other = (fr.run(config, method=name, rounds=3, progress=False) for name in ("fedavg", method))
    assert torch.equal(plain.server.w, other.server.w)


def test_a_difference_needs_an_interval_that_excludes_zero() -> None:
    base = {"stage": "heads", "federation": "dirichlet", "kind": "run"}
    accuracy = {"fedavg": 0.60, "fedlmd": 0.63, "fedntd": 0.57, "scaffold": 0.60}
    noise = [0.001, -0.001, 0.002]
    records = [
        base | {"method": method, "seed": seed, "accuracy": value + noise[seed - (method == "scaffold")]}
        for method, value in accuracy.items()
        for seed in range(3)
    ]
    text = study.findings(records, "heads", "dirichlet")
    assert "helps here with `fedlmd`;" in text
    assert "costs accuracy with `fedntd`;" in text
    assert "no difference shown: `scaffold`" in text
