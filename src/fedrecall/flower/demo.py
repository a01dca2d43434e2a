"""Demonstration of a complete federation on one machine: SuperLink, a process per node, TLS, one run."""

import re
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrecall.config.experiment import Experiment
from fedrecall.errors import UserError
from fedrecall.flower.app_template import write_app
from fedrecall.flower.processes import LocalDeployment
from fedrecall.runs.directory import SUMMARY_FILE, require_empty

LOG_PREFIX = re.compile(r"^\x1b\[\d+m\w+ *\x1b\[0m:\s*")  # of Flower's log lines

SHOWN_LINES = re.compile(r"round \d+/|finished|error:|run directory|client \d+ failed")

MAX_LOG_LINES = 40  # lines of Flower's log that are printed if the run fails


def run_demo(config: Path | None, overrides: Sequence[str], out: Path) -> Generator[str, None, None]:
    """Run a configuration with one node per client and yield the lines to show; `out` is the run directory.

    Closing the iterator stops all processes.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the contexts stop all processes
    require_empty(out)
    clients = Experiment.load(config, overrides).federation.clients
    with TemporaryDirectory(prefix="fedrecall-flower-") as name, LocalDeployment(Path(name), clients) as deployment:
        app = Path(name) / "demo"
        write_app(app, config, overrides)
        yield f"SuperLink on port {deployment.port}, TLS, {clients} registered nodes"
        nodes = [deployment.start_supernode(client) for client in range(clients)]
        lines: list[str] = []
        for line in read_log(deployment, app, out):
            lines.append(line)
            if SHOWN_LINES.search(line):
                yield line
        is_complete = (out / SUMMARY_FILE).exists()
        if not is_complete:
            sys.stderr.write("\n".join(lines[-MAX_LOG_LINES:]) + "\n")
        for node in nodes:
            deployment.check_alive(node)
    if not is_complete:
        raise UserError(
            "flower.run_incomplete", f"{out}: the run did not finish", str(out), "see the output of Flower above"
        )
    yield f"all processes are stopped, files in {out}"


def read_log(deployment: LocalDeployment, app: Path, out: Path) -> Iterator[str]:
    """Start the run and yield the lines of its log until it ends."""
    process = deployment.start_run(app, f'out="{out.absolute()}"')
    assert process.stdout is not None
    for raw in process.stdout:
        yield LOG_PREFIX.sub("", raw.decode(errors="replace")).rstrip()
    process.wait()
