"""Reasons of nodes that decline: they reach the server's log, failures/, the records and status.json, without data."""

import json
import logging
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

from fedrecall import UserError
from fedrecall.flower.app_template import write_app
from support.images import write_images
from support.loopback import Loopback, federate, federation, in_a_task, lines, same
from support.lossy_engine import serial_without

__all__ = ["in_a_task"]  # a fixture
pytestmark = pytest.mark.flower
SECRET = "Jane Roe"


def with_tables(folder: Path, config: Path, changes: str, broken: str) -> Loopback:
    """Return three nodes with a table each; `broken` is the table of client 1."""
    grid = federation(folder, config, changes)
    header, *rows = (config.parent / "data.csv").read_text().splitlines()
    for client in range(3):
        text = "\n".join([header, *rows[client::3]]) if client != 1 else broken
        (folder / f"own-{client}.csv").write_text(text)
        grid.nodes[100 + client]["table"] = str(folder / f"own-{client}.csv")
    return grid


BROKEN = {
    "no-label-column": ("p,q,r,s\n1,2,3,4\n", "data.missing_column"),
    "a-row-too-long": (f"p,q,r,s,kind\n1,2,3,4,a\n{SECRET},2,3,4,a,5,6\n", "data.unreadable_file"),
    "another-class": ("p,q,r,s,kind\n1,2,3,4,x\n4,3,2,1,y\n", "data.unknown_class"),
    "no-example": ("p,q,r,s,kind\n", "data.empty"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_reason_of_a_node_reaches_the_server(
    case: str, config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, code = BROKEN[case]
    grid = with_tables(tmp_path, config, "engine.min_replies=2 run.rounds=2", table)
    logging.getLogger("flwr").propagate = True
    with caplog.at_level("INFO", "flwr"):
        federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2, 2]
    note = (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    (lost,) = lines(tmp_path)[0]["lost"]
    assert note.startswith(f"{code}: ")
    assert (lost["client"], lost["code"]) == (1, code)
    assert status["error"]["code"] == code
    at_server = [r.getMessage() for r in caplog.records if "round 1: client 1 failed" in r.getMessage()]
    assert any(code in line for line in at_server)
    for text in (note, json.dumps(status), json.dumps(lost), *at_server):
        assert SECRET not in text
        assert "own-1.csv" not in text, "the name of a file of the node"


def spoil(folder: Path, case: str) -> None:
    """Change the images of a node; the name of a file is the one of a person."""
    named = (folder / "owl" / "0.png").rename(folder / "owl" / f"{SECRET}, and {SECRET}: 3.png")
    if case == "does-not-decode":
        named.write_bytes(b"no image")
    elif case == "two-do-not-decode":
        for file in (named, folder / "cat" / "1.png"):
            file.write_bytes(b"no image")
    elif case == "cut":
        named.write_bytes(named.read_bytes()[:40])
    elif case == "link":
        named.unlink()
        (folder.parent / SECRET).write_bytes(b"elsewhere")
        named.symlink_to(folder.parent / SECRET)
    elif case == "no-example":
        shutil.rmtree(folder)
        (folder / "owl").mkdir(parents=True)
    elif case == "no-class":
        shutil.rmtree(folder)
        folder.mkdir()
    elif case == "one-class":
        shutil.rmtree(folder / "cat")
    elif case == "another-class":
        (folder / "cat").rename(folder / "dog")
    elif case == "another-size":
        shutil.rmtree(folder)
        write_images(folder, {"cat": 6, "owl": 6}, size=5)


IMAGES = {
    "does-not-decode": "data.unreadable_file",
    "two-do-not-decode": "data.several_problems",
    "cut": "data.unreadable_file",
    "link": "data.link_outside_folder",
    "no-example": "data.empty",
    "no-class": "data.empty",
    "one-class": "data.one_class",
    "another-class": "data.unknown_class",
    "another-size": "data.shape_mismatch",
}


@pytest.mark.parametrize("case", IMAGES)
def test_the_reason_of_a_node_with_images_reaches_the_server(case: str, tmp_path: Path) -> None:
    config = tmp_path / "exp.toml"
    config.write_text('[data]\nname = "folder"\nlabels = ["cat", "owl"]\nclient_test = 0.25\n')
    grid = federation(tmp_path, config, "federation.clients=3 engine.min_replies=2 run.rounds=2 local.epochs=1")
    for client in range(3):
        folder = write_images(tmp_path / f"own-{client}", {"cat": 6, "owl": 6})
        grid.nodes[100 + client]["folder"] = str(folder)
    spoil(tmp_path / "own-1", case)
    federate(grid)
    assert [line["replies"] for line in lines(tmp_path)] == [2, 2]
    assert {(x["client"], x["code"]) for x in lines(tmp_path)[0]["lost"]} == {(1, IMAGES[case])}
    note = (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert note.startswith(f"{IMAGES[case]}: ")
    assert status["error"]["code"] == IMAGES[case]
    for text in (note, json.dumps(status), json.dumps(lines(tmp_path)[0])):
        assert SECRET not in text
        assert "own-1" not in text
        assert "1.png" not in text


def test_without_enough_other_nodes_the_run_ends_at_once_with_the_reason(config: Path, tmp_path: Path) -> None:
    grid = with_tables(tmp_path, config, "", BROKEN["no-label-column"][0])
    with pytest.raises(UserError) as error:  # engine.timeout is 600 s
        federate(grid)
    assert error.value.code == "flower.too_few_clients"
    for fact in ("2 of 3 clients", "missing: 1", "node 101", "data.missing_column", "kind"):
        assert fact in str(error.value)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert [entry["connected"] for entry in status["clients"].values()] == [True, False, True]


def test_an_exception_is_sent_as_its_class_and_place_only(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=scaffold engine.min_replies=2")
    (tmp_path / "state-1").write_text("a file where a folder should be")
    federate(grid)
    note = (tmp_path / "run" / "failures" / "round-1-client-1.txt").read_text()
    assert "NotADirectoryError (Not a directory) in " in note
    assert "state-1" not in note


def test_a_node_that_is_away_is_not_connected(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "engine.min_replies=2 run.rounds=1")
    grid.run_config["set"] = "engine.timeout=0.5"
    grid.online -= {102}
    federate(grid)
    assert [(x["client"], x["code"]) for x in lines(tmp_path)[0]["lost"]] == [(2, "reply.not_connected")]
    assert same(tmp_path, serial_without(config, "engine.min_replies=2 run.rounds=1", {(1, 2, "train")}))


def test_records_have_times_and_bytes_of_each_node_unless_privacy_forbids_it(config: Path, tmp_path: Path) -> None:
    federate(federation(tmp_path, config, "run.rounds=1"))
    (record,) = lines(tmp_path)
    assert set(record["nodes"]) == {"0", "1", "2"}
    assert all(node["bytes_up"] > record["bytes_up"] for node in record["nodes"].values()), "and the report"
    assert {node["bytes_down"] for node in record["nodes"].values()} == {record["bytes_down"]}
    changes = "federation.clients=3 local.epochs=1 run.rounds=1"
    changes += " server.weights=uniform server.privacy.clip=1 server.privacy.noise=1 server.privacy.source=system"
    (tmp_path / "private").mkdir()
    federate(federation(tmp_path / "private", None, changes))
    assert "nodes" not in lines(tmp_path / "private")[0]
    status = json.loads((tmp_path / "private" / "run" / "status.json").read_text())
    assert all("examples" not in entry for entry in status["clients"].values())


METHOD = '''
import fedrecall as fr

class Mine(fr.METHODS["fedavg"]):
    """FedAvg under another name."""
'''


def test_other_code_on_a_node_is_refused_with_both_hashes(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module differs between the server's check and the node's: as if two versions were installed."""
    (tmp_path / "site").mkdir()
    module = tmp_path / "site" / "my_own_method.py"
    module.write_text(METHOD)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    grid = federation(tmp_path, config, "method.name=my_own_method:Mine run.rounds=1")
    for node in grid.nodes.values():
        node["code"] = "my_own_method:Mine"
    federate(grid)
    assert same(tmp_path, serial_without(config, "run.rounds=1", ())), "the same code: FedAvg"
    sent = grid.push_messages

    def push(messages: object) -> list[str]:
        module.write_text(METHOD + "\n# changed")
        return sent(messages)

    grid.push_messages, grid.run_config["out"] = push, str(tmp_path / "other")
    with pytest.raises(UserError) as error:
        federate(grid)
    assert error.value.code == "flower.too_few_clients"
    assert "flower.other_code" in str(error.value)
    from fedrecall.config.own_code import code_hash

    now = code_hash("my_own_method:Mine", "method.name")[:16]
    module.write_text(METHOD)
    before = code_hash("my_own_method:Mine", "method.name")[:16]
    assert now != before
    assert now in str(error.value)
    assert before in str(error.value)


def test_code_that_the_node_does_not_list_is_refused(config: Path, tmp_path: Path) -> None:
    grid = federation(tmp_path, config, "method.name=support.own_code:Calm")
    with pytest.raises(UserError) as error:
        federate(grid)
    assert "config.untrusted_code" in str(error.value)
    assert 'code="support.own_code:Calm"' in str(error.value)


def test_modules_are_packed_into_the_app(tmp_path: Path, config: Path) -> None:
    package = tmp_path / "mine"
    (package / "part").mkdir(parents=True)
    for name in ("__init__.py", "part/__init__.py", "part/loss.py", "test_mine.py", "data.csv"):
        (package / name).write_text("")
    (tmp_path / "single.py").write_text("x = 1\n")
    write_app(tmp_path / "app", config, [], [package, tmp_path / "single.py"])
    found = {str(path.relative_to(tmp_path / "app")) for path in (tmp_path / "app").rglob("*") if path.is_file()}
    modules = {"mine/__init__.py", "mine/part/__init__.py", "mine/part/loss.py", "single.py"}
    assert found == {"README.md", "pyproject.toml"} | modules
    for bad in (tmp_path / "absent.py", package / "data.csv", package / "test_mine.py", tmp_path):
        with pytest.raises(UserError) as error:
            write_app(tmp_path / "again", config, [], [bad])
        assert (error.value.code, error.value.key) == ("flower.invalid_module", "--module")
