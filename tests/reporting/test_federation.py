"""Report of a run on Flower: nodes, replies by round, lost replies with reasons, no empty picture, the command."""

import json
import re
from pathlib import Path

import pytest

import fedrecall as fr
from fedrecall.reporting.figures import default_figures
from fedrecall.reporting.html import write_report
from fedrecall.reporting.tables.federation import federation_tables
from fedrecall.studies.results import load_results

REASON = 'node 7: node-config.table: column "p" has no value <b>'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run, with the files and keys that the engine of Flower adds to it."""
    folder = tmp_path_factory.mktemp("federation") / "run"
    fr.run({"engine": {"name": "serial"}, "federation": {"clients": 3}, "run": {"rounds": 2}}, out=folder)
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        record["nodes"] = {"0": {"seconds": 2.5, "bytes_up": 2_000_000, "bytes_down": 10**6}}
    records[1]["lost"] = [{"client": 1, "code": "data.missing_value", "reason": REASON}]
    records[1]["refused"] = [{"client": 2, "code": "reply.not_finite", "reason": "w is not finite"}]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    clients = {"0": {"connected": True, "node": "5", "examples": 70}, "1": {"connected": False}}
    (folder / "status.json").write_text(json.dumps({"clients": clients}))
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(re.sub(r'name = "serial"', 'name = "flower"', config))
    partition = json.loads((folder / "partition.json").read_text())
    (folder / "partition.json").write_text(json.dumps(partition | {"law": {"name": "nodes"}}))
    return folder


def test_the_tables_have_nodes_and_lost_replies(run: Path) -> None:
    nodes, lost = federation_tables(load_results(run))
    rows = {name: dict(zip(nodes.header[1:], cells, strict=True)) for name, cells in nodes.rows}
    assert list(rows) == ["client 0", "client 1", "client 2"]
    texts = {key: cell.lines[0] for key, cell in rows["client 0"].items()}
    expected = {
        "node": "5",
        "examples": "70",
        "sampled": "2",
        "replies": "2",
        "lost": "0",
        "seconds": "2.5",
        "MB up": "4",
    }
    assert expected.items() <= texts.items()
    assert [rows["client 1"][key].lines[0] for key in ("replies", "lost", "rejected")] == ["1", "1", "0"]
    assert [rows["client 2"][key].lines[0] for key in ("replies", "lost", "rejected")] == ["1", "0", "1"]
    assert [[cell.lines[0] for cell in cells] for _, cells in lost.rows] == [
        ["1", "lost", "data.missing_value", REASON],
        ["2", "rejected", "reply.not_finite", "w is not finite"],
    ]


def test_the_page_shows_them_and_no_empty_picture(run: Path) -> None:
    page = write_report([run])[0].read_text()
    assert "Lost and rejected replies" in page
    assert "has no value &lt;b&gt;" in page
    assert "<b>" not in page
    assert "Replies by client and round" in page
    assert "Samples by client and class" not in page
    assert "fedrecall flower new run-again --config" in page
    assert "flwr run run-again" in page
    assert [spec.form for spec in default_figures(load_results(run))] == ["curves", "presence"]
