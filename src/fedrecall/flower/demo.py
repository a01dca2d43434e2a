"""A whole federation on one machine: a SuperLink, a process a node, TLS and keys, one run, nothing left over."""

import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrecall.config.experiment import Experiment
from fedrecall.errors import UserError
from fedrecall.flower.app_template import new
from fedrecall.flower.processes import Daemons
from fedrecall.runs.directory import SUMMARY, require_free

PREFIX = re.compile(r"^\x1b\[\d+m\w+ *\x1b\[0m:\s*")  # of Flower's log lines

WORTH = re.compile(r"round \d+/|finished|error:|run directory|client \d+ failed")


def demo(config: Path | None, overrides: Sequence[str], out: Path, say: Callable[[str], None]) -> None:
    """Run a configuration on as many nodes as it has clients; the run directory is `out`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the context ends, and with it all processes
    require_free(out)
    clients = Experiment.load(config, overrides).federation.clients
    with TemporaryDirectory(prefix="fedrecall-flower-") as name, Daemons(Path(name), clients) as daemons:
        app = Path(name) / "demo"
        new(app, config, overrides)
        say(f"SuperLink on port {daemons.port}, TLS, {clients} known nodes")
        names = [daemons.supernode(client) for client in range(clients)]
        follow(daemons, app, out, say)
        for node in names:
            daemons.require(node)
    if not (out / SUMMARY).exists():
        raise UserError(
            "flower.run_incomplete", f"{out}: the run did not finish", str(out), "see the output of Flower above"
        )
    say(f"everything is stopped, files in {out}")


def follow(daemons: Daemons, app: Path, out: Path, say: Callable[[str], None]) -> None:
    """Start the run and tell what it says of its rounds; if it says nothing of use, all of it."""
    process = daemons.run(app, f'out="{out.absolute()}"')
    assert process.stdout is not None
    heard: list[str] = []
    for raw in process.stdout:
        line = PREFIX.sub("", raw.decode(errors="replace")).rstrip()
        heard.append(line)
        if WORTH.search(line):
            say(line)
    process.wait()
    if not any("finished" in line for line in heard):
        sys.stderr.write("\n".join(heard[-40:]) + "\n")
