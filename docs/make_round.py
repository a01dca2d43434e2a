"""Figure of docs/architecture.md: the flow of a round. `python docs/make_round.py` draws it for both themes."""

from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 980, 452
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


class Theme(NamedTuple):
    """Colours of one of the site's themes."""

    lane: str
    card: str
    line: str
    ink: str
    faint: str
    hook: str  # fill of a step that a method can replace
    on_hook: str


THEMES = {
    "round.svg": Theme("#f3f5f7", "#ffffff", "#8c959f", "#1f2328", "#59636e", "#0072B2", "#ffffff"),
    "round-dark.svg": Theme("#262c37", "#343d4a", "#768390", "#f0f6fc", "#a6afb9", "#56B4E9", "#08131c"),
}


class Picture:
    """Boxes, arrows and text in one theme."""

    def __init__(self, theme: Theme) -> None:
        self.theme = theme
        self.parts: list[str] = []

    def text(self, x: float, y: float, content: str, *, fill: str = "", size: float = 13, more: str = "") -> None:
        """Draw one line of text; its baseline starts at (x, y)."""
        fill = fill or self.theme.ink
        self.parts.append(f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" {more}>{escape(content)}</text>')

    def rect(self, x: float, y: float, w: float, h: float, fill: str, *, more: str = "") -> None:
        """Draw a rounded rectangle."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{fill}" {more}/>')

    def box(self, x: float, y: float, w: float, title: str, note: str, *, hook: bool = False) -> None:
        """Draw a step: a hook of the method, or a step that is the same for all methods."""
        theme, middle = self.theme, 'text-anchor="middle"'
        edge = "" if hook else f'stroke="{theme.line}"'
        self.rect(x, y, w, 54, theme.hook if hook else theme.card, more=edge)
        fill = theme.on_hook if hook else theme.ink
        face = "font-family='ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace'" if hook else ""
        self.text(x + w / 2, y + 23, title, fill=fill, size=14, more=f'{middle} font-weight="600" {face}')
        self.text(x + w / 2, y + 42, note, fill=theme.on_hook if hook else theme.faint, size=11.5, more=middle)

    def arrow(self, path: str, *, dashed: bool = False) -> None:
        """Draw a line with an arrow head at its end."""
        dashes = 'stroke-dasharray="5 4"' if dashed else ""
        line = f'fill="none" stroke="{self.theme.line}" stroke-width="1.6" marker-end="url(#head)" {dashes}'
        self.parts.append(f'<path d="{path}" {line}/>')

    def svg(self) -> str:
        """Return the SVG file."""
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}" role="img">\n'
            "<title>Flow of a round: server, engine, clients, and back to the server</title>\n"
            f'<defs>{head}<path d="M0 0 8 4 0 8z" fill="{self.theme.line}"/></marker></defs>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def draw(theme: Theme) -> str:
    """Return the figure: three lanes, from the server down to the clients and back up."""
    p = Picture(theme)
    lanes = ((30, 122, "Server"), (174, 62, "Engine"), (258, 142, "Clients"))
    for top, height, name in lanes:
        p.rect(8, top, WIDTH - 16, height, theme.lane)
        p.text(24, top + 24, name, size=14, more='font-weight="700"')
    for x, w, title, note, hook in (
        (24, 116, "sample", "draw clients", False),
        (162, 136, "broadcast", "extra tensors", True),
        (420, 104, "validate", "reject invalid", False),
        (546, 150, "aggregation rule", "robust, private", False),
        (718, 104, "aggregate", "new model", True),
        (844, 116, "evaluate", "test, record, save", False),
    ):
        p.box(x, 76, w, title, note, hook=hook)
    for x in (140, 524, 696, 822):
        p.arrow(f"M{x + 2} 103h17")
    p.arrow("M900 76V22Q900 14 892 14H90Q82 14 82 22V72", dashed=True)
    p.text(475, 10, "next round", fill=theme.faint, size=11.5, more='text-anchor="middle"')
    p.text(24, 222, "serial · pool · ray · flower", fill=theme.faint)
    p.text(240, 222, "down: weights and named tensors")
    p.text(518, 222, "up: replies, one by one, in client order")
    p.arrow("M228 132V282")
    for back in (16, 8, 0):
        p.rect(150 + back, 302 - back, 790, 84, theme.card, more=f'stroke="{theme.line}"')
    for x, w, title, note in (
        (164, 152, "frozen, prepare", "teachers, once a round"),
        (338, 80, "loss", "each batch"),
        (436, 86, "correct", "the gradient"),
        (540, 142, "step_correction", "after each step"),
        (796, 132, "reply", "w and client state"),
    ):
        p.box(x, 317, w, title, note, hook=True)
    p.arrow("M318 344h17")
    p.arrow("M420 344h13")
    p.arrow("M524 344h13")
    p.arrow("M684 344h108")
    p.arrow("M611 317Q611 306 601 306H388Q378 306 378 313", dashed=True)
    p.text(738, 335, "all epochs done", fill=theme.faint, size=11.5, more='text-anchor="middle"')
    p.text(24, 344, "local data,", fill=theme.faint)
    p.text(24, 362, "client state", fill=theme.faint)
    p.arrow("M862 286V250Q862 240 852 240H516Q506 240 506 230V134")
    p.rect(24, 420, 22, 14, theme.hook)
    p.text(54, 432, "a hook: a method can replace it", fill=theme.faint)
    p.rect(300, 420, 22, 14, theme.card, more=f'stroke="{theme.line}"')
    p.text(330, 432, "the same for every method", fill=theme.faint)
    return p.svg()


if __name__ == "__main__":
    for file, theme in THEMES.items():
        (IMAGES / file).write_text(draw(theme))
