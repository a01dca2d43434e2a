"""Figure of docs/architecture.md: the packages and their imports. `python docs/make_architecture.py` draws it.

The arrows are computed from the source. An import that follows from others is not drawn: `cli` imports `errors`, but an
arrow from `cli` to `api` already leads there.
"""

import ast
from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parent / "images"
SOURCE = Path(__file__).parents[1] / "src" / "fedrecall"
WIDTH, HEIGHT = 980, 678
BOX_WIDTH, BOX_HEIGHT, ROW = 216, 46, 76
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
BASE = "errors, files"  # drawn as one box
BASE_MODULES = {"errors", "files", "constraints", "tensor_dict"}
SKIPPED = {"__init__", "__main__", "_version"}
UPWARD = ("runs", "reporting")  # one function, Result.plot: drawn as a dashed line


class Place(NamedTuple):
    """Position of a package's box, and its subtitle."""

    column: int
    row: int
    subtitle: str


PLACES = {
    "cli": Place(2, 0, "parses arguments, prints"),
    "api": Place(2, 1, "run, compare, reproduce, tune"),
    "reporting": Place(2, 2, "tables, figures, HTML"),
    "studies": Place(2, 3, "many runs, statistics, tuning"),
    "runs": Place(2, 4, "one run: set-up, checkpoints"),
    "config": Place(2, 5, "sections, choices, TOML"),
    "simulation": Place(2, 6, "engines: serial, pool, Ray"),
    "flower": Place(3, 3, "real federations on Flower"),
    "testing": Place(3, 5, "the contract of a method"),
    "methods": Place(1, 6, "one file a method"),
    "core": Place(1, 7, "hooks, training, rounds"),
    "data": Place(2, 7, "data sets, partitions"),
    "models": Place(0, 7, "networks"),
    BASE: Place(1, 8, "and the constraints of fields"),
}


class Theme(NamedTuple):
    """Colours of one of the site's themes."""

    box: str
    line: str
    ink: str
    faint: str
    method: str  # fill of the package that a method writer adds a file to
    on_method: str


THEMES = {
    "architecture.svg": Theme("#f3f5f7", "#8c959f", "#1f2328", "#59636e", "#0072B2", "#ffffff"),
    "architecture-dark.svg": Theme("#343d4a", "#768390", "#f0f6fc", "#a6afb9", "#56B4E9", "#08131c"),
}


def package_imports() -> dict[str, set[str]]:
    """Return the packages that each package imports, at module level or inside functions."""
    found: dict[str, set[str]] = {name: set() for name in PLACES}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if name in SKIPPED:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedrecall":
                for alias in node.names:
                    target = box_of(f"{node.module}.{alias.name}".split(".")[1])
                    if target in PLACES and target != box_of(name):
                        found[box_of(name)].add(target)
    found[UPWARD[0]].discard(UPWARD[1])
    return found


def box_of(name: str) -> str:
    """Return the box that shows a package or top-level module."""
    return BASE if name in BASE_MODULES else name


def without_implied(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that do not follow from a chain of others."""

    def reached(start: str) -> set[str]:
        return imports[start].union(*(reached(target) for target in imports[start]))

    return [
        (name, target)
        for name, targets in imports.items()
        for target in sorted(targets)
        if not any(target in reached(other) for other in targets - {target})
    ]


def centre(name: str) -> tuple[float, float]:
    """Return the centre of a package's box."""
    place = PLACES[name]
    return 20 + BOX_WIDTH / 2 + place.column * 241, 12 + BOX_HEIGHT / 2 + place.row * ROW


def route(name: str, target: str) -> str:
    """Return the path of an arrow: straight to the next row, around the boxes to a farther one."""
    (x, y), (tx, ty) = centre(name), centre(target)
    start, end = y + BOX_HEIGHT / 2 + 2, ty - BOX_HEIGHT / 2 - 3
    if abs(PLACES[name].row - PLACES[target].row) == 1:
        aim = tx + (x - tx) * 0.3
        return f"M{x + (tx - x) * 0.3:.0f} {start:.0f}L{aim:.0f} {end:.0f}"
    side = 1 if tx > x else -1
    beside, bend = x + side * (BOX_WIDTH / 2 + 2), tx - side * 10
    return f"M{beside:.0f} {y:.0f}H{bend:.0f}Q{tx:.0f} {y:.0f} {tx:.0f} {y + 10:.0f}V{end:.0f}"


def draw(theme: Theme) -> str:
    """Return the SVG file in one theme."""
    parts = []
    for name, target in without_implied(package_imports()):
        line = f'fill="none" stroke="{theme.line}" stroke-width="1.6" marker-end="url(#head)"'
        parts.append(f'<path d="{route(name, target)}" {line}/>')
    (x, y), (_, ty) = map(centre, UPWARD)
    left = x - BOX_WIDTH / 2
    bend = f"M{left - 2:.0f} {y:.0f}H{left - 30:.0f}V{ty:.0f}H{left - 4:.0f}"
    dashed = f'fill="none" stroke="{theme.line}" stroke-width="1.6" stroke-dasharray="5 4" marker-end="url(#head)"'
    parts.append(f'<path d="{bend}" {dashed}/>')
    label = f'fill="{theme.faint}" font-size="11.5" text-anchor="end" font-family="{MONO}"'
    parts.append(f'<text x="{left - 38:.0f}" y="{(y + ty) / 2 + 4:.0f}" {label}>Result.plot</text>')
    for name, place in PLACES.items():
        x, y = centre(name)
        fill, ink, faint = (
            (theme.method, theme.on_method, theme.on_method)
            if name == "methods"
            else (theme.box, theme.ink, theme.faint)
        )
        corner = f'x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}"'
        parts.append(f'<rect {corner} width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="{fill}"/>')
        title = f'fill="{ink}" font-size="14" font-weight="600" text-anchor="middle" font-family="{MONO}"'
        parts.append(f'<text x="{x:.0f}" y="{y - 3:.0f}" {title}>{escape(name)}</text>')
        note = f'fill="{faint}" font-size="11.5" text-anchor="middle"'
        parts.append(f'<text x="{x:.0f}" y="{y + 15:.0f}" {note}>{escape(place.subtitle)}</text>')
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}" role="img">\n'
        "<title>Packages of fedrecall and their imports</title>\n"
        f'<defs>{head}<path d="M0 0 8 4 0 8z" fill="{theme.line}"/></marker></defs>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    for file, theme in THEMES.items():
        (IMAGES / file).write_text(draw(theme))
