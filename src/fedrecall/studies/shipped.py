"""Which of the papers' experiments come with the library: names of files, found without reading any."""

import re
from importlib.resources import files
from pathlib import Path


def definitions_folder() -> Path:
    """Where the definitions are: in the installed package, or beside `src` in a checkout."""
    package = Path(str(files("fedrecall")))
    return next(place for place in (package / "experiments", package.parents[1] / "experiments") if place.is_dir())


def experiment_ids() -> list[str]:
    """All experiments: by paper, tables before figures."""

    def place(name: str) -> tuple[str, bool, int]:
        known = re.fullmatch(r"(.+)-(table|fig)-(\d+)", name)
        return (known[1], known[2] == "fig", int(known[3])) if known else (name, False, 0)

    return sorted((path.stem for path in definitions_folder().glob("*.toml")), key=place)
