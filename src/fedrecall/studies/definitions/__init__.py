"""Definitions of the papers' tables and figures: one TOML file each; `settings` has what a paper's experiments share."""

import re
from pathlib import Path


def definitions_folder() -> Path:
    """Return the folder of the definitions."""
    return Path(__file__).parent


def experiment_ids() -> list[str]:
    """All experiments: by paper, tables before figures."""

    def place(name: str) -> tuple[str, bool, int]:
        known = re.fullmatch(r"(.+)-(table|fig)-(\d+)", name)
        return (known[1], known[2] == "fig", int(known[3])) if known else (name, False, 0)

    return sorted((path.stem for path in definitions_folder().glob("*.toml")), key=place)
