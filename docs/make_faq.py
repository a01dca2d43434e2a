"""Writer of the messages in docs/faq.md: `python docs/make_faq.py`. A test compares them with the commands' output.

A `text` block of the page is the error of the last command in the `sh` block before it.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent / "faq.md"
ANSWER = re.compile(r"^```sh\n(?P<commands>.*?)^```\n\n```text\n(?P<answer>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
MAX_NAMES = 2  # shown of a list of valid names


def page(text: str) -> str:
    """Return the page with new answers. The commands run from top to bottom in one empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        return ANSWER.sub(lambda found: _answered(found, Path(folder)), text)


def shortened(error: str) -> str:
    """Return the error with its list of valid names cut.

    >>> shortened('unknown key "a" (valid: b, c, d): did you mean "b"?')
    'unknown key "a" (valid: b, c, ...): did you mean "b"?'
    """
    return re.sub(rf"\(valid: ((?:[^,)]+, ){{{MAX_NAMES}}})[^)]*\)", r"(valid: \1...)", error)


def _answered(found: re.Match[str], folder: Path) -> str:
    start, end = (position - found.start() for position in found.span("answer"))
    *before, last = found["commands"].splitlines()
    for command in before:
        _run(command, folder, expected=0)
    return found[0][:start] + shortened(_run(last, folder, expected=2)) + found[0][end:]


def _run(command: str, folder: Path, expected: int) -> str:
    """Run a command line and return its standard error."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != expected:
        sys.exit(f"{command}: exit code {done.returncode}, expected {expected}\n{done.stderr}")
    return done.stderr


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
