"""What `fedrecall doctor` prints."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from fedrecall.cli import output
from fedrecall.cli.examine import Report, diagnose

BYTES_PER_GB = 1e9

Rows = list[tuple[str, str]]  # a name, and what is said of it


def examine_and_show(as_json: bool = False) -> bool:
    """Print how things stand; whether the library can run."""
    facts = diagnose()
    if as_json:
        output.print_json(facts)
        return bool(facts["ok"])
    console = output.make_console()
    for title, lines in _parts(facts):
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, min_width=19)
        grid.add_column(overflow="fold")
        for name, said in lines:
            grid.add_row(Text(f"  {name}"), Text(said))
        console.print(Text(title, style="bold"))
        console.print(grid)
    console.print(Text("fedrecall can run here" if facts["ok"] else "fedrecall cannot run here: see engines"))
    return bool(facts["ok"])


def _parts(facts: Report) -> Iterator[tuple[str, Rows]]:
    yield "installed", _installed(facts["installed"], facts["machine"])
    yield "machine", _machine(facts["machine"])
    yield "engines", [(name, _engine(found)) for name, found in facts["engines"].items()]
    yield "optional parts", [(name, _extra(found)) for name, found in facts["extras"].items()]
    yield "data", _data(facts["data"])


def _installed(here: Report, has: Report) -> Rows:
    commit = f", commit {here['commit']}" if here["commit"] else ""
    return [
        ("fedrecall", f"{here['fedrecall']}{commit}\n{here['from']}"),
        ("Python", f"{here['python']}, {here['system']}"),
        ("torch", f"{here['torch']}, {has['threads']} threads; devices: {', '.join(has['devices'])}"),
    ]


def _machine(has: Report) -> Rows:
    room = {"shared memory": has["shared_memory_free"], "disk": has["disk_free"]}
    return [
        ("workers", f"{has['workers']}, one a core; engine.workers sets another number"),
        *((name, f"{free / BYTES_PER_GB:.1f} GB free") for name, free in room.items() if free is not None),
    ]


def _engine(found: Report) -> str:
    if "seconds" in found:
        return f"works: a round of two clients took {found['seconds']} s"
    if "why" in found:
        return f"does not work: {found['why']}"
    return f"{found['version']} is installed, and not tried here" if found["version"] else _missing(found)


def _extra(found: Report) -> str:
    return f"{found['gives']} ({found['version']})" if found["version"] else f"{found['gives']}\n{_missing(found)}"


def _missing(found: Report) -> str:
    return f"missing: {found['get']}"


def _data(data: Report) -> Rows:
    folder = f"{data['folder']}{'' if data['folder_exists'] else ' (there is no such folder)'}"
    return [
        ("FEDRECALL_DATA", folder if data["folder"] else "not set: a folder of data sets, for work offline"),
        ("cache", data["cache"]),
        *((name, found["found"] or found["get"]) for name, found in data["sets"].items()),
    ]
