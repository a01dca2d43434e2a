"""Heat maps, with numbers in their cells where they fit."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from fedrecall.reporting.figures.layout import PERCENT, TICK_STEPS, text_width, tick_positions
from fedrecall.reporting.figures.series import Floats
from fedrecall.reporting.figures.style import DATA_COLOUR, MUTED_COLOUR, SEQUENTIAL, SMALL, text_colour_on

EMPTY_CELL_COLOUR = "#dfe3e8"  # a cell without a value

Limits = tuple[float, float]


def heatmap(
    axes: Axes,
    table: Floats,
    *,
    limits: Limits = (0.0, 1.0),
    colours: str | Colormap = SEQUENTIAL,
    write: Callable[[float], str] | None = None,
    cell: tuple[float, float] = (0.0, 0.0),
) -> AxesImage:
    """Draw a table [rows, columns].

    `write` makes the text of a cell; there is none if the widest of them does not fit into a cell of so many inches.
    """
    image = axes.imshow(
        np.ma.masked_invalid(table),
        vmin=limits[0],
        vmax=limits[1],
        cmap=colours,
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_facecolor(EMPTY_CELL_COLOUR)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=2)
    if write is not None:
        texts = {at: write(float(value)) for at, value in np.ndenumerate(table) if np.isfinite(value)}
        # That of the scale's upper end is wanted to fit too: of maps with one scale, all have numbers or none.
        widest = max(text_width(text, SMALL) for text in {write(limits[1]), *texts.values()})
        if cell[0] >= widest + 0.03 and cell[1] >= 1.3 * SMALL / 72:
            for (row, column), text in texts.items():
                shown = text_colour_on(tuple(image.cmap(image.norm(table[row, column]))))
                axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=shown)
    return image


def heatmap_over_rounds(
    axes: Axes,
    columns: Mapping[int, Floats],
    rounds: int,
    *,
    limits: Limits = (0.0, 1.0),
    colours: str | Colormap = SEQUENTIAL,
) -> AxesImage:
    """Draw classes by rounds: what is known of each round is a column [C], the others are left blank."""
    classes = len(next(iter(columns.values())))
    table = np.full((classes, rounds), np.nan)
    for number, column in columns.items():
        table[:, number - 1] = column
    image = heatmap(axes, table, limits=limits, colours=colours)
    image.set_extent((0.5, rounds + 0.5, classes - 0.5, -0.5))
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=TICK_STEPS, min_n_ticks=1))
    return image


def label_shares(axes: Axes, shares: Floats, room: float) -> None:
    """A client's labels: one bar a class, downwards as in the heat maps beside it."""
    classes = len(shares)
    axes.barh(range(classes), shares, color=DATA_COLOUR, height=0.8 if classes <= 50 else 1.0)
    axes.set_ylim(classes - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=TICK_STEPS))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("data share (%)")
    label_classes(axes, classes, room, across=False)


def label_classes(axes: Axes, classes: int, room: float, *, across: bool, name: str = "class") -> None:
    """Class numbers along an axis of so many inches, thinned out where they would overlap."""
    widest = text_width(str(classes - 1), SMALL)
    shown = list(tick_positions(classes, room, widest + 0.06 if across else 1.3 * SMALL / 72))
    if across:
        axes.set_xticks(shown)
        axes.set_xlabel(name)
    else:
        axes.set_yticks(shown)
        axes.set_ylabel(name)


def colour_bar(figure: Figure, image: AxesImage, axes: Sequence[Axes], label: str, lines: int = 1) -> None:
    """A colour bar in per cent beside some axes that stand in so many lines."""
    made = figure.colorbar(image, ax=list(axes), format=PERCENT, pad=0.015, aspect=25 * lines)
    made.ax.spines[:].set_visible(False)
    made.ax.tick_params(length=2)
    made.set_label(label, fontsize=SMALL)


def percent(value: float) -> str:
    """A share in whole per cent."""
    return f"{100 * value:.0f}"


def outline(axes: Axes) -> None:
    """A thin line around a map whose lowest values are almost white."""
    axes.spines[:].set_visible(True)
    axes.spines[:].set(color=MUTED_COLOUR, linewidth=0.4)
