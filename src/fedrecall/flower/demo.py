"""A whole federation on one machine: a SuperLink, a process a node, TLS and keys, one run, nothing left over."""

import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrecall.config.experiment import Experiment
from fedrecall.errors import UserError
from fedrecall.flower.app_template import write_app
from fedrecall.flower.processes import LocalDeployment
from fedrecall.runs.directory import SUMMARY, require_empty

LOG_PREFIX = re.compile(r"^\x1b\[\d+m\w+ *\x1b\[0m:\s*")  # of Flower's log lines

SHOWN_LINES = re.compile(r"round \d+/|finished|error:|run directory|client \d+ failed")


def run_demo(config: Path | None, overrides: Sequence[str], out: Path, say: Callable[[str], None]) -> None:
    """Run a configuration on as many nodes as it has clients; the run directory is `out`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the context ends, and with it all processes
    require_empty(out)
    clients = Experiment.load(config, overrides).federation.clients
    with TemporaryDirectory(prefix="fedrecall-flower-") as name, LocalDeployment(Path(name), clients) as daemons:
        app = Path(name) / "demo"
        write_app(app, config, overrides)
        say(f"SuperLink on port {daemons.port}, TLS, {clients} known nodes")
        names = [daemons.start_supernode(client) for client in range(clients)]
        stream_log(daemons, app, out, say)
        for node in names:
            daemons.check_alive(node)
    if not (out / SUMMARY).exists():
        raise UserError(
            "flower.run_incomplete", f"{out}: the run did not finish", str(out), "see the output of Flower above"
        )
    say(f"everything is stopped, files in {out}")


def stream_log(daemons: LocalDeployment, app: Path, out: Path, say: Callable[[str], None]) -> None:
    """Start the run and tell what it says of its rounds; if it says nothing of use, all of it."""
    process = daemons.start_run(app, f'out="{out.absolute()}"')
    assert process.stdout is not None
    heard: list[str] = []
    for raw in process.stdout:
        line = LOG_PREFIX.sub("", raw.decode(errors="replace")).rstrip()
        heard.append(line)
        if SHOWN_LINES.search(line):
            say(line)
    process.wait()
    if not any("finished" in line for line in heard):
        sys.stderr.write("\n".join(heard[-40:]) + "\n")
