"""Definitions of the papers' tables and figures, one TOML file each; `settings` has the papers' common settings."""

import re
from pathlib import Path


def definitions_folder() -> Path:
    """Return the folder of the definitions."""
    return Path(__file__).parent


def experiment_ids() -> list[str]:
    """Return the IDs of all experiments, by paper, tables before figures."""

    def order(name: str) -> tuple[str, bool, int]:
        parts = re.fullmatch(r"(.+)-(table|fig)-(\d+)", name)
        return (parts[1], parts[2] == "fig", int(parts[3])) if parts else (name, False, 0)

    return sorted((path.stem for path in definitions_folder().glob("*.toml")), key=order)
