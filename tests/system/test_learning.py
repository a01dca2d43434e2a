"""A federation of IID clients learns as a plain loop on the pooled data does: one seed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHIN = 3.0  # points of accuracy


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("case", ["text", "image"])
def test_within_three_points_of_the_pooled_loop(case: str, real_data: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.learning", "--seeds", "1", "--cases", case, "--data", str(real_data)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (row,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert row["pooled"] > 25
    assert row["federated"] > row["pooled"] - WITHIN
