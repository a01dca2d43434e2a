import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.errors import UserError


def payload(value: int, n: int = 250) -> dict[str, torch.Tensor]:
    return {"seen": torch.tensor(value), "c": torch.full((n,), float(value))}  # 4 n + 8 bytes


def files(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.rglob("*.safetensors"))


def test_the_latest_are_in_memory_and_the_others_in_files(tmp_path: Path) -> None:
    client_states = ClientStateStore(tmp_path, cache_bytes=3 * 1008)
    for k in range(3):
        client_states[k] = payload(k)
    assert list(tmp_path.iterdir()) == [], "no file before it is needed"
    client_states[0]  # now client 1 is the one used longest ago
    client_states[7] = payload(7)
    assert files(tmp_path) == ["1-1.safetensors"]
    assert list(client_states[1]) == ["seen", "c"], "names keep their order"
    assert torch.equal(client_states[1]["c"], payload(1)["c"])
    assert client_states[1]["seen"] == 1
    assert list(client_states) == [0, 1, 2, 7]
    assert len(client_states) == 4
    assert 1 in client_states
    assert 3 not in client_states
    assert client_states.get(3) is None
    assert [int(m["seen"]) for m in client_states.values()] == [0, 1, 2, 7]
    with pytest.raises(KeyError):
        client_states[3]
    with pytest.raises(KeyError):
        del client_states[3]
    del client_states[1]
    assert 1 not in client_states
    client_states.close()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_state_is_not_stored(tmp_path: Path) -> None:
    client_states = ClientStateStore(tmp_path, cache_bytes=0)
    for k in range(1000):
        client_states[k] = {}
    assert len(client_states) == 0
    client_states[1], client_states[2] = payload(1), payload(2)
    client_states[1] = {}
    assert list(client_states) == [2]
    client_states.close()


def test_a_view_does_not_keep_its_base_in_memory() -> None:
    client_states = ClientStateStore()
    client_states[0] = {"part": torch.randn(1000)[:3]}
    assert client_states[0]["part"].untyped_storage().nbytes() == 12


def test_two_names_for_one_tensor_and_a_transposed_one(tmp_path: Path) -> None:
    client_states = ClientStateStore(tmp_path, cache_bytes=0)
    w, m = torch.randn(5), torch.randn(2, 3).T
    client_states[0] = {"a": w, "b": w, "m": m}
    client_states[1] = payload(1)
    assert files(tmp_path) == ["0-1.safetensors"]
    assert all(torch.equal(client_states[0][k], t) for k, t in {"a": w, "b": w, "m": m}.items())
    client_states.close()


@given(st.lists(st.tuples(st.sampled_from("sgd"), st.integers(0, 5), st.integers(0, 400)), max_size=30))
def test_behaves_as_a_dictionary_within_its_bound(steps: list[tuple[str, int, int]]) -> None:
    client_states, plain = ClientStateStore(cache_bytes=2000), {}
    for number, (action, k, n) in enumerate(steps):
        if action == "s":
            client_states[k] = plain[k] = payload(number, n)
        elif action == "d":
            assert (client_states.pop(k, None) is None) == (plain.pop(k, None) is None)
        else:
            assert (k in client_states) == (k in plain)
            if k in plain:
                assert all(torch.equal(client_states[k][name], t) for name, t in plain[k].items())
        in_memory = list(client_states._recent.values())
        assert sum(t.nbytes for m in in_memory for t in m.values()) == client_states._size
        assert client_states._size <= 2000 or len(in_memory) == 1
    assert set(client_states) == set(plain)
    client_states.close()


def test_the_folder_is_removed_with_the_object_but_not_in_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client_states = ClientStateStore(cache_bytes=0)
    client_states[0], client_states[1] = payload(0), payload(1)
    if (pid := os.fork()) == 0:
        client_states.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert files(tmp_path) == ["0-1.safetensors"]
    del client_states
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_keeps_the_files_that_it_names(tmp_path: Path) -> None:
    client_states = ClientStateStore(tmp_path)
    client_states[3], client_states[5] = payload(3), payload(5)
    first = client_states.flush()
    assert first == {3: "3-1.safetensors", 5: "5-2.safetensors"}
    client_states.pin(first.values())
    client_states[3] = payload(33)
    del client_states[5]
    second = client_states.flush()
    assert second == {3: "3-3.safetensors"}, "only what has changed is written"
    assert set(files(tmp_path)) == {*first.values(), *second.values()}, "the first checkpoint can still be read"
    again = ClientStateStore(tmp_path, files=first)
    assert [int(again[k]["seen"]) for k in again] == [3, 5]
    client_states.pin(second.values())
    assert files(tmp_path) == ["3-3.safetensors"], "nobody names the others"
    client_states.close()
    assert files(tmp_path) == ["3-3.safetensors"]
    resumed = ClientStateStore(tmp_path, files=second)
    resumed[8] = payload(8)
    assert resumed.flush()[8] == "8-4.safetensors", "no name is given twice"


def test_a_checkpoint_lists_changed_states_only(tmp_path: Path) -> None:
    client_states = ClientStateStore(tmp_path)
    client_states[1] = payload(1)
    assert client_states.flush() == client_states.flush() == {1: "1-1.safetensors"}


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:40])])
def test_an_unreadable_state_is_a_user_error(damage: Callable[[Path], object], tmp_path: Path) -> None:
    client_states = ClientStateStore(tmp_path, cache_bytes=1008)
    for k in range(2):
        client_states[k] = payload(k)
    damage(tmp_path / "0-1.safetensors")
    with pytest.raises(UserError) as error:
        client_states[0]
    assert error.value.code == "run.unreadable_client_state"
    assert error.value.key == str(tmp_path / "0-1.safetensors")
    assert "client 0" in str(error.value)
    assert "\n" not in str(error.value)


def test_many_states_are_synced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of a thousand client states waits for the disk once, not a thousand times."""
    calls: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: calls.append("sync"))
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    store = ClientStateStore(tmp_path)
    store.update({client: {"c": torch.ones(3)} for client in range(100)})
    store.flush()
    assert calls == (["sync"] if sys.platform == "linux" else ["fsync"] * 100)
    store[0] = {"c": torch.zeros(3)}
    store.flush()
    assert calls[-1] == "fsync"
    before = len(calls)
    store.flush()
    assert len(calls) == before
