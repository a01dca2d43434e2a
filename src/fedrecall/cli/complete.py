"""What the shell may complete. It must be quick: names are read from the source, and torch stays where it is."""

from fedrecall.experiment import shipped, source

Offers = list[tuple[str, str]]  # what can be typed, and what it means


def methods(incomplete: str) -> Offers:
    """Names of methods."""
    return _named("method", incomplete)


def data(incomplete: str) -> Offers:
    """Names of data sets; a path is completed by the shell where no name fits."""
    return [(name, "data set") for name in source.datasets() if name.startswith(incomplete)]


def experiments(incomplete: str) -> list[str]:
    """What can be reproduced."""
    return [name for name in shipped.ids() if name.startswith(incomplete)]


def settings(incomplete: str) -> Offers:
    """Keys of a configuration; and their values, as soon as only one key is meant that has a list of them."""
    found = {key: about for key, about in source.keys().items() if key.startswith(incomplete.partition("=")[0])}
    exact = {key: about for key, about in found.items() if incomplete.startswith(f"{key}=")} or found
    if len(exact) > 1:
        return [(f"{key}=", about.comment) for key, about in found.items()]
    values = [(f"{key}=", value) for key, about in exact.items() for value in about.values or ("",)]
    return [(f"{key}{_toml(value)}", "") for key, value in values if f"{key}{_toml(value)}".startswith(incomplete)]


def _named(kind: str, incomplete: str) -> Offers:
    return [(name, source.chosen(kind, name).about) for name in source.names(kind) if name.startswith(incomplete)]


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
