"""Bounded fuzzing of every decoder of what others wrote: a result or a declared error, and never another exception."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.decoders import CORPUS, DECODERS, EDITS, edited

FILES = [path for name in DECODERS for path in sorted((CORPUS / name).iterdir())]

edits = st.lists(
    st.tuples(st.sampled_from(EDITS), st.integers(0, 2**16), st.binary(max_size=8)),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}/{path.name}" for path in FILES])
def test_the_corpus(path: Path, tmp_path: Path) -> None:
    DECODERS[path.parent.name](path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", DECODERS)
def test_edited_files(name: str) -> None:
    corpus = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]

    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(corpus), edits)
    def fuzz(content: bytes, changes: list[tuple[str, int, bytes]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            DECODERS[name](edited(content, changes), Path(folder))

    fuzz()
