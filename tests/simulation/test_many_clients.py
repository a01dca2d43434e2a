"""Simulations of a million clients: start and memory as with a thousand."""

import json
from pathlib import Path

from support.processes import start

SCRIPT = """
import json, logging, resource, sys, time
import numpy as np
import fedrecall as fr

# All inputs are equal, so nothing can be learnt: that warning is expected, any other fails the test.
logging.getLogger("fedrecall.api").addFilter(lambda record: "at chance" not in record.getMessage())
CLIENTS, SAMPLES = int(sys.argv[1]), 1_300_000  # a fifth is for testing
x = np.zeros((SAMPLES, 2), dtype=np.float32)
y = np.arange(SAMPLES) % 10
fr.run(fr.Experiment(run={"rounds": 1}), data=(x[:1000], y[:1000]))  # imports, and whatever else is done once
began = time.process_time()
experiment = fr.Experiment(
    federation={"clients": CLIENTS, "sample": 10, "partition": {"name": "iid"}},
    run={"rounds": 3}, local={"epochs": 1},
)
result = fr.run(experiment, data=(x, y), out=sys.argv[2])
print(json.dumps({
    "clients": max(max(line["clients"]) for line in result.rounds),
    "seconds": time.process_time() - began,
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


def measured(clients: int, folder: Path) -> dict[str, float]:
    out, err = start("-c", SCRIPT, clients, folder / str(clients), cwd=folder).communicate(timeout=300)
    assert err == ""
    return json.loads(out)


def test_a_million_clients_cost_what_a_thousand_do(tmp_path: Path) -> None:
    few, many = measured(1000, tmp_path), measured(1_000_000, tmp_path)
    assert few["clients"] < 1000 < many["clients"]
    assert many["memory"] - few["memory"] < 100_000, "in KiB: 100 bytes a client"
    assert many["seconds"] < 1.5 * few["seconds"], "seconds of work, so that a busy machine does not matter"
    assert json.loads((tmp_path / "1000000" / "partition.json").read_text())["clients"] == 1_000_000
