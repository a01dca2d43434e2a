"""Client states on a node: the version that the server acknowledged, or none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedrecall import UserError
from fedrecall.flower.client_state import NodeStateStore, StateVersion

RUN = "0123456789abcdef" * 2


def memory(number: float) -> dict[str, torch.Tensor]:
    return {"z": torch.full((3,), number), "a": torch.tensor(int(number))}


@pytest.fixture
def store(tmp_path: Path) -> NodeStateStore:
    return NodeStateStore.for_client(tmp_path / "state", RUN, 2)


def test_a_state_is_read_by_its_version(store: NodeStateStore) -> None:
    for t in range(3):
        store.write(StateVersion(t, 0), memory(t))
    assert store.read(None) is None
    for t in range(3):
        back = store.read(StateVersion(t, 0))
        assert back is not None
        assert list(back) == ["z", "a"]
        assert all(torch.equal(a, b) for a, b in zip(back.values(), memory(t).values(), strict=True))


def test_a_missing_state_is_an_error(store: NodeStateStore) -> None:
    store.write(StateVersion(1, 0), memory(1))
    other = NodeStateStore.for_client(store.folder, RUN, 5)
    for folder, version, found in (
        (store, StateVersion(2, 0), "round 2, exchange 1"),
        (other, StateVersion(0, 0), "nothing"),
    ):
        with pytest.raises(UserError) as error:
            folder.read(version)
        assert (error.value.code, error.value.key) == ("run.missing_client_state", str(folder.folder))
        assert str(version) in str(error.value)
        assert found in str(error.value)


def test_a_damaged_state_is_an_error(store: NodeStateStore) -> None:
    store.write(StateVersion(1, 0), memory(1))
    (file,) = store.folder.iterdir()
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(UserError) as error:
        store.read(StateVersion(1, 0))
    assert (error.value.code, error.value.key) == ("run.unreadable_client_state", str(file))


def test_unacknowledged_versions_are_removed(store: NodeStateStore) -> None:
    for version in (StateVersion(0, 0), StateVersion(1, 0), StateVersion(1, 1), StateVersion(2, 0)):
        store.write(version, memory(1))
    store.prune(StateVersion(1, 0), oldest=0)
    assert store.versions() == [StateVersion(0, 0), StateVersion(1, 0)]
    store.prune(None, oldest=0)
    assert store.versions() == []


def test_versions_of_checkpoints_are_kept(store: NodeStateStore) -> None:
    for t in (0, 2, 3, 7):
        store.write(StateVersion(t, 0), memory(t))
    store.prune(StateVersion(7, 0), oldest=3)  # after rounds 0, 1, 2: the memory was that of round 2
    assert [v.t for v in store.versions()] == [2, 3, 7]
    store.prune(StateVersion(7, 0), oldest=8)
    assert [v.t for v in store.versions()] == [7]


def test_an_empty_state_needs_no_file(store: NodeStateStore) -> None:
    store.write(StateVersion(0, 0), {})
    assert not store.folder.exists()


@pytest.mark.parametrize("run", ["", "../../etc", "0" * 31, RUN.upper(), RUN + "/x"])
def test_a_key_cannot_lead_out_of_the_folder(run: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        NodeStateStore.for_client(tmp_path, run, 0)
    assert error.value.code == "flower.invalid_run_key"


KILLED = """
import sys, torch
from pathlib import Path
from fedrecall.flower.client_state import NodeStateStore, StateVersion
store = NodeStateStore(Path(sys.argv[1]))
for t in range(10**6):
    store.write(StateVersion(t, 0), {"w": torch.full((250_000,), float(t))})
    print(t, flush=True)
"""


def test_states_written_before_a_kill_are_complete(store: NodeStateStore) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(store.folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        output = [process.stdout.readline() for _ in range(5)]
        os.kill(process.pid, signal.SIGKILL)
    last = int(output[-1])
    for version in store.versions():
        back = store.read(version)
        assert back is not None
        assert torch.equal(back["w"], torch.full((250_000,), float(version.t)))
    assert StateVersion(last, 0) in store.versions()
