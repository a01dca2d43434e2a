"""Layout of a figure for a paper: panels, one legend, notes below; saved in three formats."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from math import ceil
from pathlib import Path
from textwrap import wrap

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter

from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.reporting.figures.style import COLUMN_WIDTH, LARGE, MUTED_COLOUR, NORMAL, PAGE_WIDTH, SMALL

# No dates and versions: the same results give the same bytes.
METADATA: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}

PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.4g}")

TICK_STEPS = [1, 2, 2.5, 5, 10]  # allowed distances between ticks, times a power of ten

LINE_HEIGHT = 1.35  # multiple of the font size

MARGIN = 0.05  # inches

SCREEN_DPI = 150


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure with constrained layout; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=MARGIN, h_pad=MARGIN, wspace=0.04, hspace=0.06)  # type: ignore[call-arg]
    return figure


def panels(count: int, *, across: int | None = None, height: float = 2.0) -> tuple[Figure, list[Axes]]:
    """Make equal panels in as few rows as are readable; a single panel has the width of a paper's column."""
    across = across or (count if count <= 3 else 2 if count == 4 else 3 if count <= 9 else 4)
    down = ceil(count / across)
    figure = new_figure(COLUMN_WIDTH if across == 1 else PAGE_WIDTH, down * height)
    grid = figure.subplots(down, across, squeeze=False)
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def add_title_legend_notes(
    figure: Figure, *, title: str = "", legend: Sequence[tuple[str, Artist]] = (), notes: Sequence[str] = ()
) -> Figure:
    """Add the title above the panels, the legend and the notes below them; the figure grows accordingly."""
    width, height = (float(inches) for inches in figure.get_size_inches())
    if title:
        lines = wrap_text(title, width - 2 * MARGIN, LARGE)
        figure.suptitle("\n".join(lines), x=MARGIN / width, ha="left", fontsize=LARGE)
        height += len(lines) * LINE_HEIGHT * LARGE / 72
    legend = [(without_control_characters(name), artist) for name, artist in legend]
    columns, legend_height = _legend_size([name for name, _ in legend], width)
    note_lines = wrap_text("; ".join(notes), width - 2 * MARGIN, SMALL)
    note_height = len(note_lines) * LINE_HEIGHT * SMALL / 72
    foot = legend_height + note_height + (MARGIN if legend or note_lines else 0)
    total = height + foot
    figure.set_size_inches(width, total)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, foot / total, 1, height / total))  # type: ignore[call-arg]
    if legend:
        names, artists = zip(*legend, strict=True)
        figure.legend(
            artists,
            names,
            loc="upper center",
            bbox_to_anchor=(0.5, foot / total),
            ncols=columns,
            borderaxespad=0,
            borderpad=0,
            **_SPACING,
        )
    if note_lines:
        text = "\n".join(note_lines)
        figure.text(
            MARGIN / width,
            MARGIN / total,
            text,
            fontsize=SMALL,
            color=MUTED_COLOUR,
            va="bottom",
            linespacing=LINE_HEIGHT - 0.15,
        )
    return figure


def for_display(figure: Figure) -> Figure:
    """Set a resolution for screens; in a notebook, register the display of figures made without pyplot."""
    figure.set_dpi(SCREEN_DPI)
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})
    return figure


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write the figure as SVG, PDF and PNG, each atomically; return the paths."""
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure.draw_without_rendering()  # computes the layout once for all formats
        figure.set_layout_engine(None)
        for suffix, metadata in METADATA.items():
            content = BytesIO()
            figure.savefig(content, format=suffix, metadata=metadata)
            paths.append(folder / f"{stem}.{suffix}")
            write_atomic(paths[-1], content.getvalue())
    except OSError as error:
        path = folder / stem
        text = f"{path}: cannot write the figure: {error.strerror or error}"
        raise UserError("report.cannot_write", text, str(path)) from None
    return paths


def wrap_text(text: str, inches: float, points: float) -> list[str]:
    """Wrap text to a width."""
    if not text:
        return []
    text = without_control_characters(text)
    letter = text_width(text, points) / len(text)
    return wrap(text, max(12, int(inches / letter * 0.97)))


def text_width(text: str, points: float) -> float:
    """Measure the width of a text in inches."""
    shown = without_control_characters(text)
    width, _, _ = TextToPath().get_text_width_height_descent(shown, FontProperties(size=points), ismath=False)
    return width / 72


def without_control_characters(text: str) -> str:
    r"""Return text with spaces in place of unprintable characters, which fonts lack and XML does not allow.

    >>> without_control_characters("north\x1b[2J")
    'north [2J'
    """
    return "".join(c if c.isprintable() else " " for c in text)


def tick_positions(count: int, length: float, label: float) -> range:
    """Choose which of `count` ticks to label so that labels do not overlap; axis and label lengths in inches."""
    max_labels = max(1, int(length / label))
    return range(0, count, next(step for step in _steps() if ceil(count / step) <= max_labels))


def set_panel_title(axes: Axes, text: str) -> None:
    """Set the title of a panel, truncated to the width of the panel."""
    spec = axes.get_subplotspec()
    assert spec is not None
    width = axes.figure.bbox.width / axes.figure.dpi / spec.get_gridspec().ncols * 0.8
    axes.set_title(truncate_text(text, width, NORMAL))


def truncate_text(text: str, inches: float, points: float) -> str:
    """Truncate text to a width in inches, with an ellipsis; unprintable characters become spaces."""
    shown = text = without_control_characters(text)
    while len(text) > 1 and text_width(shown, points) > inches:
        text = text[:-1]
        shown = text.rstrip(" ,:") + "…"
    return shown


def bottom_axes(axes: Sequence[Axes]) -> list[Axes]:
    """Return the lowest panel of each column."""
    by_column: dict[int, Axes] = {}
    for panel in axes:
        spec = panel.get_subplotspec()
        assert spec is not None
        by_column[spec.colspan.start] = panel
    return list(by_column.values())


_SPACING = {"handlelength": 2.4, "handletextpad": 0.5, "columnspacing": 1.2, "labelspacing": 0.35}


def _legend_size(names: Sequence[str], width: float) -> tuple[int, float]:
    """Compute the number of columns of a legend and its height in inches."""
    if not names:
        return 1, 0.0
    em = SMALL / 72
    spacing = sum(_SPACING[key] for key in ("handlelength", "handletextpad", "columnspacing"))
    entry = max(text_width(name, SMALL) for name in names) + spacing * em
    columns = max(1, min(len(names), int((width - 2 * MARGIN) / entry)))
    lines = ceil(len(names) / columns)
    columns = ceil(len(names) / lines)  # balances the lines
    return columns, lines * LINE_HEIGHT * em + MARGIN


def _steps() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50, ..."""
    step = 1
    while True:
        yield from (step, 2 * step, 5 * step)
        step *= 10
