"""Virtual environments of the peers: created by pip on first use, and again when their requirements change."""

import os
import platform
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import version
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"


def root() -> Path:
    """Return the folder of the environments."""
    return Path(os.environ.get("FEDRECALL_BENCH_ENVS", "build/peers/envs")).absolute()


def python(peer: str) -> Path:
    """Return the interpreter of a peer's environment; create the environment if necessary."""
    requirements = REQUIREMENTS / f"{peer}.txt"
    torch = f"torch=={version('torch').partition('+')[0]}"  # the same release for all peers
    wanted = f"python {platform.python_version()}\n{torch}\n{requirements.read_text()}"
    if peer == "fedrecall":
        wanted += str(tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"])
    folder = root() / peer
    interpreter, stamp = folder / "bin" / "python", folder / "made-of.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making the environment of {peer} in {folder}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(interpreter), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        if subprocess.run([*pip, "--requirement", str(requirements), torch], check=False).returncode:
            raise SystemExit(
                f"the environment of {peer} cannot be made (pip says why above): leave it out with --peers"
            )
        stamp.write_text(wanted)
    return interpreter
