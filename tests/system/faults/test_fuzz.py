"""The decoders and the validation of replies under thousands of edited inputs."""

import random
from pathlib import Path

import pytest

from support.decoders import CORPUS, DECODERS, EDITS, edited

pytestmark = pytest.mark.faults
TRIES = 300


@pytest.mark.parametrize("name", DECODERS)
def test_edited_files_many_times(name: str, tmp_path: Path, tally) -> None:
    corpus, rng = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())], random.Random(name)
    count = tally(f"edited files, {name}")
    for number in range(TRIES):
        changes = [
            (rng.choice(EDITS), rng.randrange(2**16), rng.randbytes(rng.randrange(9))) for _ in range(rng.randint(1, 6))
        ]
        content = edited(rng.choice(corpus), changes)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            DECODERS[name](content, folder)
            count.add()
        except Exception as error:
            (tmp_path / f"found-{number}").write_bytes(content)  # belongs into the corpus
            count.add(f"{tmp_path / f'found-{number}'}: {error!r}")
