"""Version of the library, importable without the package's public names. `pyproject.toml` reads it from here."""

__version__ = "0.1.0.dev0"
